"""How JAX names what a user wrote: functions, their arguments, and which of them are which.

Error messages of JAX take names from the debug information of the function that is traced; a
function of leaves is given that of the user's here.
Thread rule: functions of their arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax._src import api_util as _api_util

Numbers = int | Sequence[int] | None
Names = str | Iterable[str] | None


def resolve(
    fn: Callable[..., Any],
    donate_argnums: Numbers,
    donate_argnames: Names,
    static_argnums: Numbers,
    static_argnames: Names,
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Donated positions and names, static positions and names: as `jax.jit` finds one by the other.

    Raises:
      TypeError, ValueError: what `jax.jit` raises of functions and arguments that make no sense.
    """
    if inspect.isgeneratorfunction(fn):
        raise TypeError(f"Expected a function, got a generator function: {fn}")
    resolved: tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[str, ...]] = (
        _api_util.resolve_argnums(
            fn,
            _api_util.fun_signature(fn),
            donate_argnums,
            donate_argnames,
            static_argnums,
            static_argnames,
        )
    )
    return resolved


def name_as(
    traced: Callable[..., Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static: Sequence[int | str],
) -> None:
    """Has JAX speak of `fn` and its arguments where it traces `traced`, a function of the leaves.

    `static` are positions and names of static arguments.
    """
    _api_util.save_wrapped_fun_debug_info(traced, _info(fn, args, kwargs, static))
    traced.__name__ = getattr(fn, "__name__", type(fn).__name__)
    traced.__qualname__ = getattr(fn, "__qualname__", traced.__name__)


def leaf_names(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static: Sequence[int | str],
) -> tuple[str, ...]:
    """Names of the leaves of a call, such as "params['w']", without those of static arguments."""
    return tuple(_info(fn, args, kwargs, static).arg_names or ())


def name_of(fn: Callable[..., Any]) -> str:
    """A function and where it is: "loss at train.py:12"."""
    return str(_api_util.fun_sourceinfo(fn))


def _info(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static: Sequence[int | str],
) -> Any:
    return _api_util.debug_info(
        "jit",
        fn,
        args,
        kwargs,
        static_argnums=[where for where in static if isinstance(where, int)],
        static_argnames=[where for where in static if isinstance(where, str)],
    )
