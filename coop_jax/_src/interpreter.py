"""Programs run by a session, equation by equation: calls, loops and branches.

Values go at their last use: lists of operands that a function is given are emptied, so that no
frame keeps them alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax._src import primitives
from coop_jax._src.compat import jaxprs
from coop_jax._src.equations import LiteralValue
from coop_jax._src.values import Value, plain

if TYPE_CHECKING:
    from coop_jax._src.session import Session


def call(session: Session, jaxpr: Any, constants: Sequence[Any], operands: list[Any]) -> list[Any]:
    """Runs a jaxpr equation by equation; values go at their last use.

    The list of operands is emptied, so that it does not keep values alive.
    """
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    env.update(zip(jaxpr.invars, operands, strict=True))
    operands.clear()
    last, used = _last_uses(jaxpr)
    for eqn, dead in zip(jaxpr.eqns, last, strict=True):
        ins = [
            LiteralValue(x.val, x.aval) if isinstance(x, jaxprs.Literal) else env[x]
            for x in eqn.invars
        ]
        for variable in dead:
            del env[variable]
        results = _equation(session, eqn, ins)
        ins.clear()
        for variable, result in zip(eqn.outvars, results, strict=True):
            if variable in used:
                env[variable] = result
        results.clear()
    return [
        plain(LiteralValue(x.val, x.aval)) if isinstance(x, jaxprs.Literal) else env[x]
        for x in jaxpr.outvars
    ]


def _equation(session: Session, eqn: Any, operands: list[Any]) -> list[Any]:
    primitive, params = eqn.primitive, eqn.params
    if primitive.name in primitives.CONTROL_FLOW:
        given = [plain(x) for x in operands]
        operands.clear()
        return control_flow(session, primitive.name, given, params)
    prepared = session.prepare(eqn, operands)
    if prepared is None:
        jaxpr, constants = jaxprs.call_body(primitive, params) or (None, ())
        given = [plain(x) for x in operands]
        operands.clear()
        return call(session, jaxpr, constants, given)
    return session.run(prepared, operands)


def control_flow(
    session: Session, name: str, given: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """Runs a cond, while or scan; the predicate is read, one branch runs, loops are loops."""
    operands = list(given)
    if isinstance(given, list):
        given.clear()
    if name == "cond":
        index = int(_scalar(session, operands[0]))
        branches = params["branches"]
        body, constants = jaxprs.open_closed(branches[min(max(index, 0), len(branches) - 1)])
        arguments = operands[1:]
        operands.clear()
        return call(session, body, constants, arguments)
    if name == "while":
        count, body_count = params["cond_nconsts"], params["body_nconsts"]
        test, test_constants = jaxprs.open_closed(params["cond_jaxpr"])
        body, constants = jaxprs.open_closed(params["body_jaxpr"])
        test_fixed, fixed = operands[:count], operands[count : count + body_count]
        carry = list(operands[count + body_count :])
        operands.clear()
        while bool(_scalar(session, call(session, test, test_constants, [*test_fixed, *carry])[0])):
            arguments = [*fixed, *carry]
            carry.clear()
            carry = call(session, body, constants, arguments)
        return carry
    return _scan(session, operands, params)


def _scan(session: Session, operands: list[Any], params: dict[str, Any]) -> list[Any]:
    scan = jaxprs.scan_parts(params)
    fixed = operands[: scan.num_consts]
    carry = list(operands[scan.num_consts : scan.num_consts + scan.num_carry])
    stacked = operands[scan.num_consts + scan.num_carry :]
    operands.clear()
    columns: list[list[Any]] = [[] for _ in scan.body.outvars[scan.num_carry :]]
    order = range(scan.length)
    for i in reversed(order) if scan.reverse else order:
        xs = [session.function(_index, [x, np.int32(i)]) for x in stacked]
        arguments = [*fixed, *carry, *xs]
        carry.clear()
        xs.clear()
        outs = call(session, scan.body, scan.constants, arguments)
        carry = outs[: scan.num_carry]
        for column, y in zip(columns, outs[scan.num_carry :], strict=True):
            column.append(y)
        outs.clear()
    results = []
    for column, variable in zip(columns, scan.body.outvars[scan.num_carry :], strict=True):
        if scan.reverse:
            column.reverse()
        if column:
            results.append(session.function(_stack, column))
        else:
            results.append(np.zeros((0, *variable.aval.shape), variable.aval.dtype))
    return [*carry, *results]


def _scalar(session: Session, x: Any) -> Any:
    return np.asarray(session.concrete(x) if isinstance(x, Value) else x)


def _index(x: Any, i: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _stack(*xs: Any) -> Any:
    return jnp.stack(xs)


def _last_uses(jaxpr: Any) -> tuple[list[list[Any]], set[Any]]:
    """For each equation the variables that nothing reads after it; and all that are read."""
    used = {x for x in jaxpr.outvars if not isinstance(x, jaxprs.Literal)}
    dead: list[list[Any]] = []
    for eqn in reversed(jaxpr.eqns):
        here = []
        for x in eqn.invars:
            if not isinstance(x, jaxprs.Literal) and x not in used:
                used.add(x)
                here.append(x)
        dead.append(here)
    return dead[::-1], used
