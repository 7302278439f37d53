"""Plots of lines over the memory ratio: overhead, its ablation, search latency.

Where a method runs out of memory its line ends with a cross. A panel is cut above what is of
interest, which Coop and the static rivals span; lines of methods that thrash leave it at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from examples.paper.evaluation.methods import PUBLISHED
from examples.paper.evaluation.tables import Overhead
from examples.paper.report.data import ABLATIONS, EIGHT, MAIN, Results, known, title
from examples.paper.report.style import LOOKS, legend, panels, percent_axis

_CROSS = Line2D(
    [], [], color="#555555", marker="x", ls="", ms=9, mew=2, label="out of memory below"
)


def overhead(r: Results) -> Figure | None:
    """Overhead against memory ratio, with static rivals at their own peaks."""
    return _overheads(r, ("dtr-exact", "dtr", "dte", "coop"), ("per-layer", "sqrt", "selective"))


def ablation_overhead(r: Results) -> Figure | None:
    """Overhead of Coop without each of its modules, and with DTE's heuristic."""
    if not any(row.method in ABLATIONS for row in r.overhead):
        return None
    return _overheads(r, ("coop-by-size", *reversed(ABLATIONS), "coop"), ())


def ablation_published(r: Results) -> Figure | None:
    """The same of Coop as published."""
    return ablation_overhead(r.published())


def published(r: Results) -> Figure | None:
    """Overhead of the methods as published, beside those with what is ours."""
    if not any(row.method in PUBLISHED for row in r.overhead):
        return None
    return _overheads(r, (*reversed(PUBLISHED), "coop-exact", *reversed(MAIN)), ())


def latency(r: Results) -> Figure | None:
    """Search latency, mean and 99th percentile, on a log scale."""
    networks = known(row.network for row in r.overhead if row.method in MAIN)
    if not networks:
        return None
    figure, axes = panels(len(networks), columns=5)
    for axis, network in zip(axes, networks, strict=True):
        for method in reversed(MAIN):
            rows = [x for x in _rows(r, network, method) if x.feasible and x.searches]
            look = LOOKS[method]
            for name, dashes, alpha in (("mean", "-", 1.0), ("p99", ":", 0.65)):
                axis.plot(
                    [x.ratio for x in rows],
                    [getattr(x, f"{name}_search_seconds") * 1e6 for x in rows],
                    ls=dashes,
                    color=look.colour,
                    marker=look.marker if name == "mean" else "",
                    ms=5,
                    alpha=alpha,
                )
        axis.set_yscale("log")
        _ratio_axis(axis, title(network))
    figure.supylabel("search latency (µs)")
    figure.supxlabel("memory ratio (share of the unbudgeted peak)")
    legend(
        figure,
        [
            *(LOOKS[m].handle() for m in MAIN),
            Line2D([], [], color="#555555", label="mean"),
            Line2D([], [], color="#555555", ls=":", label="99th percentile"),
        ],
        columns=5,
    )
    return figure


def _overheads(r: Results, methods: Sequence[str], remats: Sequence[str]) -> Figure | None:
    networks = [n for n in known(row.network for row in r.overhead) if n in EIGHT]
    if not networks:
        return None
    figure, axes = panels(len(networks))
    for axis, network in zip(axes, networks, strict=True):
        top = _top(r, network, remats)
        for method in methods:
            _line(axis, _rows(r, network, method), method, top)
        for remat in remats:
            _rival(axis, r, network, remat)
        axis.set_ylim(-0.03 * top, top)
        percent_axis(axis.yaxis)
        _ratio_axis(axis, title(network))
    figure.supylabel("compute overhead")
    figure.supxlabel("memory ratio (share of the unbudgeted peak)")
    drawn = {row.method for row in r.overhead} | {row.remat for row in r.static}
    shown = [name for name in (*reversed(methods), *remats) if name in drawn]
    legend(figure, [*(LOOKS[name].handle() for name in shown), _CROSS])
    return figure


def _rows(r: Results, network: str, method: str) -> list[Overhead]:
    found = (r.step(network, method, ratio) for ratio in r.ratios())
    return [row for row in found if row is not None]


def _top(r: Results, network: str, remats: Sequence[str]) -> float:
    """Where the panel is cut: 50%, or 2.5 times the sanity line, unless nothing is up there."""
    shown = [row.overhead for name in remats if (row := r.rival(network, name)) is not None]
    everything = [x.overhead for x in r.overhead if x.network == network and x.feasible]
    line = r.rival(network, "per-layer")
    limit = max(0.5, 2.5 * line.overhead if line is not None else 0.0)
    return max(min(limit, 1.1 * max(everything + shown, default=0.0)), 0.05)


def _line(axis: Any, rows: Sequence[Overhead], method: str, top: float) -> None:
    look = LOOKS[method]
    there = [row for row in rows if row.feasible]
    axis.plot(
        [row.ratio for row in there],
        [row.overhead for row in there],
        ls=look.line,
        color=look.colour,
        marker=look.marker,
        ms=5,
        zorder=4 if method == "coop" else 3,
    )
    # The line goes from large ratios to small ones: it ends where the next one is out of memory.
    if there and any(not row.feasible and row.ratio < there[-1].ratio for row in rows):
        axis.plot(
            [there[-1].ratio],
            [min(there[-1].overhead, 0.96 * top)],
            color=look.colour,
            marker="x",
            ms=11,
            mew=2,
            clip_on=False,
            zorder=5,
        )


def _rival(axis: Any, r: Results, network: str, remat: str) -> None:
    row = r.rival(network, remat)
    if row is None:
        return
    look = LOOKS[remat]
    if remat == "per-layer":  # who has more memory than its peak can have it too
        axis.plot([row.ratio, 1.0], [row.overhead] * 2, ls=":", color=look.colour, lw=1.2)
    axis.plot([row.ratio], [row.overhead], color=look.colour, marker=look.marker, ms=9, zorder=6)


def _ratio_axis(axis: Any, name: str) -> None:
    axis.set_title(name)
    axis.set_xlim(0.05, 1.02)
    axis.set_xticks([0.2, 0.4, 0.6, 0.8, 1.0])
    percent_axis(axis.xaxis)
