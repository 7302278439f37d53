"""Plots of bars and points: fragmentation, its ablation, budgets, batches, real runs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from examples.paper.report.data import ABLATIONS, EIGHT, MAIN, Results, known, title
from examples.paper.report.style import LOOKS, OOM, legend, panels, percent_axis

_HATCH = "////"
_BAND = 0.15
_LEAST_SHOWN = 0.002
_MARKERS = "osD^vPX*<>"


def fragmentation(r: Results) -> Figure | None:
    """Mean fragmentation for each network and ratio."""
    return _fragmentation(r, MAIN)


def ablation_fragmentation(r: Results) -> Figure | None:
    """The same of Coop without each of its modules."""
    if not any(row.method in ABLATIONS for row in r.overhead):
        return None
    return _fragmentation(r, ("coop", *ABLATIONS))


def _fragmentation(r: Results, methods: Sequence[str]) -> Figure | None:
    networks = known(x.network for x in r.overhead if x.network in EIGHT and x.method in methods)
    if not networks:
        return None
    figure, axes = panels(len(networks))
    ratios = r.ratios()
    width = 0.84 / len(methods)
    for axis, network in zip(axes, networks, strict=True):
        rows = [x for x in r.overhead if x.network == network and x.method in methods]
        highest = max((x.fragmentation for x in rows if x.feasible), default=0.0)
        top = max(1.15 * highest, 0.06)
        for i, method in enumerate(methods):
            colour = LOOKS[method].colour
            for place, ratio in enumerate(ratios):
                row = r.step(network, method, ratio)
                if row is None:
                    continue
                x = place + (i - (len(methods) - 1) / 2) * width
                if row.feasible:
                    axis.bar(x, row.fragmentation, width, color=colour)
                else:
                    axis.bar(
                        x, top, width, color="none", edgecolor=colour, hatch=_HATCH, lw=0, alpha=0.5
                    )
        axis.axhline(0.05, color="#555555", lw=1, ls="--")
        axis.set_title(title(network))
        axis.set_ylim(0, top)
        axis.grid(False, axis="x")
        axis.set_xticks(range(len(ratios)), [f"{100 * ratio:.0f}" for ratio in ratios])
        percent_axis(axis.yaxis)
    figure.supylabel("mean fragmentation")
    figure.supxlabel("memory ratio (% of the unbudgeted peak)")
    legend(
        figure,
        [
            *(Patch(color=LOOKS[m].colour, label=LOOKS[m].label) for m in methods),
            Patch(fc="none", ec=OOM, hatch=_HATCH, label="out of memory"),
            Line2D([], [], color="#555555", ls="--", lw=1, label="5%"),
        ],
        columns=6,
    )
    return figure


def budgets(r: Results) -> Figure | None:
    """From the minimum to the cutoff budget, as shares of Coop's unbudgeted peak."""
    networks = known(row.network for row in r.budgets)
    if not networks:
        return None
    figure, (axis,) = panels(1, height=1.6 + 0.75 * len(networks))
    figure.set_size_inches(9, 1.6 + 0.75 * len(networks))
    step = 0.22
    for place, network in enumerate(networks):
        coop = r.budget(network, "coop")
        for i, method in enumerate(MAIN):
            row = r.budget(network, method)
            if row is None:
                continue
            peak = (coop or row).unbudgeted_peak_bytes
            ends = [row.min_bytes / peak, row.cutoff_bytes / peak]
            y, look = place + (i - 1) * step, LOOKS[method]
            axis.plot(ends, [y, y], color=look.colour, lw=2, alpha=0.55)
            axis.plot(ends[0], y, color=look.colour, marker=look.marker, ms=7)
            axis.plot(ends[1], y, color=look.colour, marker=look.marker, ms=7, mfc="white", mew=1.5)
    axis.set_yticks(range(len(networks)), [title(network) for network in networks])
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    axis.set_xlim(left=0)
    axis.set_xlabel("budget (share of Coop's unbudgeted peak)")
    percent_axis(axis.xaxis)
    legend(
        figure,
        [
            *(LOOKS[method].handle() for method in MAIN),
            Line2D([], [], color="#555555", marker="o", ls="", label="minimum"),
            Line2D([], [], color="#555555", marker="o", ls="", mfc="white", label="cutoff"),
        ],
        columns=5,
    )
    return figure


