"""Which kernels of a device are kept: those that were used last, and those of plans.

Model: a kernel that somebody holds is found as long as it lives; beside that the ones that were
used last are kept alive (see `recent`). What is prepared for sessions holds kernels, too, and is
found without asking here: so all of that is forgotten now and then, and whatever is still used is
prepared again before its kernel is the one that was used least recently.

Thread rule: under the kernel cache's lock where it changes. Cost: O(1).
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

from coop_jax import _core
from coop_jax._src.ir import constants
from coop_jax._src.util.recent import Recent

K = TypeVar("K")


class Kernels(Generic[K]):
    """Kernels by key."""

    __slots__ = ("_alive", "_made", "_prepared", "recent")

    def __init__(self, prepared: Mapping[Any, _core.PreparedOperations]):
        """`prepared`: what holds kernels without being a plan; it may grow."""
        self._alive: weakref.WeakValueDictionary[Hashable, K] = weakref.WeakValueDictionary()
        self.recent: Recent[K] = Recent(constants.TUNED.kept_kernels)
        self._made = 0  # since what is prepared was forgotten
        self._prepared = prepared

    def find(self, key: Hashable) -> K | None:
        """The kernel of a key, which is kept for longer now."""
        found = self.recent.get(key)
        if found is None and (found := self._alive.get(key)) is not None:
            self.recent[key] = found
        return found

    def keep(self, key: Hashable, kernel: K) -> K:
        """Adds a kernel; if another thread was faster, it is that one's."""
        kept = self._alive.setdefault(key, kernel)
        self.recent[key] = kept
        self._made += 1
        if self._made > self.recent.bound // 4:
            self._made = 0
            self._forget_prepared()
            if len(self.recent) == self.recent.bound:
                # What compiled code and its traces leave is small pieces, which malloc would keep.
                _core.return_freed_memory()
        return kept

    def clear(self) -> None:
        """Forgets all kernels but those of plans."""
        self.recent.cache_clear()
        self._forget_prepared()

    def _forget_prepared(self) -> None:
        for prepared in list(self._prepared.values()):
            prepared.clear()
