"""From a program to a plan: what the engine decides for one budget and one state of the pool.

A plan is data: the engine's ordered actions, made before anything runs. This module knows the
engine and programs, not arrays or executables, so that simulation can share it.

The budget is divided so that it can never be exceeded:
  budget = pool blocks + reservation,
  reservation = what is outside the pool at any one time (inputs, constants, small values)
                + the largest workspace.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence

from coop_jax import _core
from coop_jax._src import costs, policies
from coop_jax._src.improving import Hints, Start, improved
from coop_jax._src.program import Program, Storage

UNLIMITED_BYTES = 1 << 50  # address space of a plan without a budget

OUTSIDE, FOREIGN, ADOPT = 0, 1, 2

# Plans that recompute more than this share of the step are compared with others.
_COSTLY = 0.3

# In longer programs only what is fast is tried.
_LARGE = 20_000

# So many recomputations may be tried and undone for each that a plan may have.
_TRIES = 2

# How long to look for the smallest budget that would do, for an error message.
_SEARCH_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Residency:
    """Where the inputs lie when a call begins.

    Attributes:
      where: for each input OUTSIDE, FOREIGN (in the pool) or ADOPT (to be copied into it).
      offsets: for each FOREIGN input its offset, -1 for others.
      donated: for each input whether its memory may be reused in this call.
      others: (offset, bytes) of blocks of the pool that are no inputs.
    """

    where: tuple[int, ...]
    offsets: tuple[int, ...]
    donated: tuple[bool, ...]
    others: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PlanSettings:
    """What a plan depends on besides program and residency.

    `alternatives`: whether variants of the policy are tried too where its own plan does not fit or
    is costly. Always when something runs; not when policies are compared.
    `give_up`: a plan that recomputes this many times as many operations as there are is given up: a
    step that takes so long serves nobody, and takes long to plan.
    """

    policy: _core.Policy
    alignment_bytes: int
    profile: costs.DeviceProfile
    alternatives: bool = True
    give_up: float = 16.0


def first_residency(program: Program) -> Residency:
    """The residency of a first call: donated inputs move into an empty pool."""
    where = tuple(
        ADOPT if donated and not program.storages[program.values[v].storage].outside else OUTSIDE
        for v, donated in zip(program.inputs, program.donated, strict=True)
    )
    return Residency(where, (-1,) * len(where), tuple(program.donated), ())


def _outside_bytes(program: Program, residency: Residency) -> int:
    """The most that lies outside the pool at any one time, if nothing lives longer than it must.

    Recipes may keep a small value for longer; then the plan says so.
    """
    inputs: dict[int, int] = {}
    for value, where in zip(program.inputs, residency.where, strict=True):
        storage = program.values[value].storage
        inputs[storage] = program.storages[storage].nbytes if where == OUTSIDE else 0
    for value, _ in program.constants:
        storage = program.values[value].storage
        inputs[storage] = _rounded(program.storages[storage])
    now = most = sum(inputs.values())
    for operation, released in zip(program.operations, program.releases, strict=True):
        for storage in {program.values[v].storage for v in operation.results}:
            now += _rounded(program.storages[storage])
        most = max(most, now)
        for storage in released:
            now -= inputs[storage] if storage in inputs else _rounded(program.storages[storage])
    return most


def _rounded(storage: Storage) -> int:
    """What a storage takes outside the pool: nothing if it is in the pool."""
    return -(-storage.nbytes // 64) * 64 if storage.outside else 0


def core_program(
    program: Program, donated: Sequence[bool], cost_seconds: Sequence[float] | None = None
) -> _core.Program:
    """The engine's view of a program: sizes, costs (the kernels' if not given), uses."""
    in_begin, out_begin, release_begin = [0], [0], [0]
    ins: list[int] = []
    outs: list[int] = []
    in_place: list[int] = []
    releases: list[int] = []
    for op, released in zip(program.operations, program.releases, strict=True):
        ins += [program.values[v].storage for v in op.operands]
        outs += [program.values[v].storage for v in op.results]
        in_place += op.in_place
        releases += released
        in_begin.append(len(ins))
        out_begin.append(len(outs))
        release_begin.append(len(releases))
    return _core.Program(
        storage_bytes=[_rounded(s) if s.outside else s.nbytes for s in program.storages],
        storage_outside=[s.outside for s in program.storages],
        input_storages=[program.values[v].storage for v in program.inputs]
        + [program.values[v].storage for v, _ in program.constants],
        input_donated=[*donated, *[False] * len(program.constants)],
        op_input_begin=in_begin,
        op_inputs=ins,
        op_output_begin=out_begin,
        op_outputs=outs,
        op_in_place=in_place,
        op_cost_seconds=[op.kernel.cost_seconds for op in program.operations]
        if cost_seconds is None
        else list(cost_seconds),
        op_recomputable=[op.kernel.recomputable for op in program.operations],
        release_begin=release_begin,
        releases=releases,
        outputs=[program.values[v].storage for v in program.outputs],
    )


def make_plan(
    program: Program,
    engine_program: _core.Program,
    residency: Residency,
    settings: PlanSettings,
    *,
    capacity_bytes: int,
    workspace_bytes: int,
) -> _core.Plan:
    """Plans a call; its statistics say how much is outside the pool (`peak_outside_bytes`).

    Args:
      program: what to plan.
      engine_program: the engine's view of it, from `core_program`.
      residency: where the inputs lie.
      settings: the policy and what costs are.
      capacity_bytes: the budget.
      workspace_bytes: XLA's temporary memory of the operation that needs most.
    """
    outside = _outside_bytes(program, residency)
    while True:
        planner = _Planner(
            program, engine_program, residency, settings, capacity_bytes, outside + workspace_bytes
        )
        plan = planner.own_plan()
        needed = plan.stats["peak_outside_bytes"]
        if not plan.feasible or needed <= outside:
            return planner.improved(plan, outside)
        outside = needed  # more than before, and never more than all of it


class _Planner:
    """Plans a call with a given reservation, in several ways.

    The plan that recomputes least wins: planning takes much less time than the steps that follow.
    """

    def __init__(
        self,
        program: Program,
        engine_program: _core.Program,
        residency: Residency,
        settings: PlanSettings,
        capacity_bytes: int,
        reserve_bytes: int,
    ):
        self._program = program
        self._engine_program = engine_program
        self._residency = residency
        self._settings = settings
        self._capacity_bytes = capacity_bytes
        self._reserve_bytes = reserve_bytes
        self._starts: list[Start] = []  # all that was planned

    def own_plan(self) -> _core.Plan:
        """The best of the policy's plans, and of the variants tried beside it."""
        settings = self._settings
        policy = settings.policy
        ahead: _core.Plan | None = None
        own = ((policy, True), (policy, False))
        if not settings.alternatives:
            return self._best_of(own, math.inf)
        if policies.looks_ahead(policy) and not policy.evict_always:
            # Forms that recompute more than the step again are given up: others do better.
            # Without the window a search looks at every value again for each that it evicts.
            large = len(self._program.operations) > _LARGE
            forms = [
                (form, True)
                for form in (policy, *policies.lookaheads(policy))
                if form.sliding_window or not large
            ]
            ahead = self._best_of(forms, 0.0, min(settings.give_up, 1.0))
            if ahead.feasible and _recompute_share(ahead) <= _COSTLY:
                return ahead
            policy = policies.where_nothing_is_known(policy)
            own = ((policy, True), (policy, False))
        # Evicting outputs only to recompute them at the end costs more than it gives, so they are
        # kept; where that does not fit, they may be evicted like anything else. Where the fast
        # projected cost finds no plan or a costly one, the exact one is tried, and dropping at last
        # use what evicted values need.
        exact = policies.with_exact_neighborhood(policy)
        others = ((exact, True), (exact, False), (policies.without_keeping(policy), True))
        plan = self._best_of((*own, *others), _COSTLY)
        return plan if ahead is None or _is_better(plan, ahead) else ahead

    def improved(self, plan: _core.Plan, outside_bytes: int) -> _core.Plan:
        """The best that a search finds, if the policy says to search; else the plan.

        Args:
          plan: what `own_plan` has found.
          outside_bytes: the most that may lie outside the pool at once.
        """
        policy = self._settings.policy
        if not policy.search_effort or not self._settings.alternatives or policy.evict_always:
            return plan
        give_up = min(self._settings.give_up, 1.0)
        return improved(
            self._program,
            [
                start
                for start in self._starts
                if start.plan is plan or start.plan.stats["peak_outside_bytes"] <= outside_bytes
            ],
            lambda start, hints, most_seconds: self._plan(
                start.policy, start.pin_early, give_up, most_seconds, hints
            ),
            policy.search_effort,
            outside_bytes,
        )

    def _best_of(
        self,
        candidates: Iterable[tuple[_core.Policy, bool]],
        good_enough: float,
        give_up: float | None = None,
    ) -> _core.Plan:
        give_up = self._settings.give_up if give_up is None else give_up
        best: _core.Plan | None = None
        for policy, pin_early in candidates:
            plan = self._plan(policy, pin_early, give_up)
            self._starts.append(Start(policy, pin_early, plan))
            if best is None or _is_better(plan, best):
                best = plan
            if best.feasible and (policy.evict_always or _recompute_share(best) <= good_enough):
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
        constants = len(self._program.constants)
        most = 0 if policy.evict_always else 1024 + int(give_up * len(self._program.operations))
        return _core.make_plan(
            self._engine_program,
            capacity_bytes=self._capacity_bytes,
            alignment_bytes=self._settings.alignment_bytes,
            policy=policy,
            expensive_seconds_per_byte=self._settings.profile.expensive_seconds_per_byte,
            input_where=[*self._residency.where, *[OUTSIDE] * constants],
            input_offsets=[*self._residency.offsets, *[-1] * constants],
            foreign=self._residency.others,
            reserve_bytes=self._reserve_bytes,
            pin_outputs_early=pin_early,
            timed=True,
            max_recomputations=most,
            max_tried_recomputations=_TRIES * most,
            max_recompute_seconds=most_seconds,
            worth=hints.worth if hints else (),
            sides=hints.sides if hints else (),
        )


