"""Whether two leaves stand for one value, also where each is a tracer of its own.

Thread rule: functions of their arguments. Cost: a step for each nested `jit` that a value went
through unchanged.
"""

from __future__ import annotations

from typing import Any

from jax._src.interpreters import partial_eval as pe

from coop_jax._src.compat import jaxprs


class HoldsValue:
    """A base of tracers each of which stands for one value that it holds."""

    __slots__ = ()

    _held: Any


def _passed_through(jaxpr: Any, out: Any) -> int | None:
    """Which input of a program an output is, unchanged; None if it is none."""
    for number, given in enumerate(jaxpr.invars):
        if given is out:
            return number
    for eqn in jaxpr.eqns:
        body = jaxprs.call_body(eqn.primitive, eqn.params)
        if body is None:
            continue
        for variable, inner in zip(eqn.outvars, body[0].outvars, strict=True):
            if variable is out:
                inside = _passed_through(body[0], inner)
                return None if inside is None else _passed_through(jaxpr, eqn.invars[inside])
    return None


def _origin(x: Any) -> Any:
    """What a traced value was before the nested jit that it went through unchanged."""
    while isinstance(x, pe.DynamicJaxprTracer) and x.parent is not None:
        made = x.parent
        body = jaxprs.call_body(made.primitive, made.params)
        number = next((n for n, v in enumerate(made.outvars) if v is x.val), None)
        if body is None or number is None:
            break
        given = _passed_through(body[0], body[0].outvars[number])
        if given is None:
            break
        x = made.in_tracers[given]
    return x


def same(x: Any, y: Any) -> bool:
    """Whether two leaves are one value, also where each is a tracer of its own."""
    x, y = _origin(x), _origin(y)
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, HoldsValue):
        return x._held is y._held
    if isinstance(x, pe.DynamicJaxprTracer):
        return x.val is y.val
    return isinstance(x, (bool, int, float, complex, str)) and x == y
