"""Structural keys of equations: two traces of the same code give equal ones.

No object in the two is the same; what does not change what an equation computes is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat.jaxprs import ClosedJaxpr, Jaxpr, Literal, open_closed

_SKIPPED = {  # parameters that do not change what an equation computes, and differ between traces
    "jvp_jaxpr_fun",
    "jvp",
    "fwd",
    "bwd",
    "fwd_jaxpr_thunk",
    "out_trees",
    "name",
    "debug_info",
    "sharding",
    "out_sharding",
}


_LAYS_OUT = frozenset(("sharding_constraint", "reshard", "mesh_cast"))
_SHARDINGS = ("sharding", "out_sharding")


def unsharded(primitive: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an equation without the mesh of one device that its result is laid on.

    It is no part of the key, and where a kernel runs there may be another mesh, or none.
    """
    if primitive.name in _LAYS_OUT:
        return params
    if any(params.get(name) is not None for name in _SHARDINGS):
        return {k: None if k in _SHARDINGS else v for k, v in params.items()}
    return params


def params_key(params: dict[str, Any]) -> Hashable:
    """A hashable form of an equation's parameters; nested jaxprs by structure."""
    return tuple((k, _key(v)) for k, v in sorted(params.items()) if k not in _SKIPPED)


def placed_params_key(params: dict[str, Any]) -> Hashable:
    """As `params_key`, of programs over several devices: shardings count.

    Nested jaxprs are equal only to themselves, as what they hold may differ in its shardings.
    """
    unplaced = {k: v for k, v in params.items() if k not in _SHARDINGS}
    jaxprs = {k: v for k, v in unplaced.items() if isinstance(v, (ClosedJaxpr, Jaxpr))}
    others = {k: v for k, v in unplaced.items() if k not in jaxprs}
    return (
        params_key(others),
        tuple((k, _ById(v)) for k, v in sorted(jaxprs.items())),
        tuple((k, params.get(k)) for k in _SHARDINGS),
    )


def placed_aval_key(aval: Any) -> Hashable:
    """As `aval_key`, with the sharding that an abstract value has on a mesh in explicit mode."""
    return aval_key(aval), getattr(aval, "sharding", None)


def literal_key(value: Any) -> Hashable:
    """A hashable form of a literal: its bits, its dtype, its shape."""
    array = np.asarray(value)
    return (
        type_name(array.dtype),
        array.shape,
        array.tobytes(),
        isinstance(value, (bool, int, float)),
    )


def typed_literal_key(value: Any, aval: Any) -> Hashable:
    """A hashable form of a literal that an equation reads as something of this dtype."""
    return literal_key(value), type_name(aval.dtype)


def aval_key(aval: Any) -> Hashable:
    """A hashable form of an abstract value; weak types are kept apart by `strong`, not here."""
    return getattr(aval, "shape", None), type_name(getattr(aval, "dtype", aval))


@functools.lru_cache(maxsize=256)
def type_name(dtype: Any) -> str:
    """The name of a dtype, which NumPy puts together anew each time it is asked for."""
    return str(dtype)


def _key(value: Any) -> Hashable:
    if isinstance(value, (ClosedJaxpr, Jaxpr)):
        jaxpr, constants = open_closed(value)
        return _jaxpr_key(jaxpr), tuple(_key(c) for c in constants)
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(_key(v) for v in value))
    if isinstance(value, dict):
        return tuple((str(k), _key(v)) for k, v in sorted(value.items(), key=lambda kv: str(kv[0])))
    if isinstance(value, (np.ndarray, np.generic)):
        return literal_key(value)
    if isinstance(value, jax.Array):
        return _ById(value)
    try:
        hash(value)
    except TypeError:
        return _ById(value)
    return type(value), value


class _ById:
    """Equal only to itself; keeps its value alive so that the identity stays unique."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.value is self.value


def _jaxpr_key(jaxpr: Any) -> Hashable:
    numbers: dict[Any, int] = {}

    def atom(x: Any) -> Hashable:
        if isinstance(x, Literal):
            return literal_key(x.val), aval_key(x.aval)
        return numbers.setdefault(x, len(numbers))

    heads = tuple((atom(v), aval_key(v.aval)) for v in (*jaxpr.constvars, *jaxpr.invars))
    body = tuple(
        (
            e.primitive,
            params_key(e.params),
            e.ctx,
            tuple(atom(x) for x in e.invars),
            tuple(atom(v) for v in e.outvars),
        )
        for e in jaxpr.eqns
    )
    return heads, body, tuple(atom(x) for x in jaxpr.outvars)