def _is_better(plan: _core.Plan, best: _core.Plan) -> bool:
    if plan.feasible != best.feasible:
        return plan.feasible
    return plan.feasible and _recompute_share(plan) < _recompute_share(best)


def _recompute_share(plan: _core.Plan) -> float:
    stats = plan.stats
    share: float = stats["recompute_seconds"] / max(stats["compute_seconds"], 1e-30)
    return share


def unbudgeted_peak(
    program: Program, engine_program: _core.Program, settings: PlanSettings, workspace_bytes: int
) -> int:
    """Bytes that the program needs at its peak when nothing is evicted, everything counted."""
    residency = first_residency(program)
    policy = policies.without_search(policies.with_forced_eviction(settings.policy, False))
    settings = dataclasses.replace(settings, policy=policy)
    plan = make_plan(
        program,
        engine_program,
        residency,
        settings,
        capacity_bytes=UNLIMITED_BYTES,
        workspace_bytes=0,
    )
    # The engine counts small values when they are alive, the reservation the most there ever are.
    stats = plan.stats
    small: int = stats["peak_outside_bytes"] - _outside_inputs(program, residency)
    return int(stats["peak_in_use_bytes"]) + small + workspace_bytes


def _outside_inputs(program: Program, residency: Residency) -> int:
    storages: dict[int, int] = {}
    for value, where in zip(program.inputs, residency.where, strict=True):
        storage = program.values[value].storage
        storages[storage] = program.storages[storage].nbytes if where == OUTSIDE else 0
    for value, _ in program.constants:
        storage = program.values[value].storage
        storages[storage] = program.storages[storage].nbytes
    return sum(storages.values())


def smallest_budget(
    program: Program,
    engine_program: _core.Program,
    residency: Residency,
    settings: PlanSettings,
    workspace_bytes: int,
    known_infeasible: int,
) -> int | None:
    """The least budget, to 1%, at which the call would fit; found by planning, nothing runs.

    Plans that hardly fit take long to make: after some seconds the least known so far is the
    answer, None if there is none.
    """
    deadline = time.monotonic() + _SEARCH_SECONDS
    settings = dataclasses.replace(settings, policy=policies.without_search(settings.policy))

    def feasible(budget: int) -> bool:
        return bool(
            make_plan(
                program,
                engine_program,
                residency,
                settings,
                capacity_bytes=budget,
                workspace_bytes=workspace_bytes,
            ).feasible
        )

    high = max(1, known_infeasible)
    while not feasible(high):
        high *= 2
        if high > UNLIMITED_BYTES or time.monotonic() > deadline:
            return None
    low = high // 2
    while high - low > max(settings.alignment_bytes, high // 100):
        if time.monotonic() > deadline:
            break
        middle = (low + high) // 2
        if feasible(middle):
            high = middle
        else:
            low = middle
    return high
