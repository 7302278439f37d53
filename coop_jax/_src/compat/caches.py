"""Caches that `jax.clear_caches` empties with its own.

Model: JAX keeps weak references to its caches, and calls `cache_clear` of each.
Thread rule: as JAX's. Cost: O(1).
"""

from __future__ import annotations

from typing import Any, Protocol

from jax._src import util as _util


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
