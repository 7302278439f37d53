"""What plans around checkpoints keep: the ways to choose it that are tried.

A program can be planned as one with checkpoints (see `cc/core/planner/checkpoint_plan.h`): some
values are kept over its fullest moment, the rest is made again. Which are cheapest to keep is a
minimum cut; around which narrow places the program is divided, and how much of the pool is left
free so that addresses are found for everything, is tried.

Thread rule: functions of their arguments; `ways` works in as many threads as there are cores.
Cost: a minimum cut for each price of memory that is tried, some hundred in all; less than a second
for some thousand operations, two for 74,000. `ways_at_cuts` is linear in the program: less than
half a second for 74,000.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Iterable, Sequence

from coop_jax import _core
from coop_jax._src.planning import constants


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Checkpoints:
    """One way.

    Attributes:
      seconds: of what is made again.
      pool_bytes: the most that are alive in the pool at once.
      kept: storages.
    """

    seconds: float
    pool_bytes: int
    kept: tuple[int, ...]

    def by_storage(self, storages: int) -> list[bool]:
        """Whether each of so many storages is kept."""
        marks = [False] * storages
        for storage in self.kept:
            marks[storage] = True
        return marks


def ways(program: _core.Program, input_where: Sequence[int], pool_bytes: int) -> list[Checkpoints]:
    """What may be kept, with what is made again in least time first.

    Args:
      program: the program.
      input_where: where its inputs are, as for `_core.make_plan`.
      pool_bytes: what the plan may use.
    """

    def within(cut: tuple[int, bool]) -> list[tuple[list[int], int, float]]:
        parts, first = cut
        return _core.checkpoints_within(
            program,
            input_where=input_where,
            pool_bytes=pool_bytes,
            shares=constants.TUNED.cut_shares,
            parts=parts,
            first=first,
        )

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1, "coop_jax-cut") as threads:
        return _sorted(threads.map(within, constants.TUNED.cuts))


def ways_at_cuts(program: _core.Program, input_where: Sequence[int]) -> list[Checkpoints]:
    """What is alive at narrow places, many of them, as what is kept; see `_core`.

    Where memory is shortest that is less than `ways` finds.

    Args, returns: as for `ways`.
    """
    parts = constants.TUNED.parts
    return _sorted(
        _core.checkpoints_at_cuts(program, input_where=input_where, parts=parts, first=first)
        for first in (False, True)
    )


def _sorted(found: Iterable[list[tuple[list[int], int, float]]]) -> list[Checkpoints]:
    by_kept = {
        tuple(kept): Checkpoints(seconds, nbytes, tuple(kept))
        for ways_of_cut in found
        for kept, nbytes, seconds in ways_of_cut
    }
    return sorted(by_kept.values())
