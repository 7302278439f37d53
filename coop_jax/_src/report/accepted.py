"""What `memory` takes: made into a compiled program, and the names of its arguments.

Thread rule: functions of their arguments. Cost: tracing and compiling where that is not done.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from coop_jax._src.compat import compiled_memory
from coop_jax._src.report.arguments import Argument, arguments_of, results_of
from coop_jax._src.util.options import shown


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """A compiled program.

    Attributes:
      name: of its function; "" if that is not known.
      compiled: what JAX compiled.
      arguments: all of them, in order.
      results: their names.
    """

    name: str
    compiled: jax.stages.Compiled
    arguments: list[Argument]
    results: list[str]


def accepted(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Accepted:
    """Compiles what was given.

    Args:
      fn: a function, also one of `jax.jit`, of a library's `jit` or of `coop_jax.jit`; a
        `jax.stages.Lowered` or `Compiled`.
      args: of the call; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: likewise.

    Raises:
      TypeError: neither a function nor a program, or a program with arguments.
      What `jax.jit` raises where it traces and compiles.
    """
    while isinstance(fn, functools.partial) and hasattr(fn.func, "lower"):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    if isinstance(fn, types.MethodType) and hasattr(fn.__func__, "lower"):
        fn, args = fn.__func__, (fn.__self__, *args)
    program = _unwrapped(fn)
    if isinstance(program, (jax.stages.Lowered, jax.stages.Compiled)):
        if args or kwargs:
            raise TypeError("a program that is lowered or compiled has its arguments: give none")
        call: Callable[..., Any] | None = None
    elif callable(fn):
        lower = getattr(fn, "lower", None) or jax.jit(fn).lower
        program, call = _unwrapped(lower(*args, **kwargs)), fn
    else:
        raise TypeError(f"fn must be a function or a compiled program, got {shown(fn)}")
    compiled = program
    if isinstance(program, jax.stages.Lowered):
        compiled = compiled_memory.compiled_with_lines(program)
    out_info = compiled.out_info
    arguments = arguments_of(compiled.args_info, out_info, call, args, kwargs)
    return Accepted(getattr(call, "__name__", ""), compiled, arguments, results_of(out_info))


def _unwrapped(program: Any) -> Any:
    """Of a library's lowered or compiled program JAX's own."""
    for field in ("lowered", "compiled"):
        inner = getattr(program, field, None)
        if isinstance(inner, (jax.stages.Lowered, jax.stages.Compiled)):
            return inner
    return program
