"""Caches that forget what was not asked for in a while.

Model: a mapping that holds what was used last. Its bound is low at first, for programs whose shapes
are new each time; where something is asked for again that it has just forgotten, the bound was too
low for the program, and doubles. `jax.clear_caches` empties every such cache.

Invariant: nothing is evicted that was used more recently than anything that stays.
Thread rule: any thread. Cost: O(1).
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from coop_jax._src.compat import caches

V = TypeVar("V")


class Recent(Generic[V]):
    """What was used last, by key.

    Attributes:
      bound: the most that it holds now.
      latest: what its owner keeps beside it, which goes when it is emptied; None at first.
    """

    __slots__ = ("__weakref__", "_gone", "_held", "_lock", "_most", "bound", "latest")

    def __init__(self, bound: int, most: int = 1 << 15):
        """An empty one that holds `bound` at first, and never more than `most`."""
        self.bound = bound
        self.latest: Any = None
        self._most = most
        self._held: collections.OrderedDict[Hashable, V] = collections.OrderedDict()
        self._gone = set[int]()  # hashes of keys that were forgotten since the bound is what it is
        # Not a plain lock: an exception between two bytecodes may leave it to its thread.
        self._lock = threading.RLock()
        caches.cleared_with_jax(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recent, (self.bound, self._most)  # a copy knows nothing

    def __len__(self) -> int:
        return len(self._held)

    def values(self) -> list[V]:
        """All that is kept, what was used last at the end."""
        with self._lock:
            return list(self._held.values())

    def get(self, key: Hashable) -> V | None:
        """What is kept of a key."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            elif self._gone and hash(key) in self._gone and self.bound < self._most:
                self.bound *= 2
                self._gone.clear()
            return found

    def __setitem__(self, key: Hashable, value: V) -> None:
        gone: V | None = None  # let go of when the lock is free: it may run code of any kind
        with self._lock:
            self._held[key] = value
            self._held.move_to_end(key)
            if len(self._held) > self.bound:
                forgotten, gone = self._held.popitem(last=False)
                if len(self._gone) >= 4 * self._most:
                    self._gone.clear()
                self._gone.add(hash(forgotten))
        del gone

    def cache_clear(self) -> None:
        """Forgets everything; a name that JAX calls."""
        held = self._held
        with self._lock:
            self._held = collections.OrderedDict()
            self._gone.clear()
        self.latest = None
        held.clear()
