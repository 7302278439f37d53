"""From a program to a plan: what the engine decides for one budget and one state of the pool.

A plan is data: the engine's ordered actions, made before anything runs. This module knows the
engine and programs, not arrays or executables, so that simulation can share it.

The budget is divided so that it can never be exceeded:
  budget = pool blocks + reservation,
  reservation = what is outside the pool at any one time (inputs, arguments that were copied,
                  constants, small values)
                + the workspace of those operations that have no block of their own for it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from coop_jax import _core
from coop_jax._src.ir.cost_model import DeviceProfile
from coop_jax._src.ir.program import Program, Storage
from coop_jax._src.planning import constants, policies
from coop_jax._src.planning.local_search import kinds_of
from coop_jax._src.planning.pool_state import ADOPT, OUTSIDE, Residency
from coop_jax._src.planning.portfolio import Candidates
from coop_jax._src.planning.portfolio import PlanSettings as PlanSettings
from coop_jax._src.planning.workspace import Provision, provisions, refill_seconds

UNLIMITED_BYTES = 1 << 50  # address space of a plan without a budget


def first_residency(program: Program) -> Residency:
    """The residency of a first call: donated inputs move into an empty pool."""
    where = tuple(
        ADOPT if donated and not program.storages[program.values[v].storage].outside else OUTSIDE
        for v, donated in zip(program.inputs, program.donated, strict=True)
    )
    return Residency(where, (-1,) * len(where), tuple(w == ADOPT for w in where), ())


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
    program: Program,
    donated: Sequence[bool],
    cost_seconds: Sequence[float] | None = None,
    provision: Provision | None = None,
) -> _core.Program:
    """The engine's view of a program: sizes, costs (the kernels' if not given), uses.

    An operation with blocks of its own for workspace has more results, after its own: storages
    behind the program's, that are released at once.
    """
    in_begin, out_begin, release_begin = [0], [0], [0]
    ins: list[int] = []
    outs: list[int] = []
    in_place: list[int] = []
    releases: list[int] = []
    own_blocks: list[int] = []
    for number, (op, released) in enumerate(zip(program.operations, program.releases, strict=True)):
        ins += [program.values[v].storage for v in op.operands]
        outs += [program.values[v].storage for v in op.results]
        in_place += op.in_place
        releases += released
        for nbytes in provision.blocks(number) if provision else ():
            block = len(program.storages) + len(own_blocks)
            own_blocks.append(nbytes)
            outs.append(block)
            in_place.append(-1)
            releases.append(block)
        in_begin.append(len(ins))
        out_begin.append(len(outs))
        release_begin.append(len(releases))
    return _core.Program(
        storage_bytes=[_rounded(s) if s.outside else s.nbytes for s in program.storages]
        + own_blocks,
        storage_outside=[s.outside for s in program.storages] + [False] * len(own_blocks),
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
      workspace_bytes: XLA's temporary memory, of the operation that needs most of those that have
        no block of their own.
    """
    outside = _outside_bytes(program, residency)
    while True:
        candidates = Candidates(
            engine_program,
            lambda: kinds_of(program),
            residency,
            settings,
            capacity_bytes=capacity_bytes,
            reserve_bytes=outside + residency.beside_bytes + workspace_bytes,
            constant_inputs=len(program.constants),
        )
        start = candidates.own_plan()
        needed = start.plan.stats.peak_outside_bytes
        if not start.plan.feasible or needed <= outside:
            return candidates.improved(start, outside).plan
        outside = needed  # more than before, and never more than all of it


