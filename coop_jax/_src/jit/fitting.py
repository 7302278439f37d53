"""Plans and compiles until what XLA needs is within the budget.

XLA needs a little more than a plan has alive: what fusion holds, how buffers fit beside each other.
How much more is seen once it has compiled, and the next plan is made for so much less.

Thread rule: as what it calls. Cost: a compilation each attempt, a few at most.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from coop_jax._src.jit.constants import TUNED
from coop_jax._src.jit.program_planner import PlannedProgram, ProgramPlanner
from coop_jax._src.util import progress


class Compiled(Protocol):
    """What is made of a plan."""

    @property
    def needed_bytes(self) -> int:
        """What XLA needs for it on one device."""


C = TypeVar("C", bound=Compiled)


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A plan that was compiled.

    Attributes:
      planned_bytes: what it was planned for.
      predicted_bytes: the most that its values take at one time.
      needed_bytes: what XLA needs for it.
      recompute_share: the estimated part of the time that recomputations take.
      plan_seconds, compile_seconds: what it took.
    """

    planned_bytes: int
    predicted_bytes: int
    needed_bytes: int
    recompute_share: float
    plan_seconds: float
    compile_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted(Generic[C]):
    """What came of it.

    Attributes:
      attempts: in order; the last one fits, or none does.
      planned: that one; where none fits, the one that needs least.
      made: what was made of it.
      smallest_bytes: where none fits, a budget that does.
    """

    attempts: tuple[Attempt, ...]
    planned: PlannedProgram
    made: C
    smallest_bytes: int | None = None

    @property
    def needed_bytes(self) -> int:
        """What XLA needs for the last one."""
        return self.attempts[-1].needed_bytes


def fit(
    planner: ProgramPlanner,
    compiled: Callable[[PlannedProgram], C],
    budget_bytes: int,
) -> Fitted[C]:
    """Plans and compiles a program for a budget.

    Args:
      planner: of the program.
      compiled: compiles a plan.
      budget_bytes: on one device.

    Returns:
      The attempts, and what came of the last one.
    """
    search = _Search(planner, compiled)
    capacity = int(budget_bytes * TUNED.first_fraction)
    with progress.progress_bar(
        TUNED.max_attempts + len(TUNED.least_capacity_factors), "planning and compiling"
    ) as bar:
        for _ in range(TUNED.max_attempts):
            attempt = search.attempt(capacity)
            bar.update()
            if attempt is None:
                break
            if attempt.needed_bytes <= budget_bytes:
                return search.found()
            # From what the plan has alive, which may be less than it was made for: so the next one
            # is another one.
            excess = attempt.needed_bytes / budget_bytes
            capacity = int(attempt.predicted_bytes / excess * TUNED.correction)
        smallest: Fitted[C] | None = None
        for attempt in search.smallest_plans():
            bar.update()
            found = search.found()
            if attempt.needed_bytes <= budget_bytes:
                return found
            if smallest is None or attempt.needed_bytes < smallest.needed_bytes:
                smallest = found
    assert smallest is not None
    return dataclasses.replace(
        smallest, attempts=search.found().attempts, smallest_bytes=smallest.needed_bytes
    )


def least_needed(planner: ProgramPlanner, compiled: Callable[[PlannedProgram], C]) -> int:
    """What XLA needs for the least of the plans that `fit` ends with, whatever the budget."""
    return min(a.needed_bytes for a in _Search(planner, compiled).smallest_plans())


class _Search(Generic[C]):
    def __init__(self, planner: ProgramPlanner, compiled: Callable[[PlannedProgram], C]):
        self._planner = planner
        self._compiled = compiled
        self.attempts: list[Attempt] = []
        self._last: tuple[PlannedProgram, C] | None = None

    def found(self) -> Fitted[C]:
        """What there is so far; the last attempt is the one that counts."""
        assert self._last is not None
        return Fitted(tuple(self.attempts), *self._last)

    def smallest_plans(self) -> Iterator[Attempt]:
        """The smallest plans there are, compiled; always the same ones.

        XLA may need less for one that has a little more alive, but computes less again.
        """
        least = self._planner.least_capacity()
        for room in TUNED.least_capacity_factors:
            attempt = self.attempt(int(least * room))
            if attempt is not None:
                yield attempt

    def attempt(self, capacity_bytes: int) -> Attempt | None:
        """The plan of a capacity, compiled; None without a plan."""
        begin = time.perf_counter()
        planned = self._planner.plan(capacity_bytes)
        between = time.perf_counter()
        if planned is None:
            return None
        made = self._compiled(planned)
        attempt = Attempt(
            capacity_bytes,
            planned.predicted_bytes,
            made.needed_bytes,
            planned.recompute_share,
            between - begin,
            time.perf_counter() - between,
        )
        self.attempts.append(attempt)
        self._last = planned, made
        return attempt
