"""The look of the plots: one colour and marker for each method, wherever it appears.

Colours are those of Okabe and Ito, which the colour-blind can tell apart; markers differ too.
Figures are made without pyplot: no global state, no display.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

OOM = "#BBBBBB"
_RC: Any = {
    "font.size": 11,
    "figure.labelsize": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "coop",  # the same plot is the same file
    "svg.fonttype": "none",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn."""

    label: str
    colour: str
    marker: str
    line: str = "-"

    def handle(self, **other: Any) -> Line2D:
        """Its entry in a legend."""
        return Line2D(
            [], [], color=self.colour, marker=self.marker, ls=self.line, label=self.label, **other
        )


LOOKS = {
    "coop": Look("Coop", "#0072B2", "o"),
    "dte": Look("DTE", "#E69F00", "s"),
    "dtr": Look("DTR", "#D55E00", "^"),
    "dtr-exact": Look("DTR, exact neighbours", "#CC79A7", "v", "--"),
    "coop-exact": Look("Coop, exact neighbours", "#56B4E9", "v", "--"),
    "coop-published": Look("Coop as published", "#0072B2", "o", ":"),
    "dte-published": Look("DTE as published", "#E69F00", "s", ":"),
    "dtr-published": Look("DTR as published", "#D55E00", "^", ":"),
    "coop-no-window": Look("without sliding window", "#56B4E9", "s"),
    "coop-no-in-place": Look("without in-place", "#009E73", "^"),
    "coop-no-partition": Look("without partitioning", "#8A6D00", "D"),
    "coop-by-size": Look("Coop with DTE's heuristic", "#D55E00", "P", "--"),
    "per-layer": Look("per-layer checkpoints (sanity line)", "#000000", "*", ":"),
    "sqrt": Look("√n segments", "#000000", "P", ""),
    "selective": Look("selective (SAR)", "#000000", "X", ""),
    "none": Look("no rematerialisation", "#999999", "o"),
}


def panels(count: int, columns: int = 4, height: float = 2.9) -> tuple[Figure, list[Any]]:
    """A figure with that many axes; what is left of the grid stays empty."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(9.0, 3.4 * columns), height * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, list(axes[:count])


def legend(figure: Figure, handles: Sequence[Any], columns: int = 4) -> None:
    """One legend above all panels."""
    ncols = len(handles) if len(handles) <= columns + 1 else columns  # no row of a single one
    figure.legend(handles=handles, loc="outside upper center", ncols=ncols)


def percent_axis(axis: Any) -> None:
    """Shares as percent."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))


def context() -> Any:
    """Within it, figures have this look."""
    return mpl.rc_context(_RC)


def save(figure: Figure, path: Path) -> None:
    """Writes PNG and SVG, without a date: the same tables make the same files."""
    with context():
        figure.savefig(f"{path}.png", dpi=130)
        figure.savefig(f"{path}.svg", metadata={"Date": None})
