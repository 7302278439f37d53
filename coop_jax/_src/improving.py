"""Better plans by search: the plans of the policies, improved by trying variants of them.

Model: a plan follows from a policy and from what each storage is worth, a factor of its score. The
search starts with the policies' own plans (every storage worth 1), changes the worth of storages of
one kind (or of a stretch of them, or of a single one) by a random factor, plans again, and keeps
what recomputes no longer than before. Storages are of one kind if the same operation of a
structurally equal program part makes them: what holds for one layer mostly holds for the others.

Invariants: the answer is never worse than the best plan given. It depends on the arguments alone,
not on the time or the number of cores: effort is counted in operations planned, and candidates come
in rounds of fixed size.
Thread rule: plans are made in as many threads as there are cores; the planner lets go of the
interpreter lock. Cost: about as many operations planned as `effort` says, and no more
than some thousand plans.
Source: ours; random local search with several starts.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import random
from collections.abc import Callable, Sequence

from coop_jax import _core
from coop_jax._src.program import Program
from coop_jax._src.progress import progress_bar

# Plans that recompute less than this share of the step are good enough.
_GOOD_ENOUGH = 1e-3

# So many starts are kept, and the best of them gets this share of the attempts.
_STARTS = 4
_ON_THE_BEST = 0.7

# At most so many plans are made, and so many without finding a better one.
_MOST_PLANS = 2048
_PATIENCE = 768

# Candidates planned at once; all are variants of what was best before any of them.
_ROUND = 8

# Changes of a candidate: this share of them is of a kind, the others of one storage.
_OF_A_KIND = 0.5
_OF_A_STRETCH = 0.3
_MORE_THAN_ONE = 0.4
_LEAST_FACTOR, _MOST_FACTOR = math.exp(0.3), math.exp(5)
_LEAST_WORTH, _MOST_WORTH = 1e-6, 1e6


@dataclasses.dataclass(slots=True)
class Start:
    """A policy with its best plan so far, and what storages are worth in it.

    Attributes:
      policy: what the plan was made by.
      pin_early: whether outputs are never evicted once computed.
      plan: the plan, feasible.
      worth: by storage; empty for 1 each.
    """

    policy: _core.Policy
    pin_early: bool
    plan: _core.Plan
    worth: list[float] = dataclasses.field(default_factory=list)

    @property
    def recompute_seconds(self) -> float:
        """What the search makes less."""
        seconds: float = self.plan.stats["recompute_seconds"]
        return seconds


# plan(start, worth, most seconds of recomputation): a variant, infeasible if it takes longer.
PlanVariant = Callable[[Start, Sequence[float], float], _core.Plan]


def improved(
    program: Program, starts: Sequence[Start], plan_variant: PlanVariant, effort: int
) -> _core.Plan:
    """The best plan that a search finds.

    Args:
      program: what is planned.
      starts: feasible plans of some policies, at least one.
      plan_variant: plans a variant of a start.
      effort: operations to plan, recomputations included, before it stops.
    """
    kept = sorted(starts, key=lambda s: s.recompute_seconds)[:_STARTS]
    kinds = _Kinds(program)
    enough = _GOOD_ENOUGH * kept[0].plan.stats["compute_seconds"]
    if not kinds or kept[0].recompute_seconds <= enough:
        return kept[0].plan
    generator = random.Random(0)
    operations = max(1, len(program.operations))
    spent = since = 0
    rounds = max(1, min(effort // operations, _MOST_PLANS) // _ROUND)
    with (
        concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1, "coop_jax-plan") as threads,
        progress_bar(rounds, "improving the plan") as bar,
    ):
        for _ in range(rounds):
            least = kept[0].recompute_seconds
            if spent >= effort or since >= _PATIENCE or least <= enough:
                break
            candidates = []
            for _ in range(_ROUND):
                best = generator.random() < _ON_THE_BEST
                start = kept[0] if best else generator.choice(kept)
                worth = kinds.changed(start.worth, generator)
                candidates.append((start, worth, start.recompute_seconds))
            plans = threads.map(plan_variant, *zip(*candidates, strict=True))
            for (start, worth, _), plan in zip(candidates, plans, strict=True):
                spent += operations + plan.stats["recomputations"]
                if plan.feasible and plan.stats["recompute_seconds"] <= start.recompute_seconds:
                    start.plan, start.worth = plan, worth
            kept.sort(key=lambda s: s.recompute_seconds)
            since = 0 if kept[0].recompute_seconds < least else since + _ROUND
            bar.update()
    return kept[0].plan


class _Kinds:
    """The storages that can be evicted, by what makes them; chosen by their bytes."""

    def __init__(self, program: Program):
        outputs = {program.values[v].storage for v in program.outputs}
        kinds: dict[tuple[object, int], list[int]] = {}
        for operation in program.operations:
            for number, value in enumerate(operation.results):
                storage = program.values[value].storage
                if not program.storages[storage].outside and storage not in outputs:
                    kinds.setdefault((operation.kernel.key, number), []).append(storage)
        sizes = [s.nbytes for s in program.storages]
        self._count = len(sizes)
        self._members = list(kinds.values())
        self._kind_bytes = [sum(sizes[s] for s in members) for members in self._members]
        self._storages = [s for members in self._members for s in members]
        self._bytes = [sizes[s] for s in self._storages]

    def __bool__(self) -> bool:
        return sum(self._bytes) > 0

    def changed(self, worth: Sequence[float], generator: random.Random) -> list[float]:
        """Another worth of some storages."""
        found = list(worth) or [1.0] * self._count
        while True:
            log = generator.uniform(math.log(_LEAST_FACTOR), math.log(_MOST_FACTOR))
            factor = math.exp(log if generator.random() < 0.5 else -log)
            for storage in self._choose(generator):
                found[storage] = min(_MOST_WORTH, max(_LEAST_WORTH, found[storage] * factor))
            if generator.random() >= _MORE_THAN_ONE:
                return found

    def _choose(self, generator: random.Random) -> Sequence[int]:
        if generator.random() >= _OF_A_KIND:
            return generator.choices(self._storages, self._bytes)
        members = generator.choices(self._members, self._kind_bytes)[0]
        if generator.random() >= _OF_A_STRETCH:
            return members
        first = generator.randrange(len(members))
        return members[first : generator.randrange(first, len(members)) + 1]
