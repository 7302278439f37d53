"""Plans that fit with the workspace of what they launch: made, compiled, made again where it lacks.

What an operation needs beside its values only compiling tells, and which form of it is launched
only a plan does. So a plan is made for the workspace known so far; what it launches is compiled,
and where that needs more, another plan is made with it. A call does so, and so does the search for
a budget that would do: both take the same steps from the same beginning, so a budget that was found
is one that a call accepts.

Thread rule: under the runtime's lock, or alone. Cost: a plan, or several; compiling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from coop_jax import _core
from coop_jax._src.execution import constants, donation_probe, executable_cache, executables
from coop_jax._src.execution.compilation import Wanted, compile_together
from coop_jax._src.execution.donation_probe import Placement
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.planning import policies
from coop_jax._src.planning.planner import PlanSettings, WorkspacePlanner
from coop_jax._src.planning.workspace import Provision

# Workspace of launches: (operation, bytes) of each.
Launches = list[tuple[int, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A plan whose launches have the workspace that they need; or one that is not feasible."""

    plan: _core.Plan
    provision: Provision


def fitted(
    planner: WorkspacePlanner,
    settings: PlanSettings,
    needed: Sequence[int],
    launches: Callable[[_core.Plan, Provision], Launches],
) -> Fitted:
    """The plan of a call.

    Args:
      planner: for the budget.
      settings: the policy and what costs are.
      needed: workspace of each operation in its first form.
      launches: what a plan launches needs, compiled.
    """
    needed = list(needed)
    while True:
        plan, provision = planner.plan(settings, needed)
        if not plan.feasible:
            return Fitted(plan, provision)
        used = launches(plan, provision)
        if all(provision.suffices(number, nbytes) for number, nbytes in used):
            return Fitted(plan, provision)
        for number, nbytes in used:
            needed[number] = max(needed[number], nbytes)


def smallest_fitting(
    planner_for: Callable[[int], WorkspacePlanner],
    capacity_bytes: int,
    settings: PlanSettings,
    needed: Sequence[int],
    launches: Callable[[_core.Plan, Provision], Launches],
) -> int | None:
    """A budget that a call accepts, to 1%, where `capacity_bytes` do not suffice.

    Args:
      planner_for: what plans for a budget.
      capacity_bytes: the budget that does not suffice.
      settings: as for `fitted`.
      needed: as for `fitted`.
      launches: as for `fitted`.

    Returns:
      Bytes; None if none is found in some seconds.
    """
    settings = without_search(settings)
    found = planner_for(capacity_bytes).smallest_budget(settings, needed)
    for _ in range(constants.TUNED.budget_max_raises):
        if found is None or fitted(planner_for(found), settings, needed, launches).plan.feasible:
            return found
        found = int(found * constants.TUNED.budget_raise_factor) + settings.alignment_bytes
    return None


def without_search(settings: PlanSettings) -> PlanSettings:
    """The policy's own plans: always the same ones."""
    return dataclasses.replace(settings, policy=policies.without_search(settings.policy))


def first_forms(program: Program, device: jax.Device, *, in_place: bool) -> list[Wanted]:
    """Each operation as it runs first, if nothing is in the way.

    Args:
      program: whose operations.
      device: where they run.
      in_place: whether the policy lets results take the memory of operands.
    """
    return [
        (
            op.kernel,
            tuple(
                executables.OUTSIDE
                if program.storages[program.values[r].storage].outside
                else pair
                if pair >= 0 and (in_place or copies_operands(op, device))
                else executables.SLOT
                for r, pair in zip(op.results, op.in_place, strict=True)
            ),
            op.source,
        )
        for op in program.operations
    ]


def compiled_workspaces(
    wanted: Sequence[Wanted], device: jax.Device, cache: KernelCache
) -> list[int]:
    """Bytes of workspace of each form, compiled where it is not yet."""
    compile_together(wanted, device, cache)
    return [
        executable_cache.executable(kernel, modes, device, cache).workspace_bytes
        for kernel, modes, _ in wanted
    ]


def launched(
    plan: _core.Plan, program: Program, device: jax.Device, cache: KernelCache
) -> Launches:
    """The workspace of what a plan launches, compiled where it is not yet."""
    found = compiled_workspaces(wanted_by(plan, program, device), device, cache)
    return list(zip(plan.execution_order, found, strict=True))


def wanted_by(plan: _core.Plan, program: Program, device: jax.Device) -> list[Wanted]:
    """The form of each run of a plan, in order."""
    forms = []
    for action in plan.actions:
        if isinstance(action, _core.Run):
            op = program.operations[action.operation]
            forms.append((op.kernel, modes_of(op, action.placements, device), op.source))
    return forms


def modes_of(
    op: Operation, placements: Sequence[_core.Placement], device: jax.Device
) -> tuple[int, ...]:
    """Output modes of an executable from where the engine puts its outputs."""
    modes = []
    results = placements[: len(op.results)]  # own blocks of workspace may come after them
    for placement, possible in zip(results, op.in_place, strict=True):
        offset, in_place = placement.offset, placement.in_place_input
        if in_place < 0 and possible >= 0 and copies_operands(op, device):
            in_place = possible
        modes.append(
            in_place if in_place >= 0 else executables.OUTSIDE if offset < 0 else executables.SLOT
        )
    return tuple(modes)


def copies_operands(op: Operation, device: jax.Device) -> bool:
    """Whether what may be overwritten always is, at least a copy of it."""
    # Where nothing is donated, XLA never knows of it, and there is one form of everything.
    return op.kernel.is_group and donation_probe.probe(device) is Placement.DONATED
