"""How a verdict comes about.

Model: a claim is a number of checks, each a statement about the tables that holds or does not, or
that cannot be decided because rows are missing. The verdict is a function of them alone:

- reproduced: every check was decided and holds;
- partly: not so, but at least half of the decided ones hold;
- not reproduced: fewer hold;
- incomplete: all decided ones hold, but some could not be decided;
- no data: none could be decided.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

REPRODUCED = "reproduced"
PARTLY = "partly"
NOT = "not reproduced"
INCOMPLETE = "incomplete"
NO_DATA = "no data"

# Where the paper says "about" or "up to": our largest factor may be less than its by a fifth.
ABOUT = 0.8


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One statement; `holds` is None if the tables do not say."""

    what: str
    holds: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What the tables say of a claim: our number as text, and the checks."""

    ours: str
    checks: tuple[Check, ...]


def verdict(checks: Sequence[Check]) -> str:
    """The verdict of a claim; see the module."""
    decided = [check.holds for check in checks if check.holds is not None]
    if not decided:
        return NO_DATA
    if all(decided):
        return REPRODUCED if len(decided) == len(checks) else INCOMPLETE
    return PARTLY if sum(decided) * 2 >= len(decided) else NOT


def held(checks: Sequence[Check]) -> str:
    """How many hold, as text."""
    decided = [check.holds for check in checks if check.holds is not None]
    text = f"{sum(decided)} of {len(decided)}"
    undecided = len(checks) - len(decided)
    return f"{text} ({undecided} without data)" if undecided else text


def less(left: float | None, right: float | None, strictly: bool = True) -> bool | None:
    """Whether left < right (or <=), where infinite is out of memory. None if either is missing."""
    if left is None or right is None:
        return None
    return left < right if strictly else left <= right


def both_fail(left: float | None, right: float | None) -> bool:
    """Whether neither fits: then there is nothing to compare, and no check to make."""
    return left is not None and right is not None and math.isinf(left) and math.isinf(right)


def factor(large: float | None, small: float | None) -> float | None:
    """Large over small; None where either is missing or out of memory, or both are 0."""
    if large is None or small is None or math.isinf(large) or math.isinf(small):
        return None
    if small == 0:
        return None if large == 0 else math.inf
    return large / small


def times(value: float | None) -> str:
    """A factor as text."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:.2g}x" if value < 100 else f"{value:,.0f}x"
