"""The plan of a call of `run`: made once for each state of the pool, then repeated.

Model: a step that gives back what it was given (donated arrays at their addresses) finds the pool
as it left it, so its second or third plan is the last one. Where a caller keeps what a step
returns, the pool is another one each time, and so is the plan: from the fifth on such plans are
the policy's own, as a search at each step would take longer than it saves.
Thread rule: under the runtime's lock. Cost: a plan, or several; compiling what is not compiled yet.
"""

from __future__ import annotations

import dataclasses

from coop_jax import _core
from coop_jax._src import planning, policies
from coop_jax._src.instructions import CompiledPlan, compile_plan
from coop_jax._src.planning import Residency
from coop_jax._src.program import Program
from coop_jax._src.runtime import Runtime
from coop_jax._src.signatures import Signature, compile_all, engine_program_of, exceeded

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
    engine_program = engine_program_of(signature, program, residency.donated)
    settings = runtime._settings
    if signature.planned >= _SEARCHED:
        settings = dataclasses.replace(settings, policy=policies.without_search(settings.policy))

    def attempt(workspace: int, settings: planning.PlanSettings = settings) -> _core.Plan:
        plan = planning.make_plan(
            program,
            engine_program,
            residency,
            settings,
            capacity_bytes=runtime.capacity_bytes(),
            workspace_bytes=workspace,
        )
        if not plan.feasible:
            if settings != runtime._settings:
                return attempt(workspace, runtime._settings)
            raise exceeded(
                runtime, program, engine_program, residency, plan, workspace, fused=fused
            )
        return plan

    # What is needed beside the values only compiling tells, also where no budget would do.
    workspace = max(runtime._workspace_bytes, compile_all(signature, program, runtime))
    while True:
        plan = attempt(workspace)
        compiled = compile_plan(
            plan,
            program,
            residency.where,
            residency.donated,
            runtime.memory(),
            runtime._cache,
            workspace_bytes=workspace,
            outside_bytes=plan.stats["peak_outside_bytes"],
        )
        if compiled.workspace_bytes <= workspace:
            return compiled
        workspace = compiled.workspace_bytes
