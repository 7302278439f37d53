"""Programs run by a session, equation by equation: calls, loops and branches.

Values go at their last use: lists of operands that a function is given are emptied, so that no
frame keeps them alive. What a scan stacks stays in parts (see `stacks`) until an operation needs
the whole; parts that a later scan reads go one by one as it proceeds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat import jaxprs, number_checks
from coop_jax._src.eager import equation_steps
from coop_jax._src.eager.session_protocol import Machine
from coop_jax._src.eager.trace import trace
from coop_jax._src.eager.values import Value, aval_of, plain
from coop_jax._src.ir import primitives, refs, stacks
from coop_jax._src.ir.equations import LiteralValue
from coop_jax._src.ir.refs import RefCell
from coop_jax._src.ir.stacks import Stack
from coop_jax._src.lowering import inlining
from coop_jax._src.util.errors import BudgetExceededError


def call(session: Machine, jaxpr: Any, constants: Sequence[Any], operands: list[Any]) -> list[Any]:
    """Runs a jaxpr equation by equation; values go at their last use.

    The list of operands is emptied, so that it does not keep values alive.
    """
    known = [trace.held_by(session, c) for c in constants]
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, known, strict=True))
    del known
    env.update(zip(jaxpr.invars, operands, strict=True))
    operands.clear()
    step = None
    try:
        for step in equation_steps.steps_of(jaxpr):
            ins = [x if type(x) is LiteralValue else env[x] for x in step.reads]
            for variable in step.dead:
                del env[variable]
            results = session.run_known(step.eqn, ins) if step.is_plain else None
            if results is None:
                results = _equation(session, step.eqn, ins)
            ins.clear()
            for number, variable in step.kept:
                env[variable] = results[number]
            results.clear()
    except BudgetExceededError as error:
        assert step is not None
        error.locate(jaxprs.own_source_of(step.eqn.source_info))
        raise
    if jaxpr.constvars or jaxprs.Literal in map(type, jaxpr.outvars):
        _check_given(jaxpr, env)
    return [
        plain(LiteralValue(x.val, x.aval)) if isinstance(x, jaxprs.Literal) else env[x]
        for x in jaxpr.outvars
    ]


def _check_given(jaxpr: Any, env: dict[Any, Any]) -> None:
    """Looks at the results that no operation makes, as JAX looks at all that a jitted call returns.

    Raises:
      FloatingPointError: a literal or a constant among them is NaN, or infinite.
    """
    if not number_checks.looks_for_nans():
        return
    constants = {x for x in jaxpr.constvars if type(env.get(x)) is not Value}
    for x in jaxpr.outvars:
        if isinstance(x, jaxprs.Literal):
            number_checks.check(number_checks.CONSTANT, [plain(LiteralValue(x.val, x.aval))])
        elif x in constants and isinstance(env[x], (np.ndarray, jax.Array)):
            number_checks.check(number_checks.CONSTANT, [env[x]])


def _equation(session: Machine, eqn: Any, operands: list[Any]) -> list[Any]:
    primitive, params = eqn.primitive, eqn.params
    name = primitive.name
    if name in refs.PRIMITIVES:
        is_read = not (eqn.outvars and jaxprs.is_dropped(eqn.outvars[0]))
        results = of_reference(session, primitive, operands, params, is_read=is_read)
        return results if is_read else [None] * len(eqn.outvars)
    if name in primitives.CONTROL_FLOW and not equation_steps.is_one_operation(
        primitive, params, eqn.effects
    ):
        given = [plain(x) for x in operands]
        operands.clear()
        return control_flow(session, name, given, params)
    body = jaxprs.call_body(primitive, params)
    if name == "optimization_barrier":
        return [plain(x) for x in operands]
    if Stack in map(type, operands) and (body is None or inlining.is_group_body(*body)):
        found = _of_stack(primitive, params, operands, [v.aval for v in eqn.outvars])
        if found is not None:
            return found
        _make_whole(session, operands)
    prepared = None
    if Stack not in map(type, operands):
        prepared = session.prepare(eqn, operands)
    if prepared is None:
        jaxpr, constants = body or (None, ())
        given = [plain(x) for x in operands]
        operands.clear()
        return call(session, jaxpr, constants, given)
    return session.run(prepared, operands)


def apply(
    session: Machine, primitive: Any, operands: Sequence[Any], params: dict[str, Any]
) -> list[Any] | None:
    """A primitive that is not one prepared operation: values, arrays or stacks; None for others."""
    name = primitive.name
    if name in refs.PRIMITIVES:
        return of_reference(session, primitive, list(operands), params)
    refers = RefCell in map(type, operands)
    if refers and name not in primitives.CONTROL_FLOW:
        jaxpr, constants = jaxprs.call_body(primitive, params) or (None, ())
        return call(session, jaxpr, constants, list(operands))
    if name in primitives.CONTROL_FLOW and (
        refers or not equation_steps.is_one_operation(primitive, params, ())
    ):
        return control_flow(session, name, operands, params)
    if name == "optimization_barrier":
        return list(operands)
    if name == "check":  # of checkify: JAX's own rule looks at the error's contents, and raises
        given = [whole(session, x) for x in operands]
        known = [session.concrete(x) if type(x) is Value else x for x in given]
        return list(primitive.impl(*known, **params))
    if Stack not in map(type, operands):
        return None
    body = jaxprs.call_body(primitive, params)
    if body is not None and not inlining.is_group_body(*body):
        return call(session, body[0], body[1], list(operands))
    if body is None:
        avals = [aval_of(x) for x in operands]
        out_avals = jaxprs.abstract_eval(primitive, avals, params)
        found = _of_stack(primitive, params, operands, out_avals)
        if found is not None:
            return found
    given = list(operands)
    _make_whole(session, given)
    return list(session.apply(primitive, given, params))


def of_reference(
    session: Machine,
    primitive: Any,
    operands: list[Any],
    params: dict[str, Any],
    *,
    is_read: bool = True,
) -> list[Any]:
    """Makes, reads or writes a reference; the list of operands is emptied."""
    avals = [refs.inner_aval(x) if type(x) is RefCell else aval_of(x) for x in operands]
    given = [plain(x) for x in operands]
    operands.clear()

    def run(jaxpr: Any, constants: Sequence[Any], arguments: list[Any]) -> list[Any]:
        return call(session, jaxpr, constants, arguments)

    return refs.equation(primitive, params, given, avals, run, is_read=is_read)


def _of_stack(
    primitive: Any, params: dict[str, Any], operands: Sequence[Any], out_avals: Sequence[Any]
) -> list[Any] | None:
    """The result of what only passes a stack or parts of it on."""
    first = operands[0]
    if type(first) is not Stack or first.whole is not None or len(out_avals) != 1:
        return None
    if len(operands) == 1 and primitives.is_identity(primitive, params, first.aval, out_avals[0]):
        return [first]
    starts = [_known(x) for x in operands[1:]]
    found = stacks.selected(primitive, params, first, starts, out_avals[0])
    return None if found is None else [found]


def _known(x: Any) -> Any:
    if isinstance(x, LiteralValue):
        return x.value
    return x if isinstance(x, (int, np.integer, np.ndarray)) and np.ndim(x) == 0 else None


def whole(session: Machine, x: Any) -> Any:
    """A stack as one value, put together once; anything else as it is.

    The stack then lets go of its parts: who still needs them has them in another one.
    """
    if type(x) is not Stack:
        return x
    if x.whole is None:
        parts = [whole(session, p) for p in x.parts]
        x.parts = []
        x.whole = stacks.put_together(parts, session.function)
    return x.whole


def _make_whole(session: Machine, operands: list[Any]) -> None:
    for k, x in enumerate(operands):
        if type(x) is Stack:
            operands[k] = whole(session, x)


def control_flow(
    session: Machine, name: str, given: Sequence[Any], params: dict[str, Any]
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
    if name == "custom_linear_solve":
        body, constants = jaxprs.linear_solve_parts(params)[:2]
        arguments = jaxprs.linear_solve_operands(params, operands)
        operands.clear()
        return call(session, body, constants, arguments)
    if name == "while":
        return _while(session, operands, params)
    return _scan(session, operands, params)


def _while(session: Machine, operands: list[Any], params: dict[str, Any]) -> list[Any]:
    count, body_count = params["cond_nconsts"], params["body_nconsts"]
    test, test_constants = jaxprs.open_closed(params["cond_jaxpr"])
    body, constants = jaxprs.open_closed(params["body_jaxpr"])
    test_fixed, fixed = operands[:count], operands[count : count + body_count]
    carry = list(operands[count + body_count :])
    operands.clear()
    tested = refs.written_by_test(test, body, test_fixed, fixed)
    while True:
        before = [cell.current for cell in tested]
        going = _scalar(session, call(session, test, test_constants, [*test_fixed, *carry])[0])
        if not going.any():
            for cell, contents in zip(tested, before, strict=True):
                cell.current = contents
            return carry
        before.clear()
        # Under vmap there is a predicate for each element: those that are done stay as they are.
        kept = [] if going.all() else list(carry)
        arguments = [*fixed, *carry]
        carry.clear()
        carry = call(session, body, constants, arguments)
        for k, old in enumerate(kept):
            if carry[k] is not old:
                given = [going, whole(session, carry[k]), whole(session, old)]
                carry[k] = session.function(_select, given)
                given.clear()
        kept.clear()
        old = None


def _scan(session: Machine, operands: list[Any], params: dict[str, Any]) -> list[Any]:
    scan = jaxprs.scan_parts(params)
    fixed = operands[: scan.num_consts]
    carry = list(operands[scan.num_consts : scan.num_consts + scan.num_carry])
    stacked = operands[scan.num_consts + scan.num_carry :]
    variables = scan.body.invars[len(scan.body.invars) - len(stacked) :]
    sources = [_Source(session, x, v.aval) for x, v in zip(stacked, variables, strict=True)]
    operands.clear()
    stacked.clear()
    columns: list[list[Any]] = [[] for _ in scan.body.outvars[scan.num_carry :]]
    order = range(scan.length)
    for i in reversed(order) if scan.reverse else order:
        xs = [source.take(i) for source in sources]
        arguments = [*fixed, *carry, *xs]
        carry.clear()
        outs = call(session, scan.body, scan.constants, arguments)
        for source, x in zip(sources, xs, strict=True):
            if source.last_use and type(x) is Value:
                session.release_hint(x)
        for source in sources:
            source.put_back(i)
        xs.clear()
        carry = outs[: scan.num_carry]
        for column, y in zip(columns, outs[scan.num_carry :], strict=True):
            # A handle of its own: that this one is not needed says nothing of the others.
            column.append(session.alias(y) if type(y) is Value else y)
        outs.clear()
        y = None
    results: list[Any] = []
    for column, variable in zip(columns, scan.body.outvars[scan.num_carry :], strict=True):
        if scan.reverse:
            column.reverse()
        shape = (scan.length, *variable.aval.shape)
        if column:
            aval = jaxprs.ShapedArray(shape, variable.aval.dtype, weak_type=False)
            results.append(Stack(column, aval))
        else:
            results.append(np.zeros(shape, variable.aval.dtype))
    return [*carry, *results]


class _Source:
    """What a scan reads slices of. The parts of a stack go as they are read, if it is gone."""

    __slots__ = ("_parts", "_rows", "_session", "_whole", "last_use")

    def __init__(self, session: Machine, x: Any, aval: Any):
        """`aval`: the type of a slice."""
        self._session = session
        self._rows = None
        if type(x) is RefCell:
            self._rows = refs.Rows(x, aval, functools.partial(call, session))
            self.last_use, x = False, None
        separate = type(x) is Stack and x.whole is None
        self._parts = list(x.parts) if separate else None
        self._whole = None if separate else whole(session, x)
        self.last_use = separate and x.last_use

    def take(self, i: int) -> Any:
        """The slice at a position; each is asked for once."""
        if self._rows is not None:
            return self._rows.take(lambda contents: self._index(whole(self._session, contents), i))
        if self._parts is None:
            return self._index(self._whole, i)
        part, self._parts[i] = self._parts[i], None
        return part

    def put_back(self, i: int) -> None:
        """After the step at a position: what it wrote into its row of a reference."""
        if self._rows is not None:
            self._rows.put_back(np.int32(i))

    def _index(self, contents: Any, i: int) -> Any:
        return self._session.function(stacks.index, [contents, np.int32(i)])


def _select(going: Any, new: Any, old: Any) -> Any:
    over = jax.lax.broadcast_in_dim(going, new.shape, range(going.ndim))
    return jax.lax.select(over, new, old)


def _scalar(session: Machine, x: Any) -> Any:
    return np.asarray(session.concrete(x) if isinstance(x, Value) else x)
