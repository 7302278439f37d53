"""What runs as one operation although it is more than one equation.

A nested call of few cheap equations, or of one equation; a `cond` of such branches; a loop of cheap
equations whose values are so small that none of them would lie in the pool by itself (counters,
random keys, a state of some numbers). Everything else is taken apart, so that its parts can be kept
or recomputed one by one.

Bound: the working set of such an operation is that of its operands, its results and of at most
`group_max_equations` cheap equations; XLA's workspace for it is counted like any other.
Thread rule: functions of their arguments. Cost: linear in the equations looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir import cost_model, primitives
from coop_jax._src.lowering import constants as tuning


def is_group(primitive: Any, params: dict[str, Any], effects: Any = ()) -> bool:
    """Whether an equation with nested programs is to run as one operation."""
    if effects:
        return False
    body = jaxprs.call_body(primitive, params)
    if body is not None:
        return is_group_body(*body)
    if primitive.name == "cond":
        return is_cheap_cond(params) and all(
            len(b.outvars) <= tuning.TUNED.group_max_results
            and equation_count(b) <= tuning.TUNED.group_max_equations
            for b in jaxprs.nested_jaxprs(params)
        )
    return primitive.name in primitives.CONTROL_FLOW and is_small_loop(primitive.name, params)


def is_group_body(jaxpr: Any, constants: Sequence[Any]) -> bool:
    """Whether the body of a call is cheap and small enough to run as one operation."""
    if len(jaxpr.outvars) > tuning.TUNED.group_max_results or not jaxpr.eqns:
        return False
    count = equation_count(jaxpr)
    if count == 1 and jaxpr.eqns[0].primitive.name in primitives.HEAVY:  # nothing to take apart
        return not jaxpr.eqns[0].effects and _makes_results(jaxpr)
    return count <= tuning.TUNED.group_max_equations and _computes_results(jaxpr, constants)


def _computes_results(jaxpr: Any, constants: Sequence[Any]) -> bool:
    if not is_cheap(jaxpr) or _hold_apart(constants) or not _makes_results(jaxpr):
        return False
    bodies = [jaxprs.call_body(e.primitive, e.params) for e in jaxpr.eqns]
    return all(body is None or _computes_results(*body) for body in bodies)


def _makes_results(jaxpr: Any) -> bool:
    """Whether every result is made by an equation."""
    made = {v for e in jaxpr.eqns for v in e.outvars}
    return not any(isinstance(x, jaxprs.Literal) or x not in made for x in jaxpr.outvars)


def is_cheap(jaxpr: Any) -> bool:
    """Whether a nested program can be part of one operation: nothing heavy, no large loop."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in primitives.HEAVY or name in primitives.IMPURE or eqn.effects:
            return False
        if name == "free_ref":  # nothing in a kernel would see that the reference is used again
            return False
        if name in primitives.CONTROL_FLOW:
            if not is_group(eqn.primitive, eqn.params):
                return False
        elif not all(is_cheap(nested) for nested in jaxprs.nested_jaxprs(eqn.params)):
            return False
    return True


def is_cheap_cond(params: dict[str, Any]) -> bool:
    """Whether computing all branches of a `cond` costs little more than deciding which."""
    constants = [c for b in params["branches"] for c in jaxprs.open_closed(b)[1]]
    return not _hold_apart(constants) and all(is_cheap(b) for b in jaxprs.nested_jaxprs(params))


def is_small_loop(name: str, params: dict[str, Any]) -> bool:
    """Whether a `scan` or `while` is cheap and nothing that an iteration makes needs the pool."""
    if name == "custom_linear_solve" or name == "cond":
        return False
    if name == "while":
        body, constants = jaxprs.open_closed(params["body_jaxpr"])
        carried = [v.aval for v in body.outvars]
        limit = tuning.TUNED.loop_max_carry_bytes
        if sum(map(_nbytes, carried)) > limit or _hold_apart(
            (*constants, *jaxprs.open_closed(params["cond_jaxpr"])[1])
        ):
            return False
    else:
        scan = jaxprs.scan_parts(params)
        values = [*scan.body.invars[scan.num_consts :], *scan.body.outvars]
        limit = tuning.TUNED.small_bytes
        if any(_nbytes(v.aval) > limit for v in values) or _hold_apart(scan.constants):
            return False
    return all(
        equation_count(b) <= tuning.TUNED.loop_max_equations
        and is_cheap(b)
        and _makes_at_most(b, limit)
        for b in jaxprs.nested_jaxprs(params)
    )


def _makes_at_most(jaxpr: Any, limit_bytes: int) -> bool:
    """Whether no value that the program makes is larger."""
    return all(
        all(_nbytes(v.aval) <= limit_bytes for v in e.outvars)
        and all(_makes_at_most(b, limit_bytes) for b in jaxprs.nested_jaxprs(e.params))
        for e in jaxpr.eqns
    )


def _hold_apart(constants: Sequence[Any]) -> bool:
    """Whether one of them is large, or a value of an eager call, which a kernel must not hold."""
    return any(
        np.size(c) > tuning.TUNED.group_max_constant_elements or isinstance(c, jaxprs.Tracer)
        for c in constants
    )


def _nbytes(aval: Any) -> int:
    return cost_model.nbytes(aval) if hasattr(aval, "shape") and hasattr(aval, "dtype") else 1 << 62


def equation_count(jaxpr: Any) -> int:
    """How many equations a program has, nested ones included."""
    return sum(
        1 + sum(equation_count(nested) for nested in jaxprs.nested_jaxprs(e.params))
        for e in jaxpr.eqns
    )
