"""The plans of one call that are tried, and which of them is taken.

A policy's own plan is not always its best: what may be evicted early, how projected costs are
counted, and where storages go decide, too, and which of it is best differs from program to program.
Planning takes much less time than the steps that follow, so several are made. A policy that looks
ahead decides value by value; what is cheapest to keep where most is alive is known for the program
as a whole (`cc/core/planner/min_cut_keep_set.h`), so plans are made around that, too: the engine
evicts what else is in the way, or what is not kept is dropped at once and made again
(`cc/core/planner/checkpoint_plan.h`).

Thread rule: a `Candidates` belongs to one thread (the search makes plans on others).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from coop_jax import _core
from coop_jax._src.ir import cost_model
from coop_jax._src.planning import checkpoint_plans, constants, policies
from coop_jax._src.planning.local_search import (
    Hints,
    Kinds,
    Start,
    close_seconds,
    improved,
    is_better,
    recompute_share,
)
from coop_jax._src.planning.pool_state import OUTSIDE, Residency


@dataclasses.dataclass(frozen=True, slots=True)
class PlanSettings:
    """What a plan depends on besides program and residency.

    `alternatives`: whether variants of the policy are tried too where its own plan does not fit or
    is costly. Always when something runs; not when policies are compared.
    `give_up`: a plan that recomputes this many times as many operations as there are is given up: a
    step that takes so long serves nobody, and takes long to plan.
    `allowance`: as many more are allowed in any case.
    `max_recompute`: the runtime's limit, for plans of what runs operation by operation, which has
    to keep it at any time; 0: none.
    """

    policy: _core.Policy
    alignment_bytes: int
    profile: cost_model.DeviceProfile
    alternatives: bool = True
    give_up: float = constants.TUNED.give_up_factor
    allowance: int = 1024
    max_recompute: float = 0.0


class Candidates:
    """Plans a call with a given reservation, in several ways.

    The plan that recomputes least wins: planning takes much less time than the steps that follow.
    """

    def __init__(
        self,
        engine_program: _core.Program,
        kinds: Callable[[], Kinds],
        residency: Residency,
        settings: PlanSettings,
        *,
        capacity_bytes: int,
        reserve_bytes: int,
        constant_inputs: int = 0,
        hints: Hints | None = None,
        never_held: Iterable[int] = (),
    ):
        """Sets what all the plans share.

        Args:
          engine_program: what to plan.
          kinds: what a search may change of it.
          residency: where its inputs lie.
          settings: the policy and what costs are.
          capacity_bytes: the budget.
          reserve_bytes: of it, what is kept from the plan.
          constant_inputs: so many inputs follow those of `residency`, outside the pool.
          hints: what the planner is told; None to be told nothing, and to try what is better:
            never to evict outputs, or to evict them like anything else.
          never_held: storages that cannot be held for longer than the program needs them.
        """
        self._engine_program = engine_program
        self._kinds = kinds
        self._residency = residency
        self._settings = settings
        self._capacity_bytes = capacity_bytes
        self._reserve_bytes = reserve_bytes
        self._constant_inputs = constant_inputs
        self._where = [*residency.where, *[OUTSIDE] * constant_inputs]
        self._hints = hints or Hints()
        # What follows hints step by step, calls that learn, can do nothing else.
        self._is_free = hints is None
        self._never_held = frozenset(never_held)
        self._is_large = engine_program.operation_count > constants.TUNED.large_operations
        self._starts: list[Start] = []  # all that was planned

    def own_plan(self) -> Start:
        """The best of the policy's plans, and of the variants tried beside it."""
        settings = self._settings
        policy = settings.policy
        own = ((policy, True), (policy, False))
        if not settings.alternatives:
            return self._packed(self._best_of(own, math.inf))
        ahead: Start | None = None
        if policies.looks_ahead(policy) and not policy.evict_always:
            # Forms that recompute more than the step again are given up: others do better.
            # Without the window a search looks at every value again for each that it evicts.
            forms = [
                (form, True)
                for form in (policy, *policies.lookaheads(policy))
                if form.sliding_window or not self._is_large
            ]
            ahead = self._packed(self._best_of(forms, 0.0, min(settings.give_up, 1.0)))
            if not (ahead.plan.feasible and recompute_share(ahead.plan) == 0):
                if self._is_free:
                    ahead = self._around_checkpoints(policy, ahead)
                if not self._is_large:
                    ahead = self._around_what_is_kept(forms[:2], ahead)
            if ahead.plan.feasible and recompute_share(ahead.plan) <= constants.TUNED.costly_share:
                return ahead
            policy = policies.where_nothing_is_known(policy)
            own = ((policy, True), (policy, False))
        # Evicting outputs only to recompute them at the end costs more than it gives, so they are
        # kept; where that does not fit, they may be evicted like anything else. Where the fast
        # projected cost finds no plan or a costly one, the exact one is tried, and dropping at last
        # use what evicted values need.
        exact = policies.with_exact_neighborhood(policy)
        others = ((exact, True), (exact, False), (policies.without_keeping(policy), True))
        start = self._best_of((*own, *others), constants.TUNED.costly_share)
        return start if ahead is None or is_better(start.plan, ahead.plan) else ahead

    def improved(self, start: Start, outside_bytes: int) -> Start:
        """The best that a search finds, if the policy says to search; else the start.

        Args:
          start: what `own_plan` has found.
          outside_bytes: the most that may lie outside the pool at once.
        """
        policy = self._settings.policy
        if not policy.search_effort or not self._settings.alternatives or policy.evict_always:
            return start
        if start.plan.feasible and start.plan.stats.recomputations == 0:
            return start
        starts = [
            x
            for x in self._starts
            if x is start or x.plan.stats.peak_outside_bytes <= outside_bytes
        ]
        # Plans around checkpoints are searched for themselves: they would take the attempts of
        # others that are not as good at first and get better.
        around = [x for x in starts if x.hints.checkpoints]
        others = [x for x in starts if not x.hints.checkpoints]
        if not any(x.plan.feasible for x in others) and any(x.plan.feasible for x in around):
            return self._searched(around, outside_bytes)
        best = self._searched(others, outside_bytes)
        close = close_seconds(best.plan)
        if any(x.plan.feasible and x.plan.stats.recompute_seconds <= close for x in around):
            found = self._searched(around, outside_bytes)
            best = found if is_better(found.plan, best.plan) else best
        return best

    def _searched(self, starts: Sequence[Start], outside_bytes: int) -> Start:
        give_up = min(self._settings.give_up, 1.0)
        return improved(
            self._kinds(),
            self._engine_program.operation_count,
            starts,
            lambda start, hints, most_seconds: self._plan(
                start.policy, start.pin_early, give_up, most_seconds, hints
            ),
            self._settings.policy.search_effort,
            outside_bytes,
        )

    def _packed(self, best: Start) -> Start:
        """A start, or where a policy that looks ahead needs none the plan without recomputations.

        Where as much is alive as the pool holds, addresses have to be found ahead.
        """
        policy = self._settings.policy
        known = best.plan.feasible and best.plan.stats.recomputations == 0
        if known or not self._is_free or not policies.looks_ahead(policy) or policy.evict_always:
            return best
        if self._is_large:
            return best
        everything = [True] * self._engine_program.storage_count
        hints = dataclasses.replace(self._hints, checkpoints=everything, only_packed=True)
        plan = self._plan(policy, True, min(self._settings.give_up, 1.0), 0.0, hints)
        return Start(policy, True, plan, hints) if is_better(plan, best.plan) else best

    def _around_what_is_kept(
        self, forms: Sequence[tuple[_core.Policy, bool]], best: Start
    ) -> Start:
        """The best of a start and of plans that keep what is cheapest to keep."""
        tuned, pool_bytes = constants.TUNED, self._pool_bytes()
        keepings = _core.cheapest_to_keep(
            self._engine_program,
            input_where=self._where,
            pool_bytes=[int(pool_bytes * share) for share in tuned.kept_shares],
        )
        for kept, held_for, _ in keepings:
            for storage in self._never_held:
                held_for[storage] = -1
            found: Start | None = None  # of these, which are much alike, one is enough for a search
            for factor, (policy, pin_early) in itertools.product(tuned.kept_worths, forms):
                hints = self._hints.keeping(kept, held_for, factor)
                pin = pin_early and self._is_free
                seconds = best.plan.stats.recompute_seconds if best.plan.feasible else 0.0
                plan = self._plan(policy, pin, min(self._settings.give_up, 1.0), seconds, hints)
                if found is None or is_better(plan, found.plan):
                    found = Start(policy, pin, plan, hints)
            assert found is not None
            self._starts.append(found)
            if is_better(found.plan, best.plan):
                best = found
        return best

    def _around_checkpoints(self, policy: _core.Policy, best: Start) -> Start:
        """The best of a start and of plans that drop at once what they make again."""

        def planned(kept: Sequence[bool], only_packed: bool, most_seconds: float) -> Start:
            hints = dataclasses.replace(self._hints, checkpoints=kept, only_packed=only_packed)
            give_up = min(self._settings.give_up, 1.0)
            return Start(
                policy, True, self._plan(policy, True, give_up, most_seconds, hints), hints
            )

        around = checkpoint_plans.Around(
            self._engine_program, self._where, self._pool_bytes(), planned
        )
        found = around.of_many(best) if self._is_large else around.of_few(best)
        self._starts += found
        return min((best, *found), key=lambda x: x.badness)

    def _pool_bytes(self) -> int:
        """Of the budget, what the plan may use."""
        others = sum(nbytes for _, nbytes in self._residency.others)
        return self._capacity_bytes - self._reserve_bytes - others

    def _best_of(
        self,
        candidates: Iterable[tuple[_core.Policy, bool]],
        good_enough: float,
        give_up: float | None = None,
    ) -> Start:
        give_up = self._settings.give_up if give_up is None else give_up
        best: Start | None = None
        seen = set[tuple[_core.Policy, bool]]()
        for policy, pin_early in candidates:
            pin = pin_early and self._is_free
            if (policy, pin) in seen:
                continue
            seen.add((policy, pin))
            plan = self._plan(policy, pin, give_up, hints=self._hints)
            start = Start(policy, pin, plan, self._hints)
            self._starts.append(start)
            if best is None or is_better(plan, best.plan):
                best = start
            if best.plan.feasible and (
                policy.evict_always or recompute_share(best.plan) <= good_enough
            ):
                break
        assert best is not None
        return best

    def _plan(
        self,
        policy: _core.Policy,
        pin_early: bool,
        give_up: float,
        most_seconds: float = 0.0,
        hints: Hints | None = None,
    ) -> _core.Plan:
        worth = hints.worth if hints else ()
        sides = hints.sides if hints else ()
        places = hints.places if hints else ()
        held_for = hints.held_for if hints else ()
        # Own blocks of workspace are storages, too (see `core_program`), of which no hint speaks.
        storages = self._engine_program.storage_count
        most = self._settings.allowance + int(give_up * self._engine_program.operation_count)
        most = 0 if policy.evict_always else max(1, most)  # 0: any number
        return _core.make_plan(
            self._engine_program,
            capacity_bytes=self._capacity_bytes,
            alignment_bytes=self._settings.alignment_bytes,
            policy=policy,
            expensive_seconds_per_byte=self._settings.profile.expensive_seconds_per_byte,
            input_where=self._where,
            input_offsets=[*self._residency.offsets, *[-1] * self._constant_inputs],
            foreign=self._residency.others,
            reserve_bytes=self._reserve_bytes,
            pin_outputs_early=pin_early,
            timed=True,
            max_recomputations=most,
            max_tried_recomputations=constants.TUNED.tries_per_recomputation * most,
            max_recompute_seconds=most_seconds,
            max_recompute=self._settings.max_recompute,
            worth=[*worth, *[1.0] * (storages - len(worth))] if worth else (),
            sides=[*sides, *[0] * (storages - len(sides))] if sides else (),
            places=[*places, *[-1] * (storages - len(places))] if places else (),
            held_for=[*held_for, *[-1] * (storages - len(held_for))] if held_for else (),
            checkpoints=hints.checkpoints if hints else (),
            only_packed=hints.only_packed if hints else False,
        )
