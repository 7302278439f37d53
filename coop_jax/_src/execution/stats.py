"""Statistics of a runtime: cheap enough to be always on.

Names and meanings are those of the paper's section 4.2. `compute_seconds` and `recompute_seconds`
are *measured* where operations run in order on the caller's thread (CPU). Where the device runs
behind the caller (GPU) their sum is, the wait for it included; where a plan is repeated, the sum is
shared out by what operations are expected to take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from coop_jax import _core
from coop_jax._src.execution.recomputations import Totals
from coop_jax._src.util.options import format_bytes, format_seconds

if TYPE_CHECKING:
    from coop_jax._src.execution.executables import Executable


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
      calls: programs carried out: a step is one, or several under `jax.grad` and the like.
      last_call: the same of the last of them alone; None if there was none.
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
    calls: int = 0
    last_call: Stats | None = None

    def scalars(self, prefix: str = "coop_jax/") -> dict[str, float]:
        """The numbers by name, for writers of metrics (CLU, TensorBoard, Weights & Biases).

        Args:
          prefix: what names begin with.

        Returns:
          `prefix` + "total/" + the name of a field: since the runtime was made. `prefix` + "step/"
          + the name: of the last call; left out before the first. Fields that are None are left
          out, as is `calls` of the last call.

        Example:
          >>> import coop_jax, jax.numpy as jnp
          >>> runtime = coop_jax.Runtime("64MiB")
          >>> value = coop_jax.run(jnp.tanh, runtime=runtime)(jnp.ones(1024))
          >>> scalars = runtime.stats().scalars()
          >>> scalars["coop_jax/step/evictions"], scalars["coop_jax/total/calls"]
          (0.0, 1.0)
        """
        found = self._numbers(f"{prefix}total/")
        if self.last_call is not None:
            found |= self.last_call._numbers(f"{prefix}step/")
            del found[f"{prefix}step/calls"]
        return found

    def _numbers(self, prefix: str) -> dict[str, float]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["last_call"]
        return {prefix + name: float(n) for name, n in values.items() if n is not None}

    def __str__(self) -> str:
        """A line for people."""
        cap = "" if self.budget_bytes is None else f" of {format_bytes(self.budget_bytes)}"
        return (
            f"{self.calls} calls, {self.operations} operations in"
            f" {format_seconds(self.compute_seconds)}, {self.evictions} evictions,"
            f" {self.rematerialisations} recomputed in {format_seconds(self.recompute_seconds)}"
            f" ({self.overhead:.1%} overhead), peak {format_bytes(self.peak_bytes)}{cap},"
            f" {format_bytes(self.bytes_in_use)} in use, {self.compilations} compiled"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class CallCounts:
    """What one call does, apart from its measured seconds; of a plan, what each call by it does.

    Names, units and meanings are those of `Stats`, but for these.

    Attributes:
      search_seconds: of a plan, while it was made.
      fragmentation_sum: of free bytes / pool bytes at each request that found no block.
      fragmentation_count: how many such requests there were.
    """

    peak_bytes: int
    external_bytes: int
    workspace_bytes: int
    operations: int
    evictions: int
    rematerialisations: int
    search_seconds: float
    fragmentation_sum: float
    fragmentation_count: int
    max_fragmentation: float

    @classmethod
    def of(
        cls,
        engine: _core.EngineStats,
        *,
        peak_bytes: int,
        external_bytes: int,
        workspace_bytes: int,
    ) -> CallCounts:
        """What the engine of a call or plan counted, and what it does not know."""
        return cls(
            peak_bytes=peak_bytes,
            external_bytes=external_bytes,
            workspace_bytes=workspace_bytes,
            operations=engine.operations,
            evictions=engine.evictions,
            rematerialisations=engine.recomputations,
            search_seconds=engine.search_seconds,
            fragmentation_sum=engine.fragmentation_sum,
            fragmentation_count=engine.fragmentation_count,
            max_fragmentation=engine.fragmentation_max,
        )

    def with_unrolled(self, *, recomputations: int, evictions: int) -> CallCounts:
        """The same, where the program that was planned is a plan itself, which does so much."""
        return dataclasses.replace(
            self,
            rematerialisations=self.rematerialisations + recomputations,
            evictions=self.evictions + evictions,
        )


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
    calls: int = 0
    # Of the last call.
    last: CallCounts | None = None
    last_compute_seconds: float = 0.0
    last_recompute_seconds: float = 0.0
    last_compilations: int = 0
    # Up to the last call, with it.
    compute_seconds_before: float = 0.0
    recompute_seconds_before: float = 0.0
    compilations_before: int = 0
    # See `runtime_report`: of calls, of making plans in them, of searches in sessions.
    call_seconds: float = 0.0
    plan_seconds: float = 0.0
    session_search_seconds: float = 0.0
    recomputed: Totals = dataclasses.field(default_factory=Totals)
    # Called with each executable that ran and its measured seconds, if somebody asks.
    recorder: Callable[[Executable, float], None] | None = None

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
            calls=self.calls,
            last_call=self._last_call(budget_bytes, bytes_in_use),
        )

    def add(self, call: CallCounts, compilations: int) -> None:
        """Adds one call, whose seconds in operations were added already.

        Args:
          call: what it did.
          compilations: of the runtime's cache so far.
        """
        self._add(call)
        self.last = call
        self.last_compute_seconds = self.compute_seconds - self.compute_seconds_before
        self.last_recompute_seconds = self.recompute_seconds - self.recompute_seconds_before
        self.last_compilations = compilations - self.compilations_before
        self.compute_seconds_before = self.compute_seconds
        self.recompute_seconds_before = self.recompute_seconds
        self.compilations_before = compilations

    def _add(self, call: CallCounts) -> None:
        self.operations += call.operations
        self.evictions += call.evictions
        self.rematerialisations += call.rematerialisations
        self.search_seconds += call.search_seconds
        self.fragmentation_sum += call.fragmentation_sum
        self.fragmentation_count += call.fragmentation_count
        if call.max_fragmentation > self.max_fragmentation:
            self.max_fragmentation = call.max_fragmentation
        if call.peak_bytes > self.peak_bytes:
            self.peak_bytes = call.peak_bytes
        if call.external_bytes > self.external_bytes:
            self.external_bytes = call.external_bytes
        if call.workspace_bytes > self.workspace_bytes:
            self.workspace_bytes = call.workspace_bytes
        self.calls += 1

    def _last_call(self, budget_bytes: int | None, bytes_in_use: int) -> Stats | None:
        if self.last is None:
            return None
        one = Counters(
            compute_seconds=self.last_compute_seconds,
            recompute_seconds=self.last_recompute_seconds,
        )
        one._add(self.last)
        return one.freeze(
            budget_bytes=budget_bytes,
            bytes_in_use=bytes_in_use,
            compilations=self.last_compilations,
        )


def mean_fragmentation(total: float, count: int, most: float) -> float:
    """The mean of `count` of them, 0 for none; rounding does not take it above the largest."""
    return min(total / max(1, count), most)
