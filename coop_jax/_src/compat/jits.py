"""What `jax.jit` knows of a function that it compiles.

Known of both supported versions of JAX (0.10 to 0.12): the attribute that says how it was called.
"""

from __future__ import annotations

from typing import Any

from jax._src import pjit as _pjit


def is_jitted(fn: Any) -> bool:
    """Whether a function is one that `jax.jit` returned."""
    return isinstance(getattr(fn, "_jit_info", None), _pjit.PjitInfo) and hasattr(fn, "__wrapped__")


def donated_and_static(
    fn: Any,
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Positions and names of its arguments that are donated, then of those that are static."""
    info = fn._jit_info
    return (
        tuple(info.donate_argnums),
        tuple(info.donate_argnames),
        tuple(info.static_argnums),
        tuple(info.static_argnames),
    )
