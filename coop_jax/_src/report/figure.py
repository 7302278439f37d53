"""A timeline as a figure, PNG or SVG, by matplotlib: addresses against time, live bytes below.

Model: few rectangles are drawn as such; many become a picture of pixels first, each showing the
residence at its centre, as on the page. Evictions are marked at the right edge.

Thread rule: functions of their arguments. Cost: linear; a second for a million residences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coop_jax._src.report.timeline_data import Ending, Kind, TimelineData
from coop_jax._src.util.options import format_bytes

if TYPE_CHECKING:
    import matplotlib.axes

# Those of the page (`page/colors.js`), light.
_COLORS = {
    Kind.STATE: "#1b9e77",
    Kind.INPUT: "#7fc8ee",
    Kind.CONSTANT: "#a08c5b",
    Kind.FORWARD: "#3f78bd",
    Kind.BACKWARD: "#eca72c",
    Kind.RESULT: "#c96fa1",
    Kind.SCRATCH: "#8d8f99",
    Kind.RESERVED: "#dcdee4",
    Kind.OTHER: "#a9abb5",
    Kind.UPDATE: "#e0d03c",
}
_EVICTION = "#c8102e"

_MOST_RECTANGLES = 5000
_PIXELS = (1800, 900)
_LEAST_EDGED = 0.004  # of the pool
_MIB = 1 << 20


def save(timeline: TimelineData, path: str) -> None:
    """Writes a figure, PNG or SVG by the ending of the name.

    Raises:
      ImportError: there is no matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a figure of a timeline needs matplotlib: pip install 'coop-jax[plots]'"
        ) from error
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    pool, live = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
    _draw_pool(pool, timeline)
    _draw_live(live, timeline)
    entries = _legend(timeline)
    figure.legend(handles=entries, loc="outside lower center", fontsize="small", ncols=len(entries))
    figure.savefig(path, dpi=160)


def _draw_pool(axes: matplotlib.axes.Axes, timeline: TimelineData) -> None:
    rows = timeline.residences
    shown = np.flatnonzero(rows.address >= 0)
    extent = 0.0, float(max(1, timeline.moments)), 0.0, max(1, timeline.pool_bytes) / _MIB
    if len(shown) > _MOST_RECTANGLES:
        pixels = pixels_of(timeline, *_PIXELS)
        axes.imshow(pixels, extent=extent, aspect="auto", interpolation="nearest", origin="lower")
    else:
        _draw_rectangles(axes, timeline, shown)
    axes.set(xlim=extent[:2], ylim=extent[2:], ylabel="address [MiB]", title=_title(timeline))


def _title(timeline: TimelineData) -> str:
    cap = "" if timeline.budget_bytes is None else f" of {format_bytes(timeline.budget_bytes)}"
    return (
        f"{timeline.title}: peak {format_bytes(timeline.peak_bytes)}{cap},"
        f" {timeline.evictions} evictions, {timeline.recomputations} recomputed"
    )


def _draw_rectangles(
    axes: matplotlib.axes.Axes, timeline: TimelineData, shown: NDArray[np.int64]
) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    rows = timeline.residences
    left, right = rows.begin[shown], rows.end[shown]
    low, high = rows.address[shown] / _MIB, (rows.address + rows.nbytes)[shown] / _MIB
    corners = np.stack([left, low, right, low, right, high, left, high], -1).reshape(-1, 4, 2)
    tall = high - low > timeline.pool_bytes / _MIB * _LEAST_EDGED
    colors = [_COLORS[Kind(kind)] for kind in rows.kind[shown].tolist()]
    for again, hatch in ((False, ""), (True, "////")):
        which = np.flatnonzero((rows.recomputation[shown] > 0) == again)
        axes.add_collection(
            PolyCollection(
                list(corners[which]),
                facecolors=[colors[n] for n in which],
                # Thin ones would be all edge.
                edgecolors=["white" if tall[n] else colors[n] for n in which],
                linewidths=0.3,
                hatch=hatch,
            )
        )
    evicted = rows.ending[shown] == Ending.EVICTED
    edges = np.stack([right, low, right, high], -1).reshape(-1, 2, 2)[evicted]
    axes.add_collection(LineCollection(edges, colors=_EVICTION, linewidths=1.2))


def pixels_of(timeline: TimelineData, width: int, height: int) -> NDArray[np.uint8]:
    """RGB of shape [height, width, 3], lowest addresses first; each pixel shows its centre."""
    rows = timeline.residences
    canvas = np.full((height, width), 255, np.uint8)
    across, up = width / max(1, timeline.moments), height / max(1, timeline.pool_bytes)
    left, right = (np.ceil(x * across - 0.5).astype(int) for x in (rows.begin, rows.end))
    ends = rows.address + rows.nbytes
    low, high = (np.ceil(y * up - 0.5).astype(int) for y in (rows.address, ends))
    seen = np.flatnonzero((left < right) & (low < high) & (rows.address >= 0))
    columns = (rows.kind, left, right, low, high)
    for kind, x, x_end, y, y_end in zip(*(c[seen].tolist() for c in columns), strict=True):
        canvas[y:y_end, x:x_end] = kind
    palette = np.full((256, 3), 255, np.uint8)
    for kind, color in _COLORS.items():
        palette[kind] = list(bytes.fromhex(color[1:]))
    return palette[canvas]


def _legend(timeline: TimelineData) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = timeline.residences
    kinds = [Kind(kind) for kind in np.unique(rows.kind[rows.address >= 0]).tolist()]
    entries: list[Any] = [Patch(color=_COLORS[k], label=k.name.lower()) for k in kinds]
    if timeline.recomputations:
        entries.append(Patch(facecolor="gray", edgecolor="white", hatch="////", label="recomputed"))
    if timeline.evictions:
        entries.append(Line2D([], [], color=_EVICTION, label="evicted"))
    return entries


def _draw_live(axes: matplotlib.axes.Axes, timeline: TimelineData) -> None:
    live = timeline.live_bytes / _MIB
    moments = np.arange(len(live) + 1)
    axes.stairs(live, moments, fill=True, color="#6f9bd1", rasterized=len(live) > _MOST_RECTANGLES)
    if timeline.budget_bytes is not None:
        axes.axhline(timeline.budget_bytes / _MIB, color=_EVICTION, linestyle="--", linewidth=1)
    axes.set(xlabel="operation", ylabel="live [MiB]", ylim=(0, None))
