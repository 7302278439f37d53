"""Operators of eager values (`x * y`, `0.9 * m`) without JAX's way there for every one of them.

JAX's operators call a jitted function of `jax.numpy`; given a tracer it does in Python, every time
anew, what C++ does for an array: 20 us to find out what it was the last time. So what JAX asks of
the trace for an operator is remembered by the shapes and dtypes of its operands, and asked again.

Invariants: JAX itself is asked first, under the same configuration; only what comes down to one
primitive on just these operands is remembered, and only while the eager trace is the current one
(under `jax.grad` and the like it is JAX's).
Threads: dictionaries are shared, entries are equal whoever makes them. Cost: a dictionary look-up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax._src import config, core

from coop_jax._src.compat import caches
from coop_jax._src.eager import constants

# What JAX asked for: the primitive, its parameters, and of each operand which one of the operator's
# it is, and what makes a number of Python's what JAX makes of it (None: it is taken as it is).
Operand = tuple[int, Callable[[Any], Any] | None]
Asked = tuple[Any, dict[str, Any], tuple[Operand, ...]]

_remembered = caches.ClearedDict()  # of `Asked`

# JAX refuses others beside int32.
_INTS = 1 << 31

_NAMES = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"),
    *("__truediv__", "__rtruediv__", "__pow__"),
)


def _operator(name: str) -> Callable[[Any, Any], Any]:
    by_jax: Callable[[Any, Any], Any] = getattr(core.Tracer, name)
    # x ** 2 is another primitive than x ** 3.
    by_value = name == "__pow__"

    def operate(self: Any, other: Any) -> Any:
        trace = self._trace
        if core.trace_ctx.trace is not trace or type(self) is not trace.plain:
            return by_jax(self, other)
        kind = type(other)
        if kind is trace.plain and other._trace is trace:
            second = getattr(other._held, "key", None)
        elif kind is float or (kind is int and -_INTS <= other < _INTS):
            second = (kind, other) if by_value else kind
        else:
            return by_jax(self, other)
        first = getattr(self._held, "key", None)
        if first is None or second is None:  # a fill that nothing has read yet
            return by_jax(self, other)
        key = name, first, second, config.trace_context()
        found = _remembered.get(key)
        if found is None:
            return _remember(trace, key, by_jax, (self, other))
        primitive, params, order = found
        both = (self, other)
        given = [both[n] if make is None else make(both[n]) for n, make in order]
        result = trace.process_primitive(primitive, given, params)
        return result[0] if primitive.multiple_results else result

    operate.__name__ = name
    return operate


def _remember(
    trace: Any, key: Any, by_jax: Callable[[Any, Any], Any], operands: tuple[Any, Any]
) -> Any:
    heard: list[Any] = []
    trace.heard = heard
    try:
        result = by_jax(*operands)
    finally:
        trace.heard = None
    # A conversion to the type that a value has is not run.
    ran = [h for h in heard if not any(h[3] is x for x in operands)]
    if len(ran) == 1 and operands[0] is not operands[1]:
        primitive, given, params, returned = ran[0]
        order: list[Any] = [_operand_of(operands, g) for g in given]
        only = returned[0] if primitive.multiple_results and len(returned) == 1 else returned
        if only is result and None not in order:
            # A program whose shapes are new each time.
            if len(_remembered) >= constants.TUNED.kept_rules:
                _remembered.clear()
            _remembered[key] = primitive, params, tuple(order)
    return result


def _operand_of(operands: tuple[Any, Any], given: Any) -> Operand | None:
    for number, x in enumerate(operands):
        if x is given:
            return number, None
    kind, number = type(given), operands[1]
    if isinstance(number, (int, float)) and issubclass(kind, type(number)):
        dtype = getattr(given, "dtype", None)
        if dtype is not None and given == number:
            return 1, functools.partial(kind, dtype=dtype)
    return None


class Operators:
    """Mixed into the eager tracer before JAX's class."""

    __slots__ = ()

    for _name in _NAMES:
        locals()[_name] = _operator(_name)
    del _name
