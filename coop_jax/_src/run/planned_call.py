"""A call of `run` by plan: made once for each state of the pool, then repeated.

Model: a step that gives back what it was given (donated arrays at their addresses) finds the pool
as it left it, so its second or third plan is the last one. Where a caller keeps what a step
returns, the pool is another one each time, and so is the plan: from the fifth on such plans are
the policy's own, as a search at each step would take longer than it saves.
Thread rule: under the runtime's lock. Cost: a plan, or several; compiling what is not compiled yet.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence

import jax

from coop_jax import _core
from coop_jax._src.compat import number_checks
from coop_jax._src.execution.executor import execute
from coop_jax._src.execution.fitting import (
    Launches,
    fitted,
    launched,
    smallest_fitting,
    without_search,
)
from coop_jax._src.execution.instructions import CompiledPlan
from coop_jax._src.execution.plan_lowering import compile_plan
from coop_jax._src.execution.recomputations import Tally
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.execution.runtime_report import planning
from coop_jax._src.ir.program import Program
from coop_jax._src.planning.planner import PlanSettings, first_residency
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.planning.workspace import Provision
from coop_jax._src.run import constants as tuning
from coop_jax._src.run.argument_passing import (
    Inputs,
    copy_viewed,
    delete_donated,
    move_out,
    moved_out,
    residency_of,
    store_keys,
)
from coop_jax._src.run.donation import warn_of_kept
from coop_jax._src.run.refusals import exceeded
from coop_jax._src.run.specialization import Signature, compile_all, planner_of
from coop_jax._src.run.tiering import form_of
from coop_jax._src.util import progress
from coop_jax._src.util.errors import BudgetExceededError
from coop_jax._src.util.interrupts import Interrupts


def plan_of(
    runtime: Runtime,
    signature: Signature,
    program: Program,
    residency: Residency,
    *,
    fused: bool,
) -> CompiledPlan:
    """The plan for a state of the pool, made and compiled on first sight of it.

    Raises:
      BudgetExceededError: no plan fits beside the workspace of its operations.
    """
    plan = signature.plans.get(residency)
    if plan is None:
        with planning(runtime.counters, runtime.cache), progress.shown(runtime.progress):
            plan = _PlanMaker(runtime, signature, program, residency, fused).make()
        signature.planned += 1
        signature.plans[residency] = plan
        recomputed = runtime.counters.recomputed
        recomputed.watch(plan.tally)
        if len(signature.plans) > tuning.TUNED.kept_plans:
            recomputed.forget(signature.plans.popitem(last=False)[1].tally)
    return plan


@dataclasses.dataclass(frozen=True, slots=True)
class _PlanMaker:
    """Makes the plan that `plan_of` is asked for."""

    runtime: Runtime
    signature: Signature
    program: Program
    residency: Residency
    fused: bool

    def make(self) -> CompiledPlan:
        """By the first way that fits."""
        runtime, signature, program = self.runtime, self.signature, self.program
        # What is needed beside the values only compiling tells, also where no budget would do.
        needed = compile_all(signature, program, runtime)
        compiled: CompiledPlan | None = None

        def launches(plan: _core.Plan, provision: Provision) -> Launches:
            nonlocal compiled
            compiled, used = compile_plan(
                plan,
                program,
                self.residency,
                runtime.memory(),
                runtime.cache,
                provision=provision,
                earlier=signature.places.before(self.residency.offsets),
            )
            return used

        planner = planner_of(runtime, signature, program, self.residency)
        for way in self._ways():
            made = fitted(planner, way, needed, launches)
            if made.plan.feasible:
                assert compiled is not None
                unrolled = signature.unrolled
                if unrolled is not None:
                    compiled.counts = compiled.counts.with_unrolled(
                        recomputations=unrolled.recomputations, evictions=unrolled.evictions
                    )
                    again = zip(unrolled.program.operations, unrolled.again, strict=True)
                    inside = Tally.of(op for op, is_again in again if is_again)
                    compiled.tally.operations += inside.operations
                return compiled
        # Finding it takes seconds; another state of the pool is tried first where it can be.
        final = moved_out(self.residency) == self.residency
        smallest = self._smallest_budget(needed) if final else None
        raise exceeded(
            runtime, signature, program, made, self.residency, smallest, fused=self.fused
        )

    def _ways(self) -> Iterable[PlanSettings]:
        """A search may find what launches other forms, for whose workspace there is no room then.

        By the policy's own plan a budget was searched for that does.
        """
        settings = self.runtime.settings
        plain = without_search(settings)
        searched = self.signature.planned < tuning.TUNED.searched_plans
        return dict.fromkeys((settings, plain) if searched else (plain, settings))

    def _smallest_budget(self, needed: Sequence[int]) -> int | None:
        """A budget that would do for a runtime that is new, as another budget means."""
        runtime, program = self.runtime, self.program
        residency = first_residency(program)
        return smallest_fitting(
            lambda budget: planner_of(runtime, self.signature, program, residency, budget),
            runtime.capacity_bytes(),
            runtime.settings,
            needed,
            lambda plan, _: launched(plan, program, runtime.device, runtime.cache),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """What a call did.

    Attributes:
      values: its results, then the last contents of each input that is a reference.
      form: of its signature, that was run.
      plan: of the form, for `residency`.
      residency: where its inputs lay.
      obeyed: of `carry_out`.
      left: numbers of donated inputs that were to be deleted afterwards.
    """

    values: list[jax.Array]
    form: Signature
    plan: CompiledPlan
    residency: Residency
    obeyed: bool
    left: list[int]


def run_planned(
    runtime: Runtime,
    signature: Signature,
    inputs: Inputs,
    interrupts: Interrupts,
    *,
    fused: bool,
) -> Ran:
    """Carries out a call of a program that is known ahead, in the form that serves it best.

    Args:
      runtime: where to run.
      signature: the program, and what was made of it so far.
      inputs: arrays for the program's inputs; changed.
      interrupts: checked between operations, until a donated input is consumed.
      fused: whether operations were fused, for an error message.

    Raises:
      BudgetExceededError: the budget does not suffice.
    """
    assert signature.program is not None
    begin = time.perf_counter()
    memory = runtime.memory()
    store_keys(inputs, signature.kinds)
    residency = residency_of(inputs, signature.kinds, signature.constants, memory)
    warn_of_kept(signature, inputs, residency.donated)
    residency = copy_viewed(inputs, signature.kinds, signature.constants, residency)
    form = form_of(runtime, signature, residency)
    program = form.program
    assert program is not None
    try:
        plan = plan_of(runtime, form, program, residency, fused=fused)
    except BudgetExceededError:
        if form is not signature:
            signature.tier.give_up()
        elif not runtime.drop_residuals():
            moved = moved_out(residency)
            if moved == residency:
                raise
            # They are in the way where they lie. Without a plan nothing is moved: an error leaves
            # the arguments as they are.
            try:
                plan_of(runtime, form, program, moved, fused=fused)
            except BudgetExceededError as error:
                raise error from None
            interrupts.consumed = True  # the arguments are gone, what they held is here alone
            move_out(inputs, residency, memory)
        return run_planned(runtime, signature, inputs, interrupts, fused=fused)
    given = inputs.arrays
    values, obeyed = carry_out(runtime, form, plan, given, interrupts)
    left = delete_donated(residency, given, values, runtime.device)
    signature.places.note(program, residency.offsets)
    seconds = time.perf_counter() - begin
    signature.tier.ran(seconds)
    runtime.counters.call_seconds += seconds
    return Ran(values, form, plan, residency, obeyed, left)


def carry_out(
    runtime: Runtime,
    form: Signature,
    plan: CompiledPlan,
    given: list[jax.Array],
    interrupts: Interrupts,
) -> tuple[list[jax.Array], bool]:
    """Carries out a plan of a form for these inputs; counts what it did.

    Returns:
      As `execute` does.
    """
    counters, memory = runtime.counters, runtime.memory()
    measured = counters.compute_seconds
    constants, verifier = form.constants, runtime.verifier()
    recording = runtime.recording
    begin = 0.0 if recording is None else recording.begin_plan(plan)
    with number_checks.noting() as noted:
        done = execute(plan, given, constants, memory, counters, interrupts, verifier)
        noted.check(done[0])
    if recording is not None:
        assert form.program is not None
        recording.end_plan(plan, form.program, begin)
    if form.unrolled is not None:
        # Its segments hold first runs and recomputations: what they took is shared out.
        again = form.unrolled.recompute_share * (counters.compute_seconds - measured)
        counters.compute_seconds -= again
        counters.recompute_seconds += again
    plan.tally.calls += 1
    runtime.count(plan.counts)
    return done
