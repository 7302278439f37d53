"""Claims on compute overhead, budgets and batches. See `rules` for what a check is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from examples.paper.evaluation.tables import Budgets
from examples.paper.report.data import (
    EIGHT,
    MAIN,
    RATIOS,
    Results,
    percent,
    title,
)
from examples.paper.report.rules import (
    ABOUT,
    Check,
    Outcome,
    both_fail,
    factor,
    held,
    less,
    times,
)

CONSISTENT = ("bert", "unet", "bilstm", "gpt3")
IMAGES = ("resnet50", "inception", "swin")
RIVALS = ("dte", "dtr")


def label(method: str) -> str:
    """A main method as the text calls it."""
    return {"coop": "Coop", "dte": "DTE", "dtr": "DTR"}[method]


def compare(
    r: Results, network: str, ratio: float, lower: str, higher: str, strictly: bool
) -> Iterator[Check]:
    """Whether one overhead is below another; nothing where neither method completes."""
    left, right = r.cost(network, lower, ratio), r.cost(network, higher, ratio)
    if not both_fail(left, right):
        sign = "<" if strictly else "≤"
        yield Check(
            f"{title(network)} at {ratio:.0%}: {label(lower)} {percent(left, 1)} {sign}"
            f" {label(higher)} {percent(right, 1)}",
            less(left, right, strictly),
        )


def lowest(r: Results) -> Outcome:
    checks = tuple(
        check
        for network in EIGHT
        for ratio in RATIOS
        for rival in RIVALS
        for check in compare(r, network, ratio, "coop", rival, strictly=False)
    )
    return Outcome(f"lowest in {held(checks)} comparisons", checks)


def order(r: Results) -> Outcome:
    checks = tuple(
        check
        for network in CONSISTENT
        for ratio in RATIOS
        for pair in itertools.pairwise(MAIN)
        for check in compare(r, network, ratio, *pair, strictly=True)
    )
    return Outcome(f"in this order in {held(checks)} comparisons", checks)


def bert_50(r: Results) -> Outcome:
    coop, dte, dtr = (r.cost("bert", method, 0.5) for method in MAIN)
    ours = f"Coop {percent(coop)}, DTE {percent(dte)}, DTR {percent(dtr)}"
    return Outcome(
        ours,
        (
            Check("Coop at most 11%", less(coop, 0.11, strictly=False)),
            Check("Coop < DTE", less(coop, dte)),
            Check("DTE < DTR", less(dte, dtr)),
        ),
    )


def smallest_ratio(r: Results, network: str, method: str) -> float | None:
    """The least ratio that completes, more than 1 if none does; None if none was simulated."""
    rows = [x for x in r.overhead if (x.network, x.method) == (network, method)]
    return min((x.ratio for x in rows if x.feasible), default=1.1) if rows else None


def inception_40(r: Results) -> Outcome:
    least = {method: smallest_ratio(r, "inception", method) for method in MAIN}
    checks = [Check("Coop completes at 40%", less(least["coop"], 0.41))]
    checks += [
        Check(
            f"{label(m)} does not complete below 70%",
            None if least[m] is None else not less(least[m], 0.69),
        )
        for m in RIVALS
    ]
    ours = ", ".join(
        f"{label(m)} " + ("at none" if value is not None and value > 1 else percent(value))
        for m, value in least.items()
    )
    return Outcome(f"completes down to: {ours}", tuple(checks))


def _budgets_lowest(r: Results, what: Callable[[Budgets], int], strictly: bool) -> Outcome:
    checks = []
    for network in EIGHT:
        for rival in RIVALS:
            rows = r.budget(network, "coop"), r.budget(network, rival)
            left, right = (None if row is None else what(row) for row in rows)
            shares = [
                percent(None if row is None else what(row) / row.unbudgeted_peak_bytes, 1)
                for row in rows
            ]
            checks.append(
                Check(
                    f"{title(network)}: Coop {shares[0]}, {label(rival)} {shares[1]} of the peak",
                    less(left, right, strictly),
                )
            )
    return Outcome(f"lowest in {held(checks)} comparisons", tuple(checks))


def minimum_lowest(r: Results) -> Outcome:
    return _budgets_lowest(r, lambda row: row.min_bytes, strictly=False)


def cutoff_lowest(r: Results) -> Outcome:
    return _budgets_lowest(r, lambda row: row.cutoff_bytes, strictly=True)


def memory_saving(r: Results) -> Outcome:
    # A minimum that was not searched is more than the largest budget simulated that is too little.
    factors: list[tuple[float, str]] = []
    saved: list[float] = []
    for network in EIGHT:
        coop = r.budget(network, "coop")
        for rival in RIVALS:
            other = r.budget(network, rival)
            least = _largest_refused(r, network, rival) if other is None else other.min_bytes
            if coop is None or least is None:
                continue
            times_more = factor(least, coop.min_bytes)
            if times_more is not None:
                factors.append((times_more, f"{title(network)} against {label(rival)}"))
            peak = coop.unbudgeted_peak_bytes
            share = factor(peak - coop.min_bytes, max(0, peak - least))
            saved += [] if share is None else [share]
    if not factors:
        return Outcome("–", (Check("some network has budgets", None),))
    most, where = max(factors)
    known = all(r.budget(network, method) is not None for network in EIGHT for method in MAIN)
    holds = True if most >= 2 * ABOUT else False if known else None
    ours = f"{times(most)} ({where})"
    if saved:
        ours += f"; of saved bytes {times(max(saved))}"
    return Outcome(ours, (Check("at least 1.6x", holds),))


def _largest_refused(r: Results, network: str, method: str) -> int | None:
    """The largest budget simulated at which a method does not complete."""
    rows = [row for ratio in RATIOS if (row := r.step(network, method, ratio)) is not None]
    return max((row.budget_bytes for row in rows if not row.feasible), default=None)


def high_ratio_images(r: Results) -> Outcome:
    checks, costs = [], []
    for network in IMAGES:
        for ratio in (0.9, 0.8):
            for method in MAIN:
                cost = r.cost(network, method, ratio)
                checks.append(
                    Check(
                        f"{title(network)} at {ratio:.0%}: {label(method)} {percent(cost, 1)}",
                        less(cost, 0.10, strictly=False),
                    )
                )
                costs += [] if cost is None else [cost]
    return Outcome(
        f"at most {percent(max(costs, default=None))}; {held(checks)} low", tuple(checks)
    )


def high_ratio_others(r: Results) -> Outcome:
    checks, texts = [], []
    for network in ("unet", "bilstm", "bert"):
        coop = r.cost(network, "coop", 0.9)
        for rival in RIVALS:
            other = r.cost(network, rival, 0.9)
            holds = None if coop is None or other is None else other >= 2 * coop and other > coop
            checks.append(
                Check(
                    f"{title(network)}: Coop {percent(coop, 1)}, {label(rival)}"
                    f" {percent(other, 1)}",
                    holds,
                )
            )
        costs = " / ".join(percent(r.cost(network, method, 0.9)) for method in MAIN)
        texts.append(f"{title(network)} {costs}")
    return Outcome("Coop / DTE / DTR: " + "; ".join(texts), tuple(checks))


def largest_factor(
    r: Results, network: str, value: Callable[[str, float], float | None], least: float
) -> Outcome:
    """The largest factor of DTR's over Coop's number at any budget, which has to be `least`."""
    found = []
    for ratio in RATIOS:
        factor_here = factor(value("dtr", ratio), value("coop", ratio))
        if factor_here is not None:
            found.append((factor_here, ratio))
    what = f"at least {least:g}x"
    done = all(r.step(network, m, x) is not None for m in ("coop", "dtr") for x in RATIOS)
    if not found:
        text = "no budget that both complete" if done else "–"
        return Outcome(text, (Check(what, False if done else None),))
    best, ratio = max(found)
    factors = f"{times(min(found)[0])} to {times(best)}, largest at {ratio:.0%}"
    return Outcome(factors, (Check(what, True if best >= least else False if done else None),))


def gpt_overhead(r: Results) -> Outcome:
    return largest_factor(r, "gpt3", lambda m, ratio: r.cost("gpt3", m, ratio), 5 * ABOUT)


def gpt_minimum(r: Results) -> Outcome:
    coop, dtr = r.budget("gpt3", "coop"), r.budget("gpt3", "dtr")
    if coop is None or dtr is None:
        return Outcome("–", (Check("at most 75% of DTR's", None),))
    share = coop.min_bytes / dtr.min_bytes
    ours = f"{1 - share:.1%} below" if share <= 1 else f"{share - 1:.1%} above"
    return Outcome(ours, (Check("at most 75% of DTR's", share <= 0.75),))


def batch_largest(r: Results) -> Outcome:
    batches = {(row.network, row.method): row.batch for row in r.batch}
    checks = []
    networks = dict.fromkeys(row.network for row in r.batch) if r.batch else EIGHT
    for network in networks:
        coop = batches.get((network, "coop"))
        for rival in RIVALS:
            other = batches.get((network, rival))
            checks.append(
                Check(
                    f"{title(network)}: Coop {coop}, {label(rival)} {other}",
                    less(other, coop, strictly=False),
                )
            )
    return Outcome(f"largest in {held(checks)} comparisons", tuple(checks))
