"""Budgets, policies and sizes as they are written on a command line.

Thread rule: functions of their arguments. Errors: `ArgumentTypeError`, to which argparse adds the
option's name.
"""

from __future__ import annotations

import argparse
import dataclasses
import re

from coop_jax._src.planning import policies
from coop_jax._src.util import budget as budgets

_PERCENT = re.compile(r"([0-9.]+)\s*%")
_FRACTION = re.compile(r"[0-9]*\.[0-9]+")
BUDGET_HELP = "50%% or 0.5 (of the peak without a budget), 20GiB, 512MB, or none"


@dataclasses.dataclass(frozen=True, slots=True)
class GivenBudget:
    """A budget as it was written.

    Attributes:
      text: that.
      budget: bytes, a fraction, or None for no cap.
    """

    text: str
    budget: int | float | None

    def resolved(self, unbudgeted_peak_bytes: int) -> int | None:
        """Bytes; a fraction is one of this peak."""
        if isinstance(self.budget, float):
            return max(1, int(self.budget * unbudgeted_peak_bytes))
        return self.budget


def given_budget(text: str) -> GivenBudget:
    """Reads one budget."""
    text = text.strip()
    try:
        if text.lower() == "none":
            return GivenBudget(text, None)
        if (percent := _PERCENT.fullmatch(text)) is not None:
            return GivenBudget(text, _fraction(text, percent[1], 100))
        if _FRACTION.fullmatch(text):
            return GivenBudget(text, _fraction(text, text, 1))
        return GivenBudget(text, budgets.parse_bytes(text))
    except ValueError as error:
        said = str(error) if "positive" in str(error) else f"{text!r} is no size"
        raise argparse.ArgumentTypeError(
            f"{said}: write {BUDGET_HELP.replace('%%', '%')}"
        ) from error


def _fraction(text: str, number: str, whole: int) -> float:
    value = float(number) / whole
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is more than all, or nothing: a fraction is above 0% and at most 100%;"
            " sizes have a unit, such as 20GiB"
        )
    return value


def given_budgets(text: str) -> list[GivenBudget]:
    """Reads budgets separated by commas."""
    return [given_budget(part) for part in text.split(",")]


def policy_name(text: str) -> str:
    """Reads the name of a policy."""
    name = text.strip()
    try:
        policies.resolve_policy(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def policy_names(text: str) -> list[str]:
    """Reads names of policies separated by commas."""
    return [policy_name(part) for part in text.split(",")]
