"""The forms of a program with segments among which `tiering` chooses.

Of the program, and where a plan recomputes of the plan as a program (see
`planning.rematerialized`), with what operations hand on in XLA's memory or in the pool's. Where
operations run together a launch costs nothing, so another plan may be better than that of single
operations.

Thread rule: under the runtime's lock; the other plan is made beside calls. Cost: a plan.
"""

from __future__ import annotations

import dataclasses
import math

from coop_jax import _core
from coop_jax._src.execution import compilation
from coop_jax._src.execution.instructions import CompiledPlan
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Program
from coop_jax._src.planning import planner
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.planning.rematerialized import Unrolled, room_before, unrolled
from coop_jax._src.run import constants
from coop_jax._src.run.specialization import Signature
from coop_jax._src.segments import constants as segments_constants
from coop_jax._src.segments import partition, segment
from coop_jax._src.util.incremental_work import Pieces


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A way to put operations into segments; of the program, or of its plan as a program."""

    written: Program
    unrolled: Unrolled | None
    most_bytes: float
    room: tuple[int, ...]
    in_pool: bool
    reserved_bytes: int = 0

    def made(self, cache: KernelCache) -> Program:
        """The segmented program, with what is known of operations and segments by now."""
        return partition.segmented(
            self.written,
            cache,
            self.most_bytes,
            self.room,
            in_pool=self.in_pool,
            reserved_bytes=self.reserved_bytes,
        )


def forms_of(
    runtime: Runtime, signature: Signature, residency: Residency, known: CompiledPlan
) -> Pieces[list[Form]]:
    """Segments of several sizes; also of the plan, where it recomputes."""
    program = signature.program
    assert program is not None
    forms: list[Form] = []
    limit = math.inf
    seen = set[int]()
    for _ in range(constants.TUNED.segment_sizes):
        yield ()
        form = Form(program, None, limit, (), in_pool=False)
        made = form.made(runtime.cache)
        if len(made.operations) not in seen:
            seen.add(len(made.operations))
            forms += [form, dataclasses.replace(form, in_pool=True)]
        needed = (segment.handed_on_bytes(op.kernel) for op in made.operations)
        limit = min(limit, max(needed, default=0)) / 2
    if not known.plan.stats.recomputations:
        return forms
    plan = yield from _plan_of_segments(runtime, signature, residency, known)
    beside = residency.beside_bytes
    forms += _in_room(runtime, program, plan, beside)
    if _reserved_bytes(program, known.plan, beside) > _reserved_bytes(program, plan, beside):
        forms += _in_room(runtime, program, known.plan, beside)
    return forms


def _in_room(runtime: Runtime, program: Program, plan: _core.Plan, beside_bytes: int) -> list[Form]:
    """A plan as a program, with segments that add no more than is free."""
    written = unrolled(program, plan)
    reserved = _reserved_bytes(program, plan, beside_bytes)
    outside = plan.stats.peak_outside_bytes + beside_bytes
    free = runtime.capacity_bytes() - outside - reserved
    forms = []
    for part in constants.TUNED.room_fractions:
        within = int(part * free)
        share = math.floor(constants.TUNED.xla_room_fraction * within)
        within -= min(segments_constants.TUNED.large_workspace_bytes, share)
        room = tuple(room_before(written.program, within))
        # In XLA's memory it would take the place of what is in the pool.
        forms.append(Form(written.program, written, math.inf, room, True, reserved))
    return forms


def _reserved_bytes(program: Program, plan: _core.Plan, beside_bytes: int) -> int:
    """What a plan leaves to libraries throughout; nothing where they have it only as they run."""
    needed = max((segment.library_bytes(op.kernel) for op in program.operations), default=0)
    reserved = plan.stats.reserved_bytes - plan.stats.peak_outside_bytes - beside_bytes
    return needed if needed <= reserved else 0


def _plan_of_segments(
    runtime: Runtime, signature: Signature, residency: Residency, known: CompiledPlan
) -> Pieces[_core.Plan]:
    """What takes least where operations run together: the plan that is known, or another."""
    program, needed = signature.program, signature.workspaces
    settings = runtime.settings
    assert program is not None
    assert needed is not None
    made = compilation.beside_calls(
        lambda: planner.plan_without_launches(
            program,
            residency,
            settings,
            needed,
            capacity_bytes=runtime.capacity_bytes(),
            kept_bytes=runtime.workspace_bytes,
        )
    )
    yield [made]
    plan, seconds = made.result(), planner.work_seconds(program, settings.profile)

    def work(plan: _core.Plan) -> float:
        return sum(seconds[operation] for operation in plan.execution_order)

    return plan if plan.feasible and work(plan) < work(known.plan) else known.plan
