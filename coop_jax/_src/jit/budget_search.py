"""Budgets of a call of `coop_jax.jit`: the least that is accepted, what is expected of others.

Model: what a call accepts is decided by XLA's numbers, so the least budget is found by compiling,
and every answer is one that a call accepts. What is expected of a budget is what the first plan
made for it says; no plan is compiled for that.

Thread rule: functions of their arguments. Cost: `least_budget` compiles twice, some more times with
a limit of overhead; `predictions` only plans.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from coop_jax._src.jit.compiled_plans import Planning, check_agreement
from coop_jax._src.jit.constants import TUNED
from coop_jax._src.jit.fitting import fit, least_needed
from coop_jax._src.jit.options import JitOptions
from coop_jax._src.jit.plain_program import PlainProgram
from coop_jax._src.jit.program_family import Planned
from coop_jax._src.jit.program_planner import ProgramPlanner
from coop_jax._src.jit.signatures import signature_key
from coop_jax._src.planning import planner as planning
from coop_jax._src.planning.policies import Policy
from coop_jax._src.util import progress


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a budget.

    Attributes:
      policy: how it was planned.
      budget_bytes: on one device; None without a budget.
      plain_bytes: what is expected that `jax.jit` needs.
      planned: the plan, feasible or not.
    """

    policy: Policy
    budget_bytes: int | None
    plain_bytes: int
    planned: Planned


def least_budget(
    options: JitOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    max_overhead: float | None = None,
) -> int:
    """The least budget that a call accepts, in bytes; that of `options` does not matter.

    Args:
      options: of the function.
      args: of the call; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: likewise.
      max_overhead: the most recompute seconds / compute seconds that will do; None for any.

    Raises:
      NotImplementedError: the program cannot be planned.
      What `jax.jit` raises where it traces and compiles.
    """
    signature_key(options.convention, args, kwargs)  # refuses what is no array
    plain = PlainProgram(options, args, kwargs)
    needed = plain.needed_bytes
    if plain.spans_processes:
        check_agreement(f"{max_overhead} {needed} {options.respect_checkpoints}", "limits")
    compiling = Planning(options, args, kwargs, plain)
    planner = compiling.planner()
    if max_overhead is None:
        return min(needed, least_needed(planner, compiling.compiled))
    return _least_within(planner, compiling, needed, max_overhead)


def _least_within(
    planner: ProgramPlanner, compiling: Planning, plain_bytes: int, max_overhead: float
) -> int:
    """The least budget found with which a call compiles a plan that is within the overhead.

    Without recomputation a call has the program of `jax.jit`: with more than that needs nothing has
    to be tried.
    """
    capacity = _least_capacity_within(planner, max_overhead)
    budget = math.ceil(capacity / TUNED.first_fraction)
    if capacity == planner.least_capacity():
        budget = least_needed(planner, compiling.compiled)
    for _ in range(TUNED.max_tried_budgets):
        if budget >= plain_bytes:
            break
        fitted = fit(planner, compiling.compiled, budget)
        if fitted.needed_bytes <= budget and fitted.planned.overhead <= max_overhead:
            return budget
        # A call whose first plan needs too much corrects it by as much.
        first = fitted.attempts[0]
        excess = first.needed_bytes / first.predicted_bytes
        corrected = capacity * excess / TUNED.correction
        budget = math.ceil(max(corrected, budget * (1 + TUNED.overhead_resolution)))
    return plain_bytes


def _least_capacity_within(planner: ProgramPlanner, max_overhead: float) -> int:
    def will_do(capacity: int) -> bool:
        found = planner.predict(capacity)
        return found.plan.feasible and found.overhead <= max_overhead

    low = planner.least_capacity()
    high = planning.peak_bytes(planner.predict_plain().plan.stats)
    if will_do(low):
        return low
    resolution = max(1, int(high * TUNED.overhead_resolution))
    while high - low > resolution:
        middle = (low + high) // 2
        if will_do(middle):
            high = middle
        else:
            low = middle
    return high


def predictions(
    options: JitOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budgets: Sequence[int | float | None],
    policies: Sequence[Policy],
) -> list[Prediction]:
    """What is expected of budgets under policies: the first plan that a call makes for each.

    Args:
      options: of the function; its budget and policy do not matter.
      args: of the call; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: likewise.
      budgets: bytes, fractions of what is expected that `jax.jit` needs, or None.
      policies: how to plan.

    Returns:
      One for each policy and budget, policies outermost.

    Raises:
      NotImplementedError: the program cannot be planned.
      What `jax.jit` raises where it traces.
    """
    signature_key(options.convention, args, kwargs)  # refuses what is no array
    plain = PlainProgram(options, args, kwargs)
    found = []
    with progress.progress_bar(len(policies) * len(budgets), "planning") as bar:
        for policy in policies:
            asked = dataclasses.replace(options, policy=policy)
            planner = Planning(asked, args, kwargs, plain).planner()
            without = planner.predict_plain()
            for budget in budgets:
                found.append(_prediction(planner, without, policy, budget))
                bar.update()
    return found


def _prediction(
    planner: ProgramPlanner, plain: Planned, policy: Policy, budget: int | float | None
) -> Prediction:
    plain_bytes = planning.peak_bytes(plain.plan.stats)
    if isinstance(budget, float):
        budget = max(1, int(plain_bytes * budget))
    planned = plain
    if budget is not None and budget < plain_bytes:
        planned = planner.predict(int(budget * TUNED.first_fraction))
    return Prediction(policy, budget, plain_bytes, planned)
