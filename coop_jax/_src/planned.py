"""The plan of a call of `run`: made once for each state of the pool, then repeated.

Model: a step that gives back what it was given (donated arrays at their addresses) finds the pool
as it left it, so its second or third plan is the last one. Where a caller keeps what a step
returns, the pool is another one each time, and so is the plan: from the fifth on such plans are
the policy's own, as a search at each step would take longer than it saves.
Thread rule: under the runtime's lock. Cost: a plan, or several; compiling what is not compiled yet.
"""

from __future__ import annotations

import dataclasses

from coop_jax._src import policies
from coop_jax._src.instructions import CompiledPlan, compile_plan
from coop_jax._src.planning import Residency
from coop_jax._src.program import Program
from coop_jax._src.runtime import Runtime
from coop_jax._src.signatures import Signature, compile_all, exceeded, planner_of

# Plans are kept for so many different states of the pool for each signature.
_KEPT = 16

# So many of them are searched for, where the policy searches.
_SEARCHED = 4


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
        plan = _make(runtime, signature, program, residency, fused=fused)
        signature.planned += 1
        signature.plans[residency] = plan
        if len(signature.plans) > _KEPT:
            signature.plans.popitem(last=False)
    return plan


def _make(
    runtime: Runtime,
    signature: Signature,
    program: Program,
    residency: Residency,
    *,
    fused: bool,
) -> CompiledPlan:
    planner = planner_of(runtime, signature, program, residency)
    settings = runtime._settings
    if signature.planned >= _SEARCHED:
        settings = dataclasses.replace(settings, policy=policies.without_search(settings.policy))
    # What is needed beside the values only compiling tells, also where no budget would do.
    needed = list(compile_all(signature, program, runtime))
    while True:
        plan, provision = planner.plan(settings, needed)
        if not plan.feasible and settings != runtime._settings:
            settings = runtime._settings
            continue
        if not plan.feasible:
            smallest = planner.smallest_budget(runtime._settings, needed)
            raise exceeded(runtime, program, plan, smallest, fused=fused)
        compiled, used = compile_plan(
            plan,
            program,
            residency.where,
            residency.donated,
            runtime.memory(),
            runtime._cache,
            provision=provision,
            outside_bytes=plan.stats["peak_outside_bytes"],
        )
        if all(provision.suffices(number, nbytes) for number, nbytes in used):
            return compiled
        for number, nbytes in used:
            needed[number] = max(needed[number], nbytes)
