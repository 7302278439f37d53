"""Where a policy loses to per-layer checkpointing, the static rival that anyone can place by hand.

Model: per-layer checkpointing needs a peak and has an overhead. A policy loses at a budget at
which it uses at least that peak and has a larger overhead, or of at least that peak without
completing.
"""

from __future__ import annotations

import dataclasses

from examples.paper.evaluation.tables import Overhead, Static
from examples.paper.report.data import EIGHT, Results, percent, title
from examples.paper.report.style import LOOKS

POLICIES = ("coop", "dte", "dtr", "dtr-exact")


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A policy and the budgets at which it loses on a network."""

    network: str
    rival: Static
    method: str
    rows: tuple[Overhead, ...]

    def cells(self) -> tuple[str, ...]:
        """The row of the page's table."""
        where = ", ".join(f"{row.ratio:.0%} ({_cost(row)})" for row in self.rows)
        rival = f"{percent(self.rival.ratio, 1)}, {percent(self.rival.overhead, 1)}"
        return title(self.network), rival, LOOKS[self.method].label, where


def _cost(row: Overhead) -> str:
    if not row.feasible:
        return "OOM"
    repeated = row.repeated_seconds / row.compute_seconds if row.compute_seconds else 0.0
    return f"{percent(row.overhead)}, {percent(repeated)} again"


def find(r: Results) -> list[Loss]:
    """All losses, by network and policy."""
    found = []
    for network in EIGHT:
        rival = r.rival(network, "per-layer")
        if rival is None:
            continue
        for method in POLICIES:
            rows = tuple(
                row
                for ratio in r.ratios()
                if (row := r.step(network, method, ratio)) is not None and loses(row, rival)
            )
            if rows:
                found.append(Loss(network, rival, method, rows))
    return found


def loses(row: Overhead, rival: Static) -> bool:
    """Whether a policy's step is worse than the rival, at the same memory or more."""
    if not row.feasible:
        return row.budget_bytes >= rival.peak_bytes
    return row.peak_bytes >= rival.peak_bytes and row.overhead > rival.overhead
