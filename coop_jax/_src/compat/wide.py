"""Types of 64 bits, which JAX makes and takes only where `jax_enable_x64` is on.

Model: a program may hold them in a block where that is on, and be compiled, run and read where it
is off. So whatever is traced, compiled, called or copied of such values is within `holding`.
Thread rule: JAX's configuration is per thread. Cost: O(types); nothing where x64 is on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import config as _config

_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def is_wide(dtype: Any) -> bool:
    """Whether JAX has this dtype only with x64."""
    return dtype in _WIDE


def any_wide(avals: Iterable[Any]) -> bool:
    """Whether one of these abstract values is of such a dtype."""
    return any(getattr(a, "dtype", None) in _WIDE for a in avals)


def holding(*, wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Where values of 64 bits are what they are, if there are such."""
    if not wide or _config.enable_x64.value:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = jax.enable_x64(True)
    return context


def calling(function: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The function, called where x64 is on."""

    def call(*arguments: Any) -> Sequence[Any]:
        try:
            with holding(wide=True):
                return function(*arguments)
        finally:  # a traceback that somebody keeps must not keep arrays
            del arguments

    return call
