"""What JAX keeps: caches of ours that `jax.clear_caches` empties, and lowered code that it lets go.

Model: JAX keeps weak references to its caches, and calls `cache_clear` of each.
Thread rule: as JAX's. Cost: O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jax._src import pjit as _pjit
from jax._src import util as _util
from jax._src.interpreters import pxla as _pxla


class Cache(Protocol):
    """What JAX can clear."""

    def cache_clear(self) -> None:
        """Forgets everything."""
        ...


def cleared_with_jax(cache: Cache) -> None:
    """Has `jax.clear_caches` empty a cache as long as that is alive."""
    _util.register_cache(cache, f"coop_jax {type(cache).__name__}")


class ClearedDict(dict[Any, Any]):
    """A dictionary that `jax.clear_caches` empties; compared and hashed by identity."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        cleared_with_jax(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def cache_clear(self) -> None:
        """As `clear`."""
        self.clear()


def lowered(
    jitted: jax.stages.Wrapped, specs: Sequence[jax.ShapeDtypeStruct]
) -> jax.stages.Lowered:
    """`jitted.lower(*specs)`, of which JAX keeps nothing once it is gone.

    From 0.12 on two of JAX's caches, 2,048 entries each, hold their own keys: one what is compiled
    of it, the other the jaxpr, and through it the executable.
    """
    traced = jitted.trace(*specs)
    result: jax.stages.Lowered = traced.lower()
    for cache in _OF_JAXPRS:
        cache.evict_weakref(traced.jaxpr)
    return result


_OF_JAXPRS = (_pjit._pjit_lower, _pxla._dce_jaxpr)
