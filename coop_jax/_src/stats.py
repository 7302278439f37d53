"""Statistics of a runtime: cheap enough to be always on.

Names and meanings are those of the paper's section 4.2. `compute_seconds` and `recompute_seconds`
are *measured* where operations run in order on the caller's thread (CPU). Where the device runs
behind the caller (GPU) their sum is, the wait for it included; where a plan is repeated, the sum is
shared out by what operations are expected to take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """What a runtime did since it was made. Sizes in bytes, times in seconds.

    Attributes:
      budget_bytes: the cap on everything, None for none.
      peak_bytes: most bytes held at once: pool, arrays outside it and workspace.
      bytes_in_use: bytes held now in the pool.
      external_bytes: most bytes held at once outside the pool (inputs, small values).
      workspace_bytes: most temporary memory of one operation.
      operations: operations launched, recomputed ones not counted; a segment of several is one.
      evictions: storages evicted to make room.
      rematerialisations: operations run again to bring a value back.
      compute_seconds: time in operations, recomputed ones not counted.
      recompute_seconds: time in recomputed operations.
      search_seconds: time spent choosing what to evict.
      overhead: recompute_seconds / compute_seconds.
      fragmentation: mean of free bytes / pool bytes at the moments when a request found no block,
        before evicting.
      max_fragmentation: the largest of these.
      compilations: operations compiled.
    """

    budget_bytes: int | None
    peak_bytes: int
    bytes_in_use: int
    external_bytes: int
    workspace_bytes: int
    operations: int
    evictions: int
    rematerialisations: int
    compute_seconds: float
    recompute_seconds: float
    search_seconds: float
    overhead: float
    fragmentation: float
    max_fragmentation: float
    compilations: int


@dataclasses.dataclass(slots=True)
class Counters:
    """The mutable form, owned by one runtime and changed only under its lock."""

    peak_bytes: int = 0
    external_bytes: int = 0
    workspace_bytes: int = 0
    operations: int = 0
    evictions: int = 0
    rematerialisations: int = 0
    compute_seconds: float = 0.0
    recompute_seconds: float = 0.0
    search_seconds: float = 0.0
    fragmentation_sum: float = 0.0
    fragmentation_count: int = 0
    max_fragmentation: float = 0.0
    # Called with each executable that ran and its measured seconds, if somebody asks.
    recorder: Callable[[Any, float], None] | None = None

    def freeze(self, *, budget_bytes: int | None, bytes_in_use: int, compilations: int) -> Stats:
        """The public, frozen form."""
        return Stats(
            budget_bytes=budget_bytes,
            peak_bytes=self.peak_bytes,
            bytes_in_use=bytes_in_use,
            external_bytes=self.external_bytes,
            workspace_bytes=self.workspace_bytes,
            operations=self.operations,
            evictions=self.evictions,
            rematerialisations=self.rematerialisations,
            compute_seconds=self.compute_seconds,
            recompute_seconds=self.recompute_seconds,
            search_seconds=self.search_seconds,
            overhead=self.recompute_seconds / self.compute_seconds if self.compute_seconds else 0.0,
            fragmentation=mean_fragmentation(
                self.fragmentation_sum, self.fragmentation_count, self.max_fragmentation
            ),
            max_fragmentation=self.max_fragmentation,
            compilations=compilations,
        )


def mean_fragmentation(total: float, count: int, most: float) -> float:
    """The mean of `count` of them, 0 for none; rounding does not take it above the largest."""
    return min(total / max(1, count), most)
