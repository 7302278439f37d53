"""A timeline as a trace for Perfetto and chrome://tracing.

Format: the JSON of the Trace Event Format. One process, "coop_jax"; its thread has a slice for each
operation ("X"), and an instant ("i") for each eviction; counters ("C") are live bytes, bytes
outside the pool and fragmentation; a flow ("s" to "f") leads from each eviction to the operation
that computes the storage again. Residences are async slices ("b" to "e"), grouped by kind. Times
are microseconds; where none are known, an operation takes one.

Thread rule: functions of their arguments. Cost: linear; some microseconds an event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from coop_jax._src.report.timeline_data import Ending, Kind, Label, TimelineData

Event: TypeAlias = dict[str, Any]

_PROCESS, _THREAD = 1, 1
# Fragmentation is told at so many moments at most, evenly spread.
_SAMPLES = 2048


def save(timeline: TimelineData, path: str) -> None:
    """Writes a trace: open it in https://ui.perfetto.dev."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace(timeline), file, separators=(",", ":"))


def trace(timeline: TimelineData) -> dict[str, Any]:
    """A timeline in the JSON Trace Event Format."""
    seconds = timeline.launches.seconds
    microseconds = np.arange(timeline.moments + 1.0) if seconds is None else seconds * 1e6
    times: list[float] = microseconds.tolist()
    events = [
        *_names(timeline),
        *_operations(timeline, times),
        *_counters(timeline, times),
        *_evictions(timeline, times),
        *_residences(timeline, times),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "title": timeline.title,
            "pool_bytes": timeline.pool_bytes,
            "budget_bytes": timeline.budget_bytes,
            "times": "measured" if timeline.seconds_are_measured else "estimated",
        },
    }


def _event(phase: str, name: str, time: float, **more: Any) -> Event:
    return {"ph": phase, "name": name, "ts": time, "pid": _PROCESS, "tid": _THREAD, **more}


def _names(timeline: TimelineData) -> Iterator[Event]:
    yield _event("M", "process_name", 0, args={"name": f"coop_jax: {timeline.title}"})
    yield _event("M", "thread_name", 0, args={"name": "operations"})


def _said(label: Label) -> dict[str, Any]:
    said = {"line": label.source, "module": label.path, "dtype": label.dtype}
    if label.dtype:
        said["shape"] = str(list(label.shape))
    return {name: value for name, value in said.items() if value}


def _operations(timeline: TimelineData, times: list[float]) -> Iterator[Event]:
    launches = timeline.launches
    for moment, (number, again) in enumerate(
        zip(launches.label.tolist(), launches.recompute.tolist(), strict=True)
    ):
        label = timeline.labels[number] if number >= 0 else Label("unknown")
        taken = times[moment + 1] - times[moment]
        args = {"moment": moment, "recomputed": again, **_said(label)}
        category = "recomputation" if again else "operation"
        yield _event("X", label.operation, times[moment], dur=taken, cat=category, args=args)


def _counters(timeline: TimelineData, times: list[float]) -> Iterator[Event]:
    live, outside = timeline.live_bytes.tolist(), timeline.outside_bytes.tolist()
    for moment in range(timeline.moments):
        values = {"pool": live[moment], "outside": outside[moment]}
        if not moment or live[moment - 1 : moment] != [values["pool"]]:
            yield _event("C", "live bytes", times[moment], args=values)
    count = min(_SAMPLES, timeline.moments)
    sampled = np.unique(np.linspace(0, max(0, timeline.moments - 1), count).astype(np.int64))
    values = timeline.fragmentation(sampled.tolist()).tolist() if count else []
    for moment, value in zip(sampled.tolist(), values, strict=False):
        yield _event("C", "fragmentation", times[moment], args={"share": value})


def _evictions(timeline: TimelineData, times: list[float]) -> Iterator[Event]:
    """Each as an instant in the operation that has room thereby, and the flow from there."""
    rows = timeline.residences
    returns = {
        (storage, again): begin
        for storage, again, begin in zip(
            rows.storage.tolist(), rows.recomputation.tolist(), rows.begin.tolist(), strict=True
        )
        if again and storage >= 0
    }
    for position in np.flatnonzero(rows.ending == Ending.EVICTED).tolist():
        moment = int(rows.end[position])
        if moment >= timeline.moments:  # the call failed there
            continue
        label = timeline.labels[rows.label[position]]
        storage, nbytes = int(rows.storage[position]), int(rows.nbytes[position])
        args = {"storage": storage, "bytes": nbytes, **_said(label)}
        name = f"evict {label.operation}"
        yield _event("i", name, times[moment], s="t", cat="eviction", args=args)
        again = returns.get((storage, int(rows.recomputation[position]) + 1))
        if again is not None:
            flow = {"cat": "rematerialisation", "id": position}
            yield _event("s", "rematerialisation", times[moment], **flow)
            yield _event("f", "rematerialisation", times[again], bp="e", **flow)


def _residences(timeline: TimelineData, times: list[float]) -> Iterator[Event]:
    rows = timeline.residences
    kinds = [kind.name.lower() for kind in Kind]
    for position in range(len(rows)):
        label = timeline.labels[rows.label[position]]
        category = kinds[rows.kind[position]]
        args = {
            "address": int(rows.address[position]),
            "bytes": int(rows.nbytes[position]),
            "recomputation": int(rows.recomputation[position]),
            **_said(label),
        }
        of = {"cat": category, "id": f"0x{position:x}"}
        begin, end = times[rows.begin[position]], times[rows.end[position]]
        yield _event("b", label.operation, begin, **of, args=args)
        yield _event("e", label.operation, end, **of)
