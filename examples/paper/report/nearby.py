"""Which of two methods recomputes less, wherever that does not hang on chance.

Model: which tensors are evicted first changes with every percent of memory, and so does which of
two methods recomputes less. So a pair of methods is compared at nine budgets within 1% of each
ratio: one is called worse only if it is so at eight of them or more. Where neither is, the
difference is none that the budget would not make, too. Out of memory counts as infinite.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from examples.paper.evaluation.methods import NEARBY_FACTORS
from examples.paper.report.data import Results, known

CLEARLY = len(NEARBY_FACTORS) - 1

PAIRS = (
    ("Without the window, beside Coop", "coop-no-window", "coop"),
    (
        "Without the window, beside Coop with the same heuristic (DTE's): the window alone",
        "coop-no-window",
        "coop-by-size",
    ),
    ("Coop with DTE's heuristic, beside Coop: the heuristic alone", "coop-by-size", "coop"),
    ("Without in-place, beside Coop", "coop-no-in-place", "coop"),
    ("Without partitioning, beside Coop", "coop-no-partition", "coop"),
    ("DTE, beside Coop", "dte", "coop"),
    ("DTR, beside DTE", "dtr", "dte"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """At how many ratios the first of two methods recomputes more, less, or it hangs on chance."""

    worse: int = 0
    better: int = 0
    neither: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.worse + other.worse, self.better + other.better, self.neither + other.neither
        )

    @property
    def total(self) -> int:
        """Ratios compared."""
        return self.worse + self.better + self.neither

    def text(self) -> str:
        """In a cell."""
        return f"{self.worse} / {self.better} / {self.neither}" if self.total else "–"


def compare(first: Sequence[float], second: Sequence[float]) -> Counts:
    """Overheads of two methods at the same budgets; nothing if they are the same at all of them."""
    pairs = list(zip(first, second, strict=True))
    worse, better = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    if not worse and not better:
        return Counts()
    if worse >= CLEARLY:
        return Counts(worse=1)
    return Counts(better=1) if better >= CLEARLY else Counts(neither=1)


def table(r: Results) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Head and rows: for each pair, counts by network and together."""
    found: dict[tuple[str, str, float], list[tuple[int, float]]] = collections.defaultdict(list)
    titles = {row.network: row.title for row in r.nearby}
    for row in r.nearby:
        found[row.network, row.method, row.ratio].append((row.budget_bytes, row.overhead))
    networks = known(titles)
    rows = []
    for name, one, other in PAIRS:
        counts = []
        for network in networks:
            sums = Counts()
            for (where, method, ratio), values in found.items():
                beside = found.get((network, other, ratio))
                if (where, method) == (network, one) and beside:
                    sums += compare(
                        [cost for _, cost in sorted(values)], [cost for _, cost in sorted(beside)]
                    )
            counts.append(sums)
        together = sum(counts, Counts())
        rows.append((name, together.text(), *(each.text() for each in counts)))
    return ("", "Together", *(titles[n] for n in networks)), tuple(rows)
