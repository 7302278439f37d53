"""Plans around checkpoints: which of the ways to choose what is kept are planned.

Where addresses for a way are found ahead, nothing is left to decide: the plan recomputes what the
way says. What does not fit by itself may yet do if the engine evicts more. In long programs every
plan takes long, so the first that fits is taken, and each way tried needs less memory than the last
one.

Thread rule: an `Around` plans on the thread of its caller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from coop_jax import _core
from coop_jax._src.planning import constants, keep_choices
from coop_jax._src.planning.local_search import Start, close_seconds, is_better

# planned(by storage whether it is kept, only packed, most seconds of recomputation or 0 for any).
Planned = Callable[[Sequence[bool], bool, float], Start]


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """Plans a program around checkpoints.

    Attributes:
      engine_program: the program.
      input_where: where its inputs are, as for `_core.make_plan`.
      pool_bytes: what a plan may use.
      planned: makes a plan; infeasible if it recomputes for longer than it may.
    """

    engine_program: _core.Program
    input_where: Sequence[int]
    pool_bytes: int
    planned: Planned

    def of_few(self, best: Start) -> list[Start]:
        """The plans that fit, for a program of few operations.

        Args:
          best: what is worth a plan is at most so bad that a search could make it better than this.
        """
        ways = keep_choices.ways(self.engine_program, self.input_where, self.pool_bytes)
        fitting = [way for way in ways if way.pool_bytes <= self.pool_bytes]
        for way in fitting[: constants.TUNED.most_packed]:
            if way.seconds >= close_seconds(best.plan):
                break
            start = self._start(way, best, only_packed=True)
            if start.plan.feasible:  # the others recompute more
                return [start]
        # Perhaps what does not fit by itself does if more is evicted.
        ways.sort(key=lambda way: max(way.pool_bytes, self.pool_bytes))
        found: list[Start] = []
        for way in ways[: constants.TUNED.most_unpacked]:
            if way.seconds >= close_seconds(best.plan):
                continue
            start = self._start(way, best, only_packed=False)
            if start.plan.feasible:
                found.append(start)
            if is_better(start.plan, best.plan):
                best = start
        return found

    def of_many(self, best: Start) -> list[Start]:
        """The first plan that fits, if any, for a program of many operations.

        Args:
          best: as for `of_few`.
        """
        ways = keep_choices.ways(self.engine_program, self.input_where, self.pool_bytes)
        ways += keep_choices.ways_at_cuts(self.engine_program, self.input_where)
        tuned, most_bytes, tried = constants.TUNED, self.pool_bytes, 0
        for way in sorted(ways):
            if way.seconds >= close_seconds(best.plan) or tried == tuned.most_of_large:
                break
            if way.pool_bytes > most_bytes:
                continue
            most_bytes, tried = int(way.pool_bytes * tuned.next_share), tried + 1
            start = self._start(way, best, only_packed=False)
            if start.plan.feasible:
                return [start]
        return []

    def _start(self, way: keep_choices.Checkpoints, best: Start, *, only_packed: bool) -> Start:
        close = close_seconds(best.plan)
        kept = way.by_storage(self.engine_program.storage_count)
        return self.planned(kept, only_packed, 0.0 if math.isinf(close) else close)