class WorkspacePlanner:
    """Plans a call whose operations need workspace, in the way that serves it best."""

    def __init__(
        self,
        program: Program,
        engine_program: Callable[[Provision], _core.Program],
        residency: Residency,
        capacity_bytes: int,
        kept_bytes: int,
    ):
        """Sets what all its plans share.

        Args:
          program: what to plan.
          engine_program: the engine's view of it, from `core_program`, for a provision.
          residency: where the inputs lie.
          capacity_bytes: the budget.
          kept_bytes: workspace to reserve in any case.
        """
        self._program = program
        self._engine_program = engine_program
        self._residency = residency
        self._capacity_bytes = capacity_bytes
        self._kept_bytes = kept_bytes

    def plan(self, settings: PlanSettings, needed: Sequence[int]) -> tuple[_core.Plan, Provision]:
        """The best plan, feasible or not, and how it provides for workspace.

        Args:
          settings: the policy and what costs are.
          needed: workspace of each operation.
        """
        ways = provisions(needed, self._kept_bytes, self._capacity_bytes)
        if len(ways) == 1:
            return self._make(settings, ways[0]), ways[0]
        # Which way is better plain plans tell; a search is for that one alone.
        plain = dataclasses.replace(settings, policy=policies.without_search(settings.policy))
        best: tuple[tuple[bool, float], _core.Plan, Provision] | None = None
        for way in ways:
            plan = self._make(plain, way)
            found = self._badness(plan, way), plan, way
            if best is None or found[0] < best[0]:
                best = found
            if best[0] == (False, 0.0):
                break
        assert best is not None
        _, plan, way = best
        if settings.policy.search_effort and settings.alternatives:
            plan = self._make(settings, way)
        return plan, way

    def smallest_budget(self, settings: PlanSettings, needed: Sequence[int]) -> int | None:
        """The least budget, to 1%, that would do; None if none is found in some seconds."""
        plain = dataclasses.replace(settings, policy=policies.without_search(settings.policy))

        def feasible(budget: int) -> bool:
            planner = WorkspacePlanner(
                self._program, self._engine_program, self._residency, budget, self._kept_bytes
            )
            return bool(planner.plan(plain, needed)[0].feasible)

        return _smallest(feasible, self._capacity_bytes, settings.alignment_bytes)

    def _make(self, settings: PlanSettings, way: Provision) -> _core.Plan:
        return make_plan(
            self._program,
            self._engine_program(way),
            self._residency,
            settings,
            capacity_bytes=self._capacity_bytes,
            workspace_bytes=way.reserved_bytes,
        )

    def _badness(self, plan: _core.Plan, way: Provision) -> tuple[bool, float]:
        if not plan.feasible:
            return True, -plan.failed_operation
        seconds = plan.stats.recompute_seconds
        if way.own_bytes:
            seconds += refill_seconds(way, plan.execution_order)
            seconds *= constants.TUNED.clearly_better_factor
        return False, seconds


def plan_without_launches(
    program: Program,
    residency: Residency,
    settings: PlanSettings,
    needed: Sequence[int],
    *,
    capacity_bytes: int,
    kept_bytes: int,
) -> _core.Plan:
    """The plan of a call where operations run together, feasible or not.

    What is launched as one costs only its work, so small operations are run again rather than large
    ones. No search: it is made while calls go on.

    Args:
      program: what to plan.
      residency: where the inputs lie.
      settings: the policy and what costs are.
      needed: workspace of each operation.
      capacity_bytes: the budget.
      kept_bytes: workspace to reserve in any case.
    """
    seconds = work_seconds(program, settings.profile)
    planner = WorkspacePlanner(
        program,
        lambda way: core_program(program, residency.donated, seconds, way),
        residency,
        capacity_bytes,
        kept_bytes,
    )
    policy = policies.without_search(settings.policy)
    plan, _ = planner.plan(dataclasses.replace(settings, policy=policy), needed)
    return plan


def work_seconds(program: Program, profile: DeviceProfile) -> list[float]:
    """What each operation takes without its launch; something, or it would be run for nothing."""
    least = profile.launch_seconds / 20
    return [
        max(least, op.kernel.cost_seconds - profile.launch_seconds) for op in program.operations
    ]


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
    return peak_bytes(plan.stats) + -(-workspace_bytes // settings.alignment_bytes) * (
        settings.alignment_bytes
    )


def peak_bytes(stats: _core.EngineStats) -> int:
    """What a plan takes of a budget: most bytes of the pool, and what is reserved beside them."""
    return stats.peak_pool_bytes + stats.reserved_bytes


def _smallest(
    feasible: Callable[[int], bool], known_infeasible: int, resolution: int
) -> int | None:
    """The least budget, to 1%, at which the call would fit; found by planning, nothing runs.

    Plans that hardly fit take long to make: after some seconds the least known so far is the
    answer, None if there is none.
    """
    deadline = time.monotonic() + constants.TUNED.smallest_budget_seconds
    low = max(1, known_infeasible)
    while not feasible(high := 2 * low):
        low = high
        if low > UNLIMITED_BYTES or time.monotonic() > deadline:
            return None
    while high - low > max(resolution, high // 100):
        if time.monotonic() > deadline:
            break
        middle = (low + high) // 2
        if feasible(middle):
            high = middle
        else:
            low = middle
    return high
