"""Claims on Coop without one of its modules, and on cost densities. See `rules`."""

from __future__ import annotations

import math
import statistics

from examples.paper.report.data import ABLATIONS, EIGHT, RATIOS, Results, percent, title
from examples.paper.report.latencies import absent, pairs
from examples.paper.report.rules import Check, Outcome, factor, held, times

WITHOUT = {
    "coop-no-window": "without the window",
    "coop-no-in-place": "without in-place",
    "coop-no-partition": "without partitioning",
}


def worse(r: Results) -> Outcome:
    checks = []
    texts = []
    for method in ABLATIONS:
        mine = []
        for network in EIGHT:
            for ratio in RATIOS:
                whole, part = r.cost(network, "coop", ratio), r.cost(network, method, ratio)
                if whole is not None and (math.isinf(whole) or whole == part == 0):
                    continue
                what = (
                    f"{title(network)} at {ratio:.0%}: {percent(whole, 1)},"
                    f" {WITHOUT[method]} {percent(part, 1)}"
                )
                mine.append(Check(what, None if whole is None or part is None else part > whole))
        texts.append(f"{WITHOUT[method]} {held(mine)}")
        checks += mine
    return Outcome("worse: " + ", ".join(texts), tuple(checks))


def resnet(r: Results) -> Outcome:
    def fits(method: str, ratio: float) -> bool | None:
        row = r.step("resnet50", method, ratio)
        return None if row is None else row.feasible

    checks = [Check("Coop completes at 30%", fits("coop", 0.3))]
    for method in ABLATIONS:
        at_30 = fits(method, 0.3)
        checks += [
            Check(f"{WITHOUT[method]} not at 30%", None if at_30 is None else not at_30),
            Check(f"{WITHOUT[method]} at 40%", fits(method, 0.4)),
        ]
    texts = [
        f"{name} {percent(r.cost('resnet50', m, 0.3))}"
        for m, name in (("coop", "Coop"), *WITHOUT.items())
    ]
    return Outcome("overhead at 30%: " + ", ".join(texts), tuple(checks))


def unet(r: Results) -> Outcome:
    whole, part = r.cost("unet", "coop", 0.4), r.cost("unet", "coop-no-window", 0.4)
    holds = None
    if whole is not None and part is not None:
        holds = not math.isinf(whole) and part >= 2 * whole and part > whole
    ours = f"{percent(whole)}, without the window {percent(part)}"
    return Outcome(f"{ours} ({times(factor(part, whole))})", (Check("at least twice", holds),))


def rank(r: Results) -> Outcome:
    added: dict[str, list[float]] = {method: [] for method in ABLATIONS}
    for network in EIGHT:
        for ratio in RATIOS:
            whole = r.feasible(network, "coop", ratio)
            parts = {method: r.feasible(network, method, ratio) for method in ABLATIONS}
            if whole is None:
                continue
            costs = {m: row.overhead for m, row in parts.items() if row is not None}
            if len(costs) == len(ABLATIONS):
                for method, cost in costs.items():
                    added[method].append(cost - whole.overhead)
    window, in_place, partition = (statistics.fmean(x) if x else None for x in added.values())
    if window is None or in_place is None or partition is None:
        both: tuple[bool | None, bool | None] = (None, None)
        ours = "–"
    else:
        both = window > in_place, in_place > partition
        ours = (
            f"window {window * 100:+.1f}, in-place {in_place * 100:+.1f}, partitioning"
            f" {partition * 100:+.1f} points"
        )
    return Outcome(
        ours,
        (
            Check("window > in-place", both[0]),
            Check("in-place > partitioning", both[1]),
            *absent(r, ("coop", *ABLATIONS)),
        ),
    )


def fragmentation(r: Results) -> Outcome:
    checks = []
    texts = []
    for method in ("coop-no-window", "coop-no-in-place"):
        mine = [
            Check(
                f"{title(network)} at {ratio:.0%}: {percent(a.fragmentation, 1)},"
                f" {WITHOUT[method]} {percent(b.fragmentation, 1)}",
                b.fragmentation > a.fragmentation,
            )
            for network, ratio, a, b in pairs(r, "coop", method)
            if a.fragmentation or b.fragmentation
        ] or [Check(WITHOUT[method], None)]
        texts.append(f"{WITHOUT[method]} {held(mine)}")
        checks += mine
    checks += absent(r, ("coop", "coop-no-window", "coop-no-in-place"))
    return Outcome("higher: " + ", ".join(texts), tuple(checks))


def partition(r: Results) -> Outcome:
    found = pairs(r, "coop", "coop-no-partition")
    if not found:
        return Outcome("–", (Check("less than a point", None),))
    mean = statistics.fmean(b.fragmentation - a.fragmentation for *_, a, b in found)
    return Outcome(
        f"{mean * 100:+.2f} points",
        (Check("less than a point", abs(mean) < 0.01), *absent(r, ("coop", "coop-no-partition"))),
    )


def densities(r: Results) -> Outcome:
    checks, texts = [], []
    for name, column in (("profile", "profile_us_per_mb"), ("here", "measured_us_per_mb")):
        medians = {}
        for kind in ("expensive", "cheap"):
            values = [getattr(row, column) for row in r.table1 if row.kind == kind]
            medians[kind] = statistics.median(values) if values else None
        times_more = factor(medians["expensive"], medians["cheap"])
        checks.append(Check(name, None if times_more is None else times_more >= 10))
        texts.append(f"{name} {times(times_more)}")
    return Outcome(", ".join(texts), tuple(checks))
