"""Which form of a program a call runs: each operation by itself at first, in segments later.

Segments (see `segments`) take XLA about as long to compile as the whole function under `jax.jit`,
at a tight budget, where parts are compiled several times, about three times that, so they are made
once they may have paid: when launching operations took about as long as the first call, which
compiled them. Nobody waits for them: XLA compiles beside calls, on a part of the cores, and the
rest is done in pieces, during calls. The bits are the same, so nobody sees the change but in the
time that a call takes.

How much runs together depends on the budget: forms with segments of several sizes are planned, of
the program and, where values have to go, of its plan as a program (see `planning.rematerialized`),
with what operations hand on in XLA's memory or in the pool's. The one that is expected to be
fastest is compiled, anew where XLA needs more than was expected; if calls turn out to take longer
with it than without, measured before and once more after, it is given up. Operations of which XLA
makes something else within a segment run alone.

Thread rule: under the runtime's lock. Cost: a few plans and what XLA takes to compile, once for
each signature; while that is made, calls take half as long again or more.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import jax

from coop_jax import _core
from coop_jax._src.compat import number_checks
from coop_jax._src.execution import donation_probe, executable_cache
from coop_jax._src.execution.donation_probe import Placement
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir import cost_model
from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.ir.program import Program
from coop_jax._src.planning import planner as planning
from coop_jax._src.planning import policies, workspace
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.run import constants
from coop_jax._src.run.segment_candidates import Form, forms_of
from coop_jax._src.run.specialization import Signature, Tier, compile_all, compile_all_gradually
from coop_jax._src.segments import isolation_check, segment
from coop_jax._src.segments.segment import Segment
from coop_jax._src.util import env
from coop_jax._src.util.incremental_work import GradualWork, Pieces


def form_of(runtime: Runtime, signature: Signature, residency: Residency) -> Signature:
    """The signature to run: the one given, or a form of it with segments."""
    form = settled_form(runtime, signature)
    if form is None:
        _prepare(runtime, signature, residency)
        form = signature.tier.segmented or signature
    return form


def settled_form(runtime: Runtime, signature: Signature) -> Signature | None:
    """The signature to run, None while it is not settled which; as `form_of`, but tries nothing."""
    tier = signature.tier
    if not tier.settled:
        return None if _may_be_segmented(runtime) else signature
    # Where there are segments, all was as they need it; this alone may be otherwise now.
    if (
        tier.segmented is None
        or runtime.counters.recorder is not None
        or number_checks.looks_for_nans()
    ):
        return signature
    return tier.segmented


def _prepare(runtime: Runtime, signature: Signature, residency: Residency) -> None:
    """Goes on with making segments, if it is time; settles what runs once they are made."""
    tier = signature.tier
    switch = env.setting("COOP_JAX_SEGMENTS")
    if tier.preparing is None:
        assert signature.program is not None
        if not _is_time(tier, len(signature.program.operations)):
            return
        at_once = switch is True
        tier.preparing = GradualWork(_segmented(runtime, signature, residency, at_once=at_once))
    work = tier.preparing
    try:
        if switch is True:
            work.finish()
        elif switch is None:
            work.go_on(constants.TUNED.preparation_fraction * tier.least_alone)
    except KeyboardInterrupt:
        tier.preparing = None  # from the beginning, in a later call
        raise
    finally:
        if work.done and tier.preparing is not None:
            tier.settled, tier.preparing, tier.segmented = True, None, work.result


def _is_time(tier: Tier, launches: int) -> bool:
    wanted, tuned = env.setting("COOP_JAX_SEGMENTS"), constants.TUNED
    if wanted is False or tier.calls < tuned.measured_calls:
        return False
    return wanted is True or tier.calls * launches * tuned.launch_seconds >= tier.first_seconds


def _may_be_segmented(runtime: Runtime) -> bool:
    """Whether launches are what it costs here, and nobody wants to see each operation."""
    return (
        runtime.device.platform == "cpu"
        and donation_probe.probe(runtime.device) is Placement.DONATED
        and not runtime.policy.evict_always
        and runtime.counters.recorder is None
        and not runtime.verifies
        and not number_checks.looks_for_nans()
    )


def _segmented(
    runtime: Runtime, signature: Signature, residency: Residency, *, at_once: bool
) -> Pieces[Signature | None]:
    """The best form with segments, compiled; None if there is none that is better."""
    assert signature.program is not None
    # Where calls find the pool in another state each time, the last plan stands for the next.
    known = signature.plans.get(residency) or next(reversed(signature.plans.values()))
    profile, tuned = runtime.settings.profile, constants.TUNED
    now = _costs_of(signature.program, known.plan, known.refill_seconds)
    scale = _scale(now, profile, signature.tier.least_alone)

    def seconds_of(program: Program, needed: Sequence[int]) -> float:
        found = _planned_costs(runtime, program, residency, needed)
        return math.inf if found is None else _seconds(found, profile, scale)

    best = tuned.worthwhile_factor * _seconds(now, profile, scale)
    chosen: Signature | None = None
    forms = yield from forms_of(runtime, signature, residency, known)
    for _ in range(tuned.max_candidates):
        made: list[tuple[Form, Program]] = []
        expected: list[float] = []
        for form in forms:
            yield ()
            program = form.made(runtime.cache)
            made.append((form, program))
            expected.append(seconds_of(program, segment.temporary_bytes(program)))
        if min(expected, default=math.inf) >= best:
            break
        first = expected.index(min(expected))
        form, launches = made[first][0], len(made[first][1].operations)
        compiled = yield from _compiled(form, signature, runtime, at_once=at_once)
        if compiled is None or compiled.program is None:
            break
        seconds = seconds_of(compiled.program, compiled.workspaces or [])
        if seconds < best:
            chosen, best = compiled, seconds
        if seconds <= tuned.as_expected_factor * expected[first]:
            break
        # XLA needs more than was expected, for what is like it as well: that has to be smaller.
        forms = [
            other
            for other, program in made
            if other.written is not form.written
            or len(program.operations) >= tuned.more_segments_factor * launches
        ]
    return chosen


def _compiled(
    form: Form, signature: Signature, runtime: Runtime, *, at_once: bool
) -> Pieces[Signature | None]:
    """A form, compiled until XLA does with it what is known of it; None where it cannot."""
    found: Signature | None = None
    before: list[Kernel] = []
    examined: set[Kernel] = set()
    for _ in range(constants.TUNED.max_compilations):
        program = form.made(runtime.cache)
        kernels = [op.kernel for op in program.operations]
        if kernels == before:
            break
        before = kernels
        found = dataclasses.replace(
            signature,
            program=program,
            engine_programs={},
            plans=collections.OrderedDict(),
            planned=0,
            workspaces=None,
            unrolled=form.unrolled,
            known=None,
        )
        try:
            if at_once:
                compile_all(found, program, runtime)
            else:
                yield from compile_all_gradually(found, program, runtime)
        except (jax.errors.JaxRuntimeError, MemoryError):
            # XLA cannot compile so much at once: what runs so far goes on running.
            return None
        for kernel in kernels:
            if kernel in examined or not isinstance(kernel, Segment):
                continue
            yield ()
            examined.add(kernel)
            for member in isolation_check.differing(executable_cache.executables(kernel)):
                member.stands_apart = True
                found = None
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Costs:
    """What a plan is expected to take.

    Attributes:
      estimated_seconds: of its operations, launches included.
      launches: how many there are.
      arrays: how many they take and return.
      refill_seconds: for pages of XLA's workspace that come from the pool or the system each time.
    """

    estimated_seconds: float
    launches: int
    arrays: int
    refill_seconds: float


def _planned_costs(
    runtime: Runtime, program: Program, residency: Residency, needed: Sequence[int]
) -> _Costs | None:
    """Those of a plan of the program, None where it does not fit; `needed`: workspaces."""
    # One plan tells enough, and what thrashes is not wanted.
    policy = policies.without_search(runtime.policy)
    settings = dataclasses.replace(
        runtime.settings,
        policy=policy,
        alternatives=False,
        give_up=constants.TUNED.candidate_give_up_fraction,
        allowance=0,
    )
    planner = planning.WorkspacePlanner(
        program,
        lambda way: planning.core_program(program, residency.donated, provision=way),
        residency,
        runtime.capacity_bytes(),
        runtime.workspace_bytes,
    )
    plan, provision = planner.plan(settings, needed)
    if not plan.feasible:
        return None
    runs = plan.execution_order
    refill_seconds = workspace.refill_seconds(provision, runs)
    refill_seconds += workspace.malloc_seconds(provision, runs, needed)
    return _costs_of(program, plan, refill_seconds)


def _costs_of(program: Program, plan: _core.Plan, refill_seconds: float) -> _Costs:
    runs = [program.operations[number] for number in plan.execution_order]
    return _Costs(
        plan.stats.compute_seconds + plan.stats.recompute_seconds,
        len(runs),
        sum(len(op.operands) + len(op.results) for op in runs),
        refill_seconds,
    )


def _work(found: _Costs, profile: cost_model.DeviceProfile) -> float:
    """Estimated seconds without those of launching."""
    return max(0.0, found.estimated_seconds - profile.launch_seconds * found.launches)


def _beside(found: _Costs) -> float:
    """Seconds that are no work of operations, as measured."""
    tuned = constants.TUNED
    launching = tuned.launch_seconds * found.launches
    return launching + tuned.array_seconds * found.arrays + found.refill_seconds


def _scale(found: _Costs, profile: cost_model.DeviceProfile, measured: float) -> float:
    """By how much the work of operations takes longer or less here than their costs say.

    Costs are estimates; launches are not, so what they are worth must not depend on those.
    """
    working, estimated = measured - _beside(found), _work(found, profile)
    if not (math.isfinite(measured) and working > 0 and estimated > 0):
        return 1.0
    return working / estimated


def _seconds(found: _Costs, profile: cost_model.DeviceProfile, scale: float) -> float:
    """What a call is expected to take."""
    return scale * _work(found, profile) + _beside(found)
