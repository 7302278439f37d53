"""What no plan can do without: a lower bound for the recomputation of programs of any size.

While an operation runs for the first time, what it reads and makes is in memory. Of the other
values that are read later, each is either in memory as well, or what makes it runs later: again, or
for the first time if nothing before has needed it. What runs later finds what it reads in memory
now, or that is made later, too; what ran before found what it reads made before. The cheapest way
to keep the values of one moment within the budget under these conditions is a linear program
(values may be kept, and operations run, in part). Its solution is a bound for every schedule in
which no operation runs earlier than in the program's order, wherever values lie.

Nothing here shares code with the engine. Solved by SciPy (HiGHS).
Source: one stage of the mixed-integer program of Jain et al., "Checkmate" (MLSys 2020), relaxed,
with what happens after that stage summed up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.optimize
import scipy.sparse

import coop_jax

_MEGABYTE = 1e6
_MICROSECOND = 1e-6


@dataclasses.dataclass(frozen=True)
class _Flow:
    """A program by storages.

    Attributes:
      sizes: bytes of each.
      made_at: the operation that makes each; -1 for what is there from the beginning.
      until: the last operation that reads each; the number of operations if that is wanted at the
        end or belongs to the caller.
      reads, makes: storages, by operation.
      overwritten: bytes of operands that each operation may overwrite.
      seconds: by operation.
    """

    sizes: list[int]
    made_at: list[int]
    until: list[int]
    reads: list[frozenset[int]]
    makes: list[frozenset[int]]
    overwritten: list[int]
    seconds: Sequence[float]

    def live_bytes(self) -> list[int]:
        """Of what is there while each operation runs, if nothing is recomputed."""
        change = np.zeros(len(self.reads) + 2, np.int64)
        for size, made, until in zip(self.sizes, self.made_at, self.until, strict=True):
            change[max(made, 0)] += size
            change[until + 1] -= size
        return list(np.cumsum(change)[: len(self.reads)] - np.array(self.overwritten))


def _flow(traced: coop_jax.TracedProgram, seconds: Sequence[float]) -> _Flow:
    program = traced.program
    storage = [value.storage for value in program.values]
    end = len(program.operations)
    sizes = [s.nbytes for s in program.storages]
    made_at, until = [-1] * len(sizes), [-1] * len(sizes)
    reads = [frozenset(storage[v] for v in op.operands) for op in program.operations]
    makes = [frozenset(storage[v] for v in op.results) for op in program.operations]
    for number in range(end):
        for s in makes[number]:
            made_at[s] = number
        for s in reads[number] | makes[number]:
            until[s] = number
    stays = [v for v, donated in zip(program.inputs, program.donated, strict=True) if not donated]
    for v in (*stays, *(v for v, _ in program.constants), *program.outputs):
        until[storage[v]] = end
    overwritten = [
        sum(sizes[s] for s in {storage[op.operands[k]] for k in op.in_place if k >= 0})
        for op in program.operations
    ]
    return _Flow(sizes, made_at, until, reads, makes, overwritten, seconds)


def least_recompute_seconds(
    traced: coop_jax.TracedProgram,
    budget_bytes: int,
    cost_seconds: Sequence[float] | None = None,
    moments: int = 8,
) -> float:
    """Seconds that no schedule can save: a lower bound, 0 if nothing has to be recomputed.

    Args:
      traced: the program.
      budget_bytes: what values may take at once.
      cost_seconds: of each operation; those of the program itself if None.
      moments: at so many operations it is looked at: where most is alive, some way apart.

    Returns:
      Seconds; infinite if what one operation needs does not fit.
    """
    flow = _flow(traced, traced.cost_seconds(None) if cost_seconds is None else cost_seconds)
    live = flow.live_bytes()
    apart = max(1, len(live) // (4 * moments))
    chosen: list[int] = []
    for at in sorted(range(len(live)), key=lambda at: -live[at]):
        if len(chosen) == moments or live[at] <= budget_bytes:
            break
        if all(abs(at - other) >= apart for other in chosen):
            chosen.append(at)
    return max((_at(flow, moment, budget_bytes) for moment in chosen), default=0.0)


def _at(flow: _Flow, moment: int, budget_bytes: int) -> float:
    """The bound from what is alive while one operation runs."""
    here = flow.reads[moment] | flow.makes[moment]
    room = budget_bytes + flow.overwritten[moment] - sum(flow.sizes[s] for s in here)
    there = [s for s in range(len(flow.sizes)) if s not in here and flow.made_at[s] < moment]
    room -= sum(flow.sizes[s] for s in there if flow.made_at[s] < 0 and flow.until[s] > moment)
    if room < 0:
        return math.inf
    made = [s for s in there if flow.made_at[s] >= 0]
    # Variables: how far each value is kept, then how far each operation runs before and after.
    kept = {s: number for number, s in enumerate(made)}
    before = range(len(kept), len(kept) + moment)
    after = range(before.stop, before.stop + moment)
    rows: list[list[tuple[int, float]]] = []
    most: list[float] = []

    def at_least(terms: list[tuple[int, float]], least: float) -> None:
        rows.append([(column, -factor) for column, factor in terms])
        most.append(-least)

    for s in made:
        maker = flow.made_at[s]
        at_least([(before[maker], 1.0), (kept[s], -1.0)], 0.0)
        if flow.until[s] > moment:
            at_least([(kept[s], 1.0), (after[maker], 1.0)], 1.0)
    for operation in range(moment):
        at_least([(before[operation], 1.0), (after[operation], 1.0)], 1.0)
        for s in flow.reads[operation]:
            maker = flow.made_at[s]
            if maker >= 0:
                at_least([(before[maker], 1.0), (before[operation], -1.0)], 0.0)
            if s in kept:
                at_least([(kept[s], 1.0), (after[maker], 1.0), (after[operation], -1.0)], 0.0)
    for s in flow.reads[moment]:
        if flow.made_at[s] >= 0:
            at_least([(before[flow.made_at[s]], 1.0)], 1.0)
    rows.append([(kept[s], flow.sizes[s] / _MEGABYTE) for s in made])
    most.append(room / _MEGABYTE)
    entries = [(n, column, factor) for n, row in enumerate(rows) for column, factor in row]
    places, factors = [(n, column) for n, column, _ in entries], [f for _, _, f in entries]
    columns = len(kept) + 2 * moment
    costs = [s / _MICROSECOND for s in flow.seconds[:moment]]
    found = scipy.optimize.linprog(
        [0.0] * len(kept) + costs + costs,
        A_ub=scipy.sparse.csr_matrix(
            (factors, tuple(np.array(places).reshape(-1, 2).T)), shape=(len(rows), columns)
        ),
        b_ub=most,
        bounds=(0, 1),
        method="highs-ipm",
    )
    assert found.success, found.message
    return max(0.0, float(found.fun) - math.fsum(costs)) * _MICROSECOND
