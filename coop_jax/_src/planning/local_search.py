"""Better plans by search: the plans of the policies, improved by trying variants of them.

Model: a plan follows from a policy, from what each storage is worth (a factor of its score), and
from the side of the pool where it goes. The search starts with the policies' own plans, changes
worth or side of the storages of one kind (or of a stretch of them, or of a single one) at random,
plans again, and keeps what is no worse than before. Storages are of one kind if the same operation
of a structurally equal program part makes them: what holds for one layer mostly holds for others.

Invariants: the answer is never worse than the best plan given. It depends on the arguments alone,
not on the time or the number of cores: effort is counted in operations planned, and candidates come
in rounds of fixed size.
Thread rule: plans are made in as many threads as there are cores; the planner lets go of the
interpreter lock. Cost: about as many operations planned as `effort` says, and no more than some
thousand plans.
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
from coop_jax._src.ir.program import Program
from coop_jax._src.planning import constants
from coop_jax._src.util.progress import progress_bar

# What `_core.make_plan` takes, and as far the other way.
_LEAST_WORTH, _MOST_WORTH = 1e-6, 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Hints:
    """What the planner is told of storages; empty for nothing.

    Attributes:
      worth: factors of their scores.
      sides: -1 for the left end of the pool, 1 for the right, 0 as the policy has it.
      places: offsets to take where they are free; -1 for none.
      held_for: operations that count as reading them, too; -1 for none.
      checkpoints: what is kept over the fullest moment, the rest being made again; empty: the
        engine decides as it goes.
      only_packed: with checkpoints, whether addresses for all of it are found ahead, or no plan is
        made; the engine has nothing to decide then.
    """

    worth: Sequence[float] = ()
    sides: Sequence[int] = ()
    places: Sequence[int] = ()
    held_for: Sequence[int] = ()
    checkpoints: Sequence[bool] = ()
    only_packed: bool = False

    def keeping(self, kept: Sequence[int], held_for: Sequence[int], factor: float) -> Hints:
        """The same, but some storages are worth so many times as much, and held.

        Args:
          kept: the storages.
          held_for: of all storages.
          factor: of what those kept were worth.
        """
        worth = [*self.worth, *[1.0] * (len(held_for) - len(self.worth))]
        for storage in kept:
            worth[storage] = min(_MOST_WORTH, worth[storage] * factor)
        return dataclasses.replace(self, worth=worth, held_for=held_for)


@dataclasses.dataclass(slots=True)
class Start:
    """A policy with its best plan so far, and what it was told for it.

    Attributes:
      policy: what the plan was made by.
      pin_early: whether outputs are never evicted once computed.
      plan: the plan.
      hints: what the planner was told.
    """

    policy: _core.Policy
    pin_early: bool
    plan: _core.Plan
    hints: Hints = dataclasses.field(default_factory=Hints)

    @property
    def badness(self) -> tuple[bool, float]:
        """What the search makes less."""
        return badness(self.plan)


def badness(plan: _core.Plan) -> tuple[bool, float]:
    """Orders plans: those that fit by what they recompute, others by how far they come."""
    if plan.feasible:
        return False, plan.stats.recompute_seconds
    return True, -plan.failed_operation


def is_better(plan: _core.Plan, best: _core.Plan) -> bool:
    """Whether a plan fits and recomputes less, or the other one does not fit."""
    if plan.feasible != best.feasible:
        return plan.feasible
    return plan.feasible and recompute_share(plan) < recompute_share(best)


def recompute_share(plan: _core.Plan) -> float:
    """Seconds of recomputation for each of computation."""
    stats = plan.stats
    return stats.recompute_seconds / max(stats.compute_seconds, 1e-30)


def close_seconds(best: _core.Plan) -> float:
    """So long may a plan recompute to become better than this one in a search; perhaps forever."""
    if not best.feasible:
        return math.inf
    return constants.TUNED.close_factor * best.stats.recompute_seconds


def is_good_enough(stats: _core.EngineStats) -> bool:
    """Whether so little is recomputed that it is not worth a search."""
    return stats.recompute_seconds <= constants.TUNED.good_enough_share * stats.compute_seconds


def _is_good_enough(plan: _core.Plan) -> bool:
    return plan.feasible and is_good_enough(plan.stats)


# plan(start, hints, most seconds of recomputation): a variant, infeasible if it takes longer.
PlanVariant = Callable[[Start, Hints, float], _core.Plan]


def improved(
    kinds: Kinds,
    operations: int,
    starts: Sequence[Start],
    plan_variant: PlanVariant,
    effort: int,
    outside_bytes: int,
) -> Start:
    """The best plan that a search finds, and what it was made by.

    Args:
      kinds: what the search may change.
      operations: of the program that is planned.
      starts: plans of some policies, at least one.
      plan_variant: plans a variant of a start.
      effort: operations to plan before it stops, recomputations included, also undone ones.
      outside_bytes: the most that a plan may have outside the pool at once.
    """
    tuned = constants.TUNED
    kept = sorted(starts, key=lambda s: s.badness)[: tuned.starts]
    if not kinds or _is_good_enough(kept[0].plan):
        return kept[0]
    generator = random.Random(0)
    operations = max(1, operations)
    spent = since = 0
    rounds = max(1, min(effort // operations, tuned.most_plans) // tuned.round_plans)
    with (
        concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1, "coop_jax-plan") as threads,
        progress_bar(rounds, "improving the plan") as bar,
    ):
        for _ in range(rounds):
            least = kept[0].badness
            if spent >= effort or since >= tuned.patience or _is_good_enough(kept[0].plan):
                break
            candidates = []
            for _ in range(tuned.round_plans):
                best = generator.random() < tuned.share_on_the_best
                start = kept[0] if best else generator.choice(kept)
                failed, seconds = start.badness
                hints = kinds.changed(start.hints, generator)
                candidates.append((start, hints, 0.0 if failed else seconds))
            plans = threads.map(plan_variant, *zip(*candidates, strict=True))
            for (start, hints, _), plan in zip(candidates, plans, strict=True):
                spent += operations + _effort_of_recomputing(plan)
                if plan.stats.peak_outside_bytes > outside_bytes:
                    continue
                if badness(plan) <= start.badness:
                    start.plan, start.hints = plan, hints
            kept.sort(key=lambda s: s.badness)
            since = 0 if kept[0].badness < least else since + tuned.round_plans
            bar.update()
    return kept[0]


def _effort_of_recomputing(plan: _core.Plan) -> int:
    """What planning its recomputations took, in operations planned.

    The more has to make room, the more has to come back, and the longer each search looks at.
    """
    per_effort = constants.TUNED.searches_per_effort
    return int(plan.tried_recomputations * (1 + plan.stats.searches / per_effort))


def kinds_of(program: Program) -> Kinds:
    """The storages that a plan of the program can evict, by what makes them."""
    outputs = {program.values[v].storage for v in program.outputs}
    kinds: dict[tuple[object, int], list[int]] = {}
    for operation in program.operations:
        for number, value in enumerate(operation.results):
            storage = program.values[value].storage
            if not program.storages[storage].outside and storage not in outputs:
                kinds.setdefault((operation.kernel.key, number), []).append(storage)
    return Kinds([s.nbytes for s in program.storages], list(kinds.values()))


class Kinds:
    """The storages that can be evicted, by what makes them; chosen by their bytes."""

    def __init__(self, storage_bytes: Sequence[int], members: Sequence[Sequence[int]]):
        """Takes the bytes of all storages, and those of each kind."""
        self._count = len(storage_bytes)
        self._members = list(members)
        self._kind_bytes = [sum(storage_bytes[s] for s in kind) for kind in members]
        self._storages = [s for kind in members for s in kind]
        self._bytes = [storage_bytes[s] for s in self._storages]

    def __bool__(self) -> bool:
        return sum(self._bytes) > 0

    def changed(self, hints: Hints, generator: random.Random) -> Hints:
        """Others for some storages."""
        tuned = constants.TUNED
        least, most = math.log(tuned.least_factor), math.log(tuned.most_factor)
        worth = list(hints.worth) or [1.0] * self._count
        sides = list(hints.sides) or [0] * self._count
        checkpoints = list(hints.checkpoints)
        while True:
            chosen = self._choose(generator)
            share = 1.0 if hints.only_packed else tuned.share_of_checkpoints
            if checkpoints and generator.random() < share:
                kept = generator.random() < 0.5
                for storage in chosen:
                    checkpoints[storage] = kept
            elif generator.random() < tuned.share_of_the_side:
                side = generator.choice((-1, 1))
                for storage in chosen:
                    sides[storage] = side
            else:
                log = generator.uniform(least, most)
                factor = math.exp(log if generator.random() < 0.5 else -log)
                for storage in chosen:
                    worth[storage] = min(_MOST_WORTH, max(_LEAST_WORTH, worth[storage] * factor))
            if generator.random() >= tuned.share_of_more_changes:
                return dataclasses.replace(hints, worth=worth, sides=sides, checkpoints=checkpoints)

    def _choose(self, generator: random.Random) -> Sequence[int]:
        if generator.random() >= constants.TUNED.share_of_a_kind:
            return generator.choices(self._storages, self._bytes)
        members = generator.choices(self._members, self._kind_bytes)[0]
        if generator.random() >= constants.TUNED.share_of_a_stretch:
            return members
        first = generator.randrange(len(members))
        return members[first : generator.randrange(first, len(members)) + 1]
