"""What a session holds: the array of each resident storage, views of it, what lies outside.

Invariant: an array is held for a storage exactly while that is resident, so that dropping it here
is what gives its memory up. Thread rule: the session's.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax

from coop_jax._src.memory import PoolMemory


class Holdings:
    """Arrays by storage.

    Attributes:
      outside_bytes: held outside the pool now.
      peak_outside_bytes: the most of that so far.
      consumed: whether a donated array is gone; from then on the call has to finish.
    """

    __slots__ = (
        "_arrays",
        "_donated",
        "_hints",
        "_memory",
        "_outside",
        "_shaped",
        "_views",
        "consumed",
        "outside_bytes",
        "peak_outside_bytes",
    )

    def __init__(self, memory: PoolMemory):
        self._memory = memory
        self._arrays: dict[int, Any] = {}
        self._views: dict[int, dict[Hashable, jax.Array]] = {}
        self._outside: dict[int, int] = {}
        self._donated: set[int] = set()
        self._hints: dict[int, int] = {}
        self._shaped: set[int] = set()
        self.outside_bytes = 0
        self.peak_outside_bytes = 0
        self.consumed = False

    def __contains__(self, storage: int) -> bool:
        return storage in self._arrays

    def put(self, storage: int, array: Any) -> None:
        """Holds what an operation or the caller gave."""
        self._arrays[storage] = array

    def put_new(self, storage: int, array: Any) -> None:
        """Holds the first array of a storage, all of whose values have its shape so far."""
        self._arrays[storage] = array
        if self._shaped:
            self._shaped.discard(storage)

    def note_shapes(self, storage: int) -> None:
        """Says that values of a storage may have other shapes than its array."""
        self._shaped.add(storage)

    def donate(self, storage: int) -> None:
        """Marks an array of the caller's to be deleted when it is dropped."""
        self._donated.add(storage)

    def hint(self, storage: int) -> int:
        """Counts how many of a storage's values are said to be read no more."""
        count = self._hints[storage] = self._hints.get(storage, 0) + 1
        return count

    def note_outside(self, storage: int, nbytes: int) -> None:
        """Counts a storage that lies outside the pool."""
        if storage in self._outside:
            return
        rounded = -(-nbytes // 64) * 64
        self._outside[storage] = rounded
        self.outside_bytes += rounded
        self.peak_outside_bytes = max(self.peak_outside_bytes, self.outside_bytes)

    def is_outside(self, storage: int) -> bool:
        """Whether the storage lies outside the pool."""
        return storage in self._outside

    def array(self, storage: int, aval: Any) -> Any:
        """The array of a resident storage in the shape and dtype of `aval`."""
        base = self._arrays[storage]
        if storage not in self._shaped:
            return base
        if base.shape == aval.shape and base.dtype == aval.dtype:
            return base
        views = self._views.setdefault(storage, {})
        key = (aval.shape, aval.dtype)
        view = views.get(key)
        if view is None:
            # Where it lies now: the engine is already past the actions being carried out.
            offset = self._memory.offset_of(base)
            view = views[key] = self._memory.view(offset, self._memory.spec(aval))
        return view

    def drop_all(self, storages: Sequence[int] | None) -> None:
        """Lets go of storages that the engine says are gone."""
        for storage in storages or ():
            self.drop(storage)

    def drop(self, storage: int) -> None:
        """Lets go of one storage."""
        array = self._arrays.pop(storage, None)
        if storage in self._donated:
            self._donated.remove(storage)
            self.consumed = True
            self._memory.pool.reclaim(self._memory.offset_of(array))
            array.delete()
        if self._views:
            self._views.pop(storage, None)
        if self._hints:
            self._hints.pop(storage, None)
        nbytes = self._outside.pop(storage, None)
        if nbytes is not None:
            self.outside_bytes -= nbytes

    def clear(self) -> None:
        """Lets go of everything; the session has ended."""
        self._arrays.clear()
        self._views.clear()
        self._outside.clear()
        self._donated.clear()
