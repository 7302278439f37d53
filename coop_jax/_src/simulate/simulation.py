"""What a simulated call does: sizes, times, decisions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from coop_jax import _core
from coop_jax._src.execution.stats import mean_fragmentation
from coop_jax._src.ir.program import Program
from coop_jax._src.planning import planner as planning
from coop_jax._src.planning import policies
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.planning.workspace import Provision
from coop_jax._src.util.options import format_bytes, format_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class PlanBasis:
    """What a plan was made for: what its numbers of operations and storages mean.

    Attributes:
      name: of the program.
      program: operations and storages.
      residency: where the inputs lie.
      provision: the workspace that operations have of their own.
      alignment_bytes: what blocks of the pool are rounded up to.
      cost_seconds: of each operation, expected or measured.
    """

    name: str
    program: Program
    residency: Residency
    provision: Provision
    alignment_bytes: int
    cost_seconds: Sequence[float]


@dataclasses.dataclass(frozen=True, slots=True)
class FailedPlan:
    """A plan that is not feasible: its actions are those up to where it failed.

    Attributes:
      plan: the plan.
      basis: what it was made for.
    """

    plan: _core.Plan
    basis: PlanBasis


@dataclasses.dataclass(frozen=True, slots=True)
class Simulation:
    """What a call under a budget does. Sizes in bytes, times in seconds; names as in `Stats`.

    Attributes:
      feasible: whether the call completes; if not, the other numbers are those until it failed.
      policy: what decided.
      budget_bytes: the cap on everything, None for none.
      unbudgeted_peak_bytes: what the call needs at its peak when nothing is evicted.
      smallest_budget_bytes: if not feasible, a budget that works: the smallest to 1%, or as near
        as some seconds of search come; None if feasible, or if none was found.
      peak_bytes: most bytes held at once: pool, arrays outside it and workspace.
      external_bytes: most bytes held at once outside the pool (inputs, small values).
      workspace_bytes: the most temporary memory of one operation, as assumed.
      workspace_is_known: whether workspace was given or compiled, so that a call does the same; if
        not, it counts as zero, and a call may need that much more.
      operations: operations run, recomputed ones not counted.
      evictions: storages evicted to make room.
      rematerialisations: operations run again to bring a value back.
      compute_seconds: time in operations, recomputed ones not counted; by the cost model.
      recompute_seconds: time in recomputed operations; by the cost model.
      overhead: recompute_seconds / compute_seconds.
      fragmentation: mean of free bytes / pool bytes at the moments when a request found no block,
        before evicting.
      max_fragmentation: the largest of these.
      searches: requests that found no block.
      search_seconds: time spent choosing what to evict, measured here.
      mean_search_seconds, p99_search_seconds, max_search_seconds: of one search.
      plan: the plan itself.
      basis: what it was made for; None where XLA places the buffers (`coop_jax.jit`).
    """

    feasible: bool
    policy: policies.Policy
    budget_bytes: int | None
    unbudgeted_peak_bytes: int
    smallest_budget_bytes: int | None
    peak_bytes: int
    external_bytes: int
    workspace_bytes: int
    workspace_is_known: bool
    operations: int
    evictions: int
    rematerialisations: int
    compute_seconds: float
    recompute_seconds: float
    overhead: float
    fragmentation: float
    max_fragmentation: float
    searches: int
    search_seconds: float
    mean_search_seconds: float
    p99_search_seconds: float
    max_search_seconds: float
    plan: _core.Plan = dataclasses.field(repr=False, compare=False)
    basis: PlanBasis | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """A line for people."""
        cap = "no budget" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        without = format_bytes(self.unbudgeted_peak_bytes)
        if not self.feasible:
            smallest = self.smallest_budget_bytes
            would = "" if smallest is None else f", and into {format_bytes(smallest)}"
            return f"does not fit into {cap}; fits into {without} without recomputation{would}"
        fits = "no budget" if self.budget_bytes is None else f"fits into {cap}"
        return (
            f"{fits}: peak {format_bytes(self.peak_bytes)} ({without} without a budget),"
            f" {self.operations} operations in {format_seconds(self.compute_seconds)},"
            f" {self.evictions} evictions, {self.rematerialisations} recomputed in"
            f" {format_seconds(self.recompute_seconds)} ({self.overhead:.1%} overhead)"
        )

    @property
    def actions(self) -> list[_core.Action]:
        """The actions in order: each a `Run`, an `Evict` or a `Drop`.

        Operations and storages are numbered as in the program's `operations` and `storages`; a
        storage with a higher number is a block of workspace. Each access makes a new list.

        Example:
          >>> import coop_jax, jax, jax.numpy as jnp
          >>> x = jax.ShapeDtypeStruct((1024,), jnp.float32)
          >>> found = coop_jax.simulate(lambda x: jnp.tanh(x).sum(), x)
          >>> [a.recompute for a in found.actions if isinstance(a, coop_jax.Run)]
          [False]
        """
        return self.plan.actions


def simulation_of(
    plan: _core.Plan,
    policy: policies.Policy,
    budget_bytes: int | None,
    unbudgeted_peak_bytes: int,
    *,
    smallest_budget_bytes: int | None,
    workspace_bytes: int,
    workspace_is_known: bool,
    compute_seconds: float,
    recompute_seconds: float,
    basis: PlanBasis | None = None,
) -> Simulation:
    """What a plan does, with what it does not say itself."""
    stats = plan.stats
    searches = sorted(plan.search_seconds)
    count = len(searches)
    return Simulation(
        feasible=plan.feasible,
        policy=policy,
        budget_bytes=budget_bytes,
        unbudgeted_peak_bytes=unbudgeted_peak_bytes,
        smallest_budget_bytes=smallest_budget_bytes,
        peak_bytes=planning.peak_bytes(stats),
        external_bytes=stats.peak_outside_bytes,
        workspace_bytes=workspace_bytes,
        workspace_is_known=workspace_is_known,
        operations=stats.operations,
        evictions=stats.evictions,
        rematerialisations=stats.recomputations,
        compute_seconds=compute_seconds,
        recompute_seconds=recompute_seconds,
        overhead=recompute_seconds / compute_seconds if compute_seconds else 0.0,
        fragmentation=mean_fragmentation(
            stats.fragmentation_sum,
            stats.fragmentation_count,
            stats.fragmentation_max,
        ),
        max_fragmentation=stats.fragmentation_max,
        searches=count,
        search_seconds=stats.search_seconds,
        mean_search_seconds=math.fsum(searches) / max(1, count),
        p99_search_seconds=searches[math.ceil(0.99 * count) - 1] if count else 0.0,
        max_search_seconds=searches[-1] if count else 0.0,
        plan=plan,
        basis=basis,
    )
