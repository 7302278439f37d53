"""Functions under another library's `jit`: taken apart as those under `jax.jit` are.

Model: Flax NNX and Equinox have wrappers around `jax.jit`. One turns the arguments (modules that
change in place, leaves that are no arrays) into what `jax.jit` takes, calls what that has compiled,
and puts back what came out: into the modules, or beside what is no array. Here a copy of the
wrapper calls a function of ours in its place, made of the same pure function with the same static
and donated arguments. So all that the library promises of its wrapper holds under a budget as well.

No library is imported: a wrapper is told by the module of its class, and by its parts.
Thread rule: as the function that is called. Cost: the library's own.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from coop_jax._src.compat import jits
from coop_jax._src.util.calling_convention import Convention

A = TypeVar("A")


class Wrapper:
    """A library's wrapper whose compiled function is taken out.

    Args:
      wrapper: the library's.
      field: the attribute with its compiled function.
      given, named: arguments that are bound to it.
    """

    def __init__(self, wrapper: Any, field: str, given: tuple[Any, ...], named: dict[str, Any]):
        compiled = getattr(wrapper, field)
        self._given, self._named = given, named
        self._asked = threading.local()
        self._call: Callable[..., Any] = _not_called
        pure = compiled.__wrapped__
        self._wrapper = copy.copy(wrapper)
        if getattr(pure, "ctxtag", None) is wrapper:  # of NNX: what belongs to one call
            pure = copy.copy(pure)
            pure.ctxtag = self._wrapper
        self._own = Convention(pure, *jits.donated_and_static(compiled))
        # How many arguments of the pure function come before those of a call; None: it has others.
        others = field == "_cached" or isinstance(getattr(wrapper, "partial_args", None), list)
        self._shift = None if others else len(given)
        object.__setattr__(self._wrapper, field, self._compiled)  # Equinox's are frozen

    def convention(self, given: Convention) -> Convention:
        """What is donated and static of the pure function's arguments, by the caller's word too.

        Raises:
          ValueError: the caller's arguments are not those of the pure function.
        """
        own, shift = self._own, self._shift
        if shift is None:
            if dataclasses.replace(given, fn=own.fn) != Convention(own.fn):
                raise ValueError(
                    "what is donated and what is static cannot be said beside"
                    f" {type(self._wrapper).__module__}.{type(self._wrapper).__name__}, which"
                    " passes arguments on otherwise: say it there, equinox.filter_jit(donate=...)"
                )
            return own

        def moved(positions: tuple[int, ...]) -> set[int]:
            return {p if p < 0 else p + shift for p in positions}

        return Convention(
            own.fn,
            tuple({*own.donate_argnums, *moved(given.donate_argnums)}),
            tuple({*own.donate_argnames, *given.donate_argnames}),
            tuple({*own.static_argnums, *moved(given.static_argnums)}),
            tuple({*own.static_argnames, *given.static_argnames}),
        )

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        question = getattr(self._asked, "question", None)
        if question is not None:
            raise _Answer(question(*args, **kwargs))
        return self._call(*args, **kwargs)

    def calling(self, call: Callable[..., Any]) -> Wrapper:
        """The same wrapper; it calls this instead of what it has compiled."""
        self._call = call
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the library's wrapper."""
        return self._wrapper(*self._given, *args, **self._named, **kwargs)

    def ask(self, question: Callable[..., A], args: tuple[Any, ...], kwargs: dict[str, Any]) -> A:
        """What `question` says of the arguments that the compiled function would be called with."""
        self._asked.question = question
        try:
            self(*args, **kwargs)
        except _Answer as answer:
            found: A = answer.args[0]
            return found
        finally:
            self._asked.question = None
        raise RuntimeError("invariant: a wrapper calls its compiled function")


class _Answer(BaseException):
    """Leaves a wrapper with an answer; no exception that libraries handle."""


def _not_called(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("invariant: a wrapper is called once it has something to call")


def taken_apart(fn: Any) -> Wrapper | None:
    """The wrapper if a function is one, arguments that were bound to it included."""
    given: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    while isinstance(fn, functools.partial) or _is_of(fn, "equinox.", "func", "args", "keywords"):
        given, named = (*fn.args, *given), {**fn.keywords, **named}
        fn = fn.func
    for library, field in (("flax.nnx.", "jitted_fn"), ("equinox.", "_cached")):
        if _is_of(fn, library, field) and jits.is_jitted(getattr(fn, field)):
            return Wrapper(fn, field, given, named)
    return None


def _is_of(fn: Any, library: str, *fields: str) -> bool:
    kind = type(fn)
    return kind.__module__.startswith(library) and all(hasattr(fn, f) for f in fields)
