"""One program of a function under `coop_jax.jit`: of one signature, compiled, within the budget.

Model: where the program of `jax.jit` fits, it is the program, and a budget that is a fraction is
one of what it needs. Else its jaxpr is planned; where that is sure from what is expected of it,
without compiling it. A plan that an earlier process found and kept is taken without either.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from coop_jax._src.compat import jaxprs
from coop_jax._src.compat.guards import Guard
from coop_jax._src.jit import plan_cache
from coop_jax._src.jit.compiled_plans import Planning, check_agreement
from coop_jax._src.jit.constants import TUNED
from coop_jax._src.jit.fitting import fit
from coop_jax._src.jit.options import JitOptions
from coop_jax._src.jit.plain_program import PlainProgram
from coop_jax._src.jit.program_planner import ProgramPlanner
from coop_jax._src.jit.refusals import exceeded
from coop_jax._src.jit.report import NOT_ASKED, PlanReport, lines_of


@dataclasses.dataclass(slots=True)
class JittedProgram:
    """A program that fits.

    Attributes:
      jitted: JAX's function; it refuses what it was not made for.
      guard: what refuses.
      unguarded: the same function for what is done with it outside of calls, such as its jaxpr;
        None where a plan was kept without that.
      report: what was found; what `jax.jit` needs may come to it later.
    """

    jitted: Any
    guard: Guard
    unguarded: Any
    report: PlanReport


def make_program(
    options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any], *, stored: bool = True
) -> JittedProgram:
    """The program of a call.

    Args:
      options: of the function.
      args: of the call; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: likewise.
      stored: whether a plan on disk will do, and one that is made is kept there.

    Raises:
      BudgetExceededError: nothing that was found fits.
      NotImplementedError: it would have to be planned, and cannot be.
      What `jax.jit` raises where it traces and compiles.
    """
    plain = PlainProgram(options, args, kwargs)
    with plain.guard.opened():
        if options.budget is None:
            return _as_it_is(options, plain, None)
        place = plan_cache.place_of(options, plain) if stored else None
        plans = Planning(options, args, kwargs, plain, exports=place is not None)
        found = None if place is None else _stored(plans, place)
        return found or _within(options, plain, plans, place)


def _within(
    options: JitOptions, plain: PlainProgram, plans: Planning, place: plan_cache.Place | None
) -> JittedProgram:
    """The program within the budget."""
    budget = options.budget
    assert budget is not None
    planner = _planner_of(plans) if isinstance(budget, int) and plain.devices == 1 else None
    needed = _needed_bytes(plain, budget, planner)
    if plain.spans_processes:
        check_agreement(f"{options.budget} {needed} {options.respect_checkpoints}", "budgets")
    if isinstance(budget, float):
        budget = max(1, int(needed * budget))
    if needed != NOT_ASKED and needed <= budget:
        return _as_it_is(options, plain, budget)
    fitted = fit(planner or plans.planner(), plans.compiled, budget)
    if fitted.smallest_bytes is not None:
        needed = needed or plain.needed_bytes
        if needed <= budget:
            return _as_it_is(options, plain, budget)
        names = jaxprs.argument_names(plain.traced.jaxpr.jaxpr)
        raise exceeded(fitted, budget, needed, names)
    planned, made = fitted.planned, fitted.made
    report = PlanReport(
        budget,
        needed,
        fitted.needed_bytes,
        planned.predicted_bytes,
        fitted.attempts,
        planned.remade.recomputations,
        planned.recompute_share,
        lines_of(planned),
    )
    spent = sum(attempt.plan_seconds + attempt.compile_seconds for attempt in fitted.attempts)
    if place is not None and made.exported is not None and spent >= place.least_seconds:
        place.write(plan_cache.Record(made.exported, made.watched, report))
    return JittedProgram(made.jitted, made.guard, made.unguarded, report)


def _needed_bytes(plain: PlainProgram, budget: int | float, planner: ProgramPlanner | None) -> int:
    """What the program of `jax.jit` needs, which is ready to run where it is likely to fit.

    `NOT_ASKED` where it is sure not to fit: it is not compiled then.
    """
    if isinstance(budget, float):
        is_likely = budget == 1.0
    elif planner is None:
        is_likely = True
    else:
        expected = planner.expected_bytes()
        if expected > TUNED.certain_excess * budget:
            return NOT_ASKED
        is_likely = expected <= budget
    return plain.compile() if is_likely else plain.needed_bytes


def _stored(plans: Planning, place: plan_cache.Place) -> JittedProgram | None:
    """The program that an earlier process kept; None if there is none that fits."""
    record = place.read()
    if record is None:
        return None
    made = plans.stored(record.program, record.watched)
    budget = record.report.budget_bytes
    if budget is None or made.needed_bytes > budget:
        return None
    return JittedProgram(made.jitted, made.guard, None, record.report)


def _as_it_is(options: JitOptions, plain: PlainProgram, budget: int | None) -> JittedProgram:
    """The program of `jax.jit`."""
    needed = plain.compile()
    unguarded = options.jitted(options.convention.fn, options.compiler_options)
    return JittedProgram(plain.jitted, plain.guard, unguarded, PlanReport(budget, needed, needed))


def _planner_of(plans: Planning) -> ProgramPlanner | None:
    """The planner of a call; None where it cannot be planned."""
    try:
        return plans.planner()
    except NotImplementedError:
        return None
