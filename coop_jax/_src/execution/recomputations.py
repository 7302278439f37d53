"""Which operations are run again: how often, and what that is estimated to take.

Model: a plan runs the same operations again in each call, so what they are is written down once for
a plan (`Tally`), and a call only counts one more. A session counts at its end.

Invariant: together the counts are `Stats.rematerialisations`.
Thread rule: under the runtime's lock. Cost: linear in a plan when it is made; O(1) a call.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.ir.program import Operation


@dataclasses.dataclass(frozen=True, slots=True)
class RecomputedOperation:
    """An operation of a runtime's calls that was run again.

    Attributes:
      operation: its primitives, "dot_general+tanh" for instance.
      source: "file:line (function)" of the user's program; "" where none is known, as of what runs
        operation by operation.
      count: how often it was run again, in all calls.
      seconds: what that is estimated to take, by the cost model.
    """

    operation: str
    source: str
    count: int
    seconds: float


@dataclasses.dataclass(slots=True, eq=False)
class Tally:
    """What a plan runs again in a call, and how many calls there were.

    Attributes:
      operations: of one call.
      calls: how many, since they were last added to the totals.
    """

    operations: tuple[RecomputedOperation, ...]
    calls: int = 0

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Tally:
        """The tally of a plan that runs these again."""
        totals = Totals()
        for op in operations:
            totals.add(op.kernel.label, op.source, 1, op.kernel.cost_seconds)
        return cls(totals.operations())


class Totals:
    """What was run again in all calls of a runtime."""

    __slots__ = ("_counts", "_seconds", "_tallies")

    def __init__(self) -> None:
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._seconds: dict[tuple[str, str], float] = collections.defaultdict(float)
        self._tallies: list[Tally] = []

    def watch(self, tally: Tally) -> None:
        """Counts the calls of a plan from now on."""
        self._tallies.append(tally)

    def forget(self, tally: Tally) -> None:
        """The plan will not be used any more."""
        self._tallies = [other for other in self._tallies if other is not tally]
        self._add_calls(tally)

    def add(self, operation: str, source: str, count: int, seconds: float) -> None:
        """Adds what was run again."""
        self._counts[operation, source] += count
        self._seconds[operation, source] += seconds

    def add_kernel(self, kernel: Kernel, count: int) -> None:
        """Adds a kernel that was run again, nobody knows from which line."""
        self.add(kernel.label, "", count, count * kernel.cost_seconds)

    def operations(self) -> tuple[RecomputedOperation, ...]:
        """Everything so far, what takes longest first."""
        for tally in self._tallies:
            self._add_calls(tally)
        found = [
            RecomputedOperation(operation, source, count, self._seconds[operation, source])
            for (operation, source), count in self._counts.items()
        ]
        return tuple(sorted(found, key=lambda x: (-x.seconds, -x.count, x.operation, x.source)))

    def _add_calls(self, tally: Tally) -> None:
        calls, tally.calls = tally.calls, 0
        if calls:
            for op in tally.operations:
                self.add(op.operation, op.source, op.count * calls, op.seconds * calls)
