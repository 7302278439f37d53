"""Claims on search latency and fragmentation. See `rules` for what a check is."""

from __future__ import annotations

from collections.abc import Callable

from examples.paper.evaluation.tables import Overhead
from examples.paper.report.data import EIGHT, MAIN, NETWORKS, RATIOS, Results, percent, title
from examples.paper.report.overheads import RIVALS, label, largest_factor
from examples.paper.report.rules import ABOUT, Check, Outcome, factor, held, less, times

Pairs = list[tuple[str, float, Overhead, Overhead]]


def pairs(r: Results, lower: str, higher: str, networks: tuple[str, ...] = EIGHT) -> Pairs:
    """The rows of two methods, at every network and budget that both complete."""
    return [
        (network, ratio, left, right)
        for network in networks
        for ratio in RATIOS
        if (left := r.feasible(network, lower, ratio)) is not None
        and (right := r.feasible(network, higher, ratio)) is not None
    ]


def searched(found: Pairs) -> Pairs:
    """Those where both searched at all."""
    return [pair for pair in found if pair[2].searches and pair[3].searches]


def micros(seconds: float | None) -> str:
    """Seconds as text, in microseconds."""
    return "–" if seconds is None else f"{seconds * 1e6:,.3g} µs"


def _majority(name: str, wins: list[bool]) -> Check:
    what = f"{name}: {sum(wins)} of {len(wins)} cases"
    return Check(what, sum(wins) * 2 > len(wins) if wins else None)


def most(r: Results) -> Outcome:
    checks = tuple(
        _majority(
            f"below {label(rival)}",
            [
                a.mean_search_seconds < b.mean_search_seconds
                for _, _, a, b in searched(pairs(r, "coop", rival, NETWORKS))
            ],
        )
        for rival in RIVALS
    )
    ours = "; ".join(check.what for check in checks)
    return Outcome(ours, (*checks, *absent(r, MAIN)))


def bilstm(r: Results) -> Outcome:
    rows = [row for ratio in RATIOS if (row := r.feasible("bilstm", "dtr", ratio)) is not None]
    longest = max((row.max_search_seconds for row in rows), default=None)
    least = min(
        (
            row.mean_search_seconds
            for ratio in RATIOS
            if (row := r.feasible("resnet50", "dtr", ratio)) is not None and row.searches
        ),
        default=None,
    )
    orders = factor(longest, least)
    means = [
        (factor(b.mean_search_seconds, a.mean_search_seconds), ratio)
        for _, ratio, a, b in searched(pairs(r, "coop", "dtr", ("bilstm",)))
    ]
    checks = [
        Check("longest over 10,000 µs", None if longest is None else longest > 1e-2),
        Check("10,000 times ResNet-50's", None if orders is None else orders >= 1e4),
    ]
    checks += [
        Check(f"DTR's mean {times(x)} Coop's at {ratio:.0%}", x is not None and x >= 10)
        for x, ratio in means
    ] or [Check("DTR's mean at least 10 times Coop's", None)]
    known = [x for x, _ in means if x is not None]
    ours = (
        f"longest {micros(longest)}, {times(orders)} ResNet-50's {micros(least)}; DTR over Coop "
        + (f"{times(min(known))} to {times(max(known))}" if known else "–")
    )
    return Outcome(ours, tuple(checks))


def consistent(r: Results) -> Outcome:
    spread: dict[str, float | None] = {}
    for method in MAIN:
        means = [
            row.mean_search_seconds
            for network in NETWORKS
            for ratio in RATIOS
            if (row := r.feasible(network, method, ratio)) is not None and row.searches
        ]
        spread[method] = factor(max(means), min(means)) if means else None
    checks = tuple(
        Check(f"less than {label(rival)}'s", less(spread["coop"], spread[rival]))
        for rival in RIVALS
    )
    ours = ", ".join(f"{label(method)} {times(spread[method])}" for method in MAIN)
    return Outcome(f"largest over least: {ours}", (*checks, *absent(r, MAIN)))


def resnet(r: Results) -> Outcome:
    rows = {method: r.feasible("resnet50", method, 0.9) for method in MAIN}
    means = {
        method: None if row is None or not row.searches else row.mean_search_seconds
        for method, row in rows.items()
    }
    checks = tuple(
        Check(f"above {label(rival)}'s", less(means[rival], means["coop"])) for rival in RIVALS
    )
    return Outcome(", ".join(f"{label(m)} {micros(means[m])}" for m in MAIN), checks)


def under_5(r: Results) -> Outcome:
    checks: list[Check] = []
    largest: tuple[float, str] | None = None
    for network in EIGHT:
        rows = [(ratio, r.feasible(network, "coop", ratio)) for ratio in RATIOS]
        found = [(row.fragmentation, ratio) for ratio, row in rows if row is not None]
        if not found:
            checks.append(Check(title(network), None))
        for value, ratio in found:
            where = f"{title(network)} at {ratio:.0%}"
            checks.append(Check(f"{where}: {percent(value, 1)}", value < 0.05))
            if largest is None or value > largest[0]:
                largest = value, where
    text = "–" if largest is None else f"at most {percent(largest[0], 1)} ({largest[1]})"
    return Outcome(f"{text}; under 5% in {held(checks)}", tuple(checks))


def fragmentation_lowest(r: Results) -> Outcome:
    checks = [
        Check(
            f"{title(network)} at {ratio:.0%}: Coop {percent(a.fragmentation, 1)},"
            f" {label(rival)} {percent(b.fragmentation, 1)}",
            a.fragmentation < b.fragmentation,
        )
        for rival in RIVALS
        for network, ratio, a, b in pairs(r, "coop", rival)
    ]
    checks += absent(r, ("coop", *RIVALS))
    return Outcome(f"lower in {held(checks)} comparisons", tuple(checks))


def fragmentation_dte(r: Results) -> Outcome:
    found = pairs(r, "dte", "dtr")
    majority = _majority("below DTR", [a.fragmentation < b.fragmentation for *_, a, b in found])
    highest = max(
        (
            row.fragmentation
            for network in EIGHT
            for ratio in RATIOS
            if (row := r.feasible(network, "dte", ratio)) is not None
        ),
        default=None,
    )
    high = Check("DTE's highest over 5%", None if highest is None else highest > 0.05)
    return Outcome(
        f"{majority.what}; DTE at most {percent(highest, 1)}", (majority, high, *absent(r, RIVALS))
    )


def absent(r: Results, methods: tuple[str, ...]) -> list[Check]:
    """An undecided check for each network that was not simulated for each of these methods."""
    there = {(row.network, row.method) for row in r.overhead}
    return [
        Check(title(network), None)
        for network in EIGHT
        if not all((network, method) in there for method in methods)
    ]


def _gpt(r: Results, value: Callable[[Overhead], float], least: float) -> Outcome:
    def read(method: str, ratio: float) -> float | None:
        row = r.feasible("gpt3", method, ratio)
        return None if row is None else value(row)

    return largest_factor(r, "gpt3", read, least)


def gpt_fragmentation(r: Results) -> Outcome:
    return _gpt(r, lambda row: row.fragmentation, 5 * ABOUT)


def gpt_latency(r: Results) -> Outcome:
    return _gpt(r, lambda row: row.mean_search_seconds, 10 * ABOUT)
