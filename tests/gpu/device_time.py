"""Where a traced step spends its time on the device: kernels by class, copies, gaps.

Reads the `*.xplane.pb` of `jax.profiler` with `jax.profiler.ProfileData`. On a GPU events of the
planes "/device:GPU:n" count that lie on lines named "Stream ..."; the profiler may add lines that
group them. On CPU, where this is only tried, it is what XLA's threads run.

Gaps are the times at which no stream is busy, between the first event and the last one: the device
waits for the host to launch. Classes add up durations, so that two streams at one time count twice.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from jax.profiler import ProfileData

# The first that matches the name of a kernel counts.
_CLASSES = {
    "memcpy, memset": r"^memcpy|^memset",
    "attention kernels": r"flash|fmha|mha_|cudnn",
    "matrix products": r"gemm|cutlass|nvjet|xmma|cublas|(^|_)dot|matmul|splitk",
    "copy kernels": r"^(wrapped_|loop_|input_)?(copy|bitcast|slice|concatenate|pad)",
    "transposes": r"transpose",
    "reductions": r"reduce|softmax",
    "gather, scatter": r"gather|scatter|dynamic",
    "elementwise": r"fusion|^wrapped|^loop|add|multiply|subtract|convert|broadcast|tanh|exp",
}
_OTHER = "other"
_GAPS_US = (2, 10, 50, 250)

# Start and end in nanoseconds, and the kernel's name.
_Event = tuple[float, float, str]


def _device_events(data: ProfileData) -> Iterator[_Event]:
    planes = list(data.planes)
    on_gpu = [p for p in planes if p.name.startswith("/device:GPU")]
    for plane in on_gpu or planes:
        for line in plane.lines:
            if on_gpu and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                if on_gpu or any(key == "hlo_op" for key, _ in event.stats):
                    yield event.start_ns, event.end_ns, event.name


def _class_of(name: str) -> str:
    found = (kind for kind, pattern in _CLASSES.items() if re.search(pattern, name.lower()))
    return next(found, _OTHER)


def _busy_and_gaps(events: Iterable[_Event]) -> tuple[float, list[float]]:
    """Nanoseconds in which anything runs, and the times between."""
    busy, gaps, end = 0.0, [], None
    for start, stop, _ in sorted(events):
        if end is not None and start > end:
            gaps.append(start - end)
        begin = start if end is None else max(start, end)
        busy += max(0.0, stop - begin)
        end = stop if end is None else max(end, stop)
    return busy, gaps


def summarised(data: ProfileData) -> dict[str, Any]:
    """Milliseconds of a trace: span, busy, gaps by length, classes, the longest kernels.

    Raises:
      ValueError: the trace has no events of a device.
    """
    events = list(_device_events(data))
    if not events:
        lines = {plane.name: [line.name for line in plane.lines] for plane in data.planes}
        raise ValueError(f"nothing ran on a device; lines by plane: {lines}")
    busy, gaps = _busy_and_gaps(events)
    totals: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    kernels: collections.Counter[str] = collections.Counter()
    for start, stop, name in events:
        kind = _class_of(name)
        totals[kind] += stop - start
        counts[kind] += 1
        kernels[name] += stop - start
    by_length = {}
    for low, high in itertools.pairwise((0, *_GAPS_US, float("inf"))):
        within = [g for g in gaps if low <= g / 1e3 < high]
        by_length[f"gaps of {low} to {high} us"] = {"ms": sum(within) / 1e6, "count": len(within)}
    return {
        "span_ms": (max(e[1] for e in events) - min(e[0] for e in events)) / 1e6,
        "busy_ms": busy / 1e6,
        "gaps_ms": sum(gaps) / 1e6,
        "events": len(events),
        "gaps": by_length,
        "classes": {k: {"ms": totals[k] / 1e6, "count": counts[k]} for k in (*_CLASSES, _OTHER)},
        "longest": [[name, ns / 1e6] for name, ns in kernels.most_common(12)],
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """Rows have a name, a `device_time` and the seconds of a step, traced and not."""
    if not rows:
        return
    times = [row["device_time"] for row in rows]

    def line(title: str, cells: Iterable[str]) -> None:
        print(f"{title:28}" + "".join(f"{cell:>22}" for cell in cells))

    line("", (row["name"] for row in rows))
    line("a step, not traced", (f"{row['single_step_seconds'] * 1e3:.2f}" for row in rows))
    line("a step, traced", (f"{row['traced_seconds'] * 1e3:.2f}" for row in rows))
    line("first event to last", (f"{t['span_ms']:.2f}" for t in times))
    line("busy", (f"{t['busy_ms']:.2f} ({t['events']})" for t in times))
    line("gaps", (f"{t['gaps_ms']:.2f} ({t['gaps_ms'] / t['span_ms']:.0%})" for t in times))
    for part in ("gaps", "classes"):
        for key in times[0][part]:
            line(f"  {key}", (f"{t[part][key]['ms']:.2f} ({t[part][key]['count']})" for t in times))
    for row, t in zip(rows, times, strict=True):
        print(f"longest of {row['name']}: ", end="")
        print(", ".join(f"{name[:48]} {ms:.2f}" for name, ms in t["longest"]))