def batch(r: Results) -> Figure | None:
    """The largest batch that fits, as a multiple of what fits without rematerialisation."""
    networks = known(row.network for row in r.batch)
    sizes = {(row.network, row.method): row.batch for row in r.batch}
    methods = [m for m in ("none", *MAIN, "per-layer") if any(m == key[1] for key in sizes)]
    if not networks:
        return None
    columns = min(4, len(networks))
    figure, axes = panels(len(networks), columns=columns, height=2.6)
    for axis, network in zip(axes, networks, strict=True):
        largest = max(size for (n, _), size in sizes.items() if n == network)
        for place, method in enumerate(methods):
            size = sizes.get((network, method))
            if size is None:
                continue
            axis.bar(place, size, 0.75, color=LOOKS[method].colour)
            axis.annotate(
                f"{size:,}",
                (place, size),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=10,
            )
        axis.set_title(title(network))
        axis.set_ylim(0, 1.15 * max(largest, 1))
        axis.set_xlim(-0.6, len(methods) - 0.4)
        axis.set_xticks([])
        axis.grid(False, axis="x")
    figure.supylabel("largest batch (samples)")
    labels = {"per-layer": "per-layer checkpoints"}
    legend(
        figure,
        [Patch(color=LOOKS[m].colour, label=labels.get(m, LOOKS[m].label)) for m in methods],
        columns=5,
    )
    return figure


def real(r: Results) -> Figure | None:
    """Measured against simulated overhead, with a band of 15% about equality."""
    if not r.real:
        return None
    figure, (axis,) = panels(1)
    figure.set_size_inches(9, 6.2)
    networks = known(row.network for row in r.real)
    policies = [m for m in MAIN if any(row.policy == m for row in r.real)]
    ends = [x for row in r.real for x in (row.simulated_overhead, row.measured_overhead)]
    # From one percent to several times the step: logarithmic. Times that vary can give less than 0.
    low, high = max(_LEAST_SHOWN, 0.8 * min(ends)), 1.25 * max(*ends, 0.05)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.plot([low, high], [low, high], color="#555555", lw=1)
    axis.fill_between(
        [low, high],
        [low * (1 - _BAND), high * (1 - _BAND)],
        [low * (1 + _BAND), high * (1 + _BAND)],
        color="#DDDDDD",
        lw=0,
    )
    for row in r.real:
        colour = LOOKS[row.policy].colour if row.policy in LOOKS else "#555555"
        marker = _MARKERS[networks.index(row.network) % len(_MARKERS)]
        axis.plot(
            max(low, row.simulated_overhead),
            max(low, row.measured_overhead),
            color=colour,
            marker=marker,
            ms=8,
            mec="white",
            ls="",
        )
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.set_xlabel("simulated overhead")
    axis.set_ylabel("measured overhead")
    ticks = [x for x in (0.01, 0.03, 0.1, 0.3, 1, 3, 10) if low <= x <= high]
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(FixedLocator(ticks))
        each.set_minor_locator(NullLocator())
        percent_axis(each)
    points = [
        Line2D([], [], color="#555555", marker=_MARKERS[i % len(_MARKERS)], ls="", label=title(n))
        for i, n in enumerate(networks)
    ]
    band = Patch(color="#DDDDDD", label=f"±{_BAND:.0%}")
    figure.legend(
        handles=[
            *(Patch(color=LOOKS[m].colour, label=LOOKS[m].label) for m in policies),
            band,
            *points,
        ],
        loc="outside right center",
    )
    return figure
