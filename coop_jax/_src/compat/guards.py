"""Jitted functions that refuse what they were not made for.

Model: `jax.jit` traces again where shapes, dtypes, weak types, static arguments or JAX's
configuration are others, and lowers again where arguments lie otherwise. A function with a `Guard`
raises `Refused` in both cases, if its owner did not open the guard. So the owner hears of each call
that needs another program from JAX's own dispatch, and need not look at arguments of calls that do
not. A guard leaves no trace in what XLA compiles.

Known of both supported versions of JAX (0.10 to 0.12): an exception out of tracing or lowering
leaves no entry in JAX's caches and gives no argument away; what `lower` has traced, lowered and
compiled, a call with such arguments takes.
Thread rule: a guard is open for the thread, or task, that opened it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

_PRIMITIVE = Primitive("coop_jax_guard")  # `ir.primitives` knows that it is the identity


class Refused(Exception):  # noqa: N818 - a signal, not an error
    """A guarded function was called with what it was not made for; nothing has run."""


class Guard:
    """What stands before a jitted function; closed at first."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Lets JAX trace and lower the function inside."""
        token = _opened.set(self)
        try:
            yield
        finally:
            _opened.reset(token)

    def check(self) -> None:
        """Raises where the guard is closed; for the function, where JAX traces it.

        Raises:
          Refused: it is closed.
        """
        if _opened.get() is not self:
            raise Refused

    def watched(self, argument: Any) -> Any:
        """The argument; JAX does not lower what reads it while the guard is closed."""
        return _PRIMITIVE.bind(argument, guard=self)


_opened: contextvars.ContextVar[Guard | None] = contextvars.ContextVar("guard", default=None)


def _lowered(context: Any, operand: Any, *, guard: Guard) -> list[Any]:
    guard.check()
    return [operand]


_PRIMITIVE.def_impl(lambda operand, *, guard: operand)  # where JAX looks for NaNs, one by one
_PRIMITIVE.def_abstract_eval(lambda aval, *, guard: aval)
mlir.register_lowering(_PRIMITIVE, _lowered)
