"""What `jax.jit` knows of a function that it compiles.

Known of both supported versions of JAX (0.10 to 0.12): the attribute that says how it was called.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

from jax._src import pjit as _pjit
from jaxlib import _jax as _jaxlib

from coop_jax._src.compat import naming

Said = tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[str, ...]]


def is_jitted(fn: Any) -> bool:
    """Whether a function is one that `jax.jit` returned."""
    return isinstance(getattr(fn, "_jit_info", None), _pjit.PjitInfo) and hasattr(fn, "__wrapped__")


def said_of(fn: Any) -> Said:
    """What is donated and static of a function's arguments because a `jax.jit` says so.

    Also of one that is bound to arguments, a `functools.partial` or a method. Nothing is, of other
    functions: a wrapper may pass on other arguments than it is given.
    """
    if isinstance(fn, _jaxlib.PjitFunction):
        return donated_and_static(fn)
    inner = fn
    while isinstance(inner, (functools.partial, types.MethodType)):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    if inner is fn or not isinstance(inner, _jaxlib.PjitFunction):
        return (), (), (), ()
    _, donated, _, static = donated_and_static(inner)
    known = inspect.signature(fn).parameters  # by name: bound arguments move the positions
    names = ([name for name in said if name in known] or None for said in (donated, static))
    return naming.resolve(fn, None, next(names), None, next(names))


def donated_and_static(fn: Any) -> Said:
    """Positions and names of its arguments that are donated, then of those that are static."""
    info = fn._jit_info
    return (
        tuple(info.donate_argnums),
        tuple(info.donate_argnames),
        tuple(info.static_argnums),
        tuple(info.static_argnames),
    )
