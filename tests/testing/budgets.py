"""Budgets that suffice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import coop_jax


def smallest_feasible(call: Callable[[int], Any], wanted_bytes: int, most_bytes: int) -> int:
    """The least budget found from `wanted_bytes` up at which `call` succeeds.

    `BudgetExceededError` names the smallest budget where the program is known ahead; elsewhere this
    goes up in steps of 2.5% of `most_bytes`.
    """
    budget_bytes = wanted_bytes
    while True:
        try:
            call(budget_bytes)
        except coop_jax.BudgetExceededError as error:
            assert budget_bytes < 2 * most_bytes, "twice the unbudgeted peak does not suffice"
            known = error.report.smallest_budget_bytes
            budget_bytes = max(known or 0, budget_bytes + most_bytes // 40)
        else:
            return budget_bytes
