"""A timeline as a snapshot for PyTorch's memory_viz.

Format: a pickled dictionary as `torch.cuda.memory._snapshot()` returns it. What its readers
(`torch/utils/viz/MemoryViz.js`, `torch/cuda/_memory_viz.py`) look at:

- `segments`: ranges of memory, here the pool alone, with the `blocks` that it holds at the end, in
  order of address, without gaps;
- `device_traces`: for each device the events in order: "alloc" when a residence begins,
  "free_requested" and "free_completed" when it ends; `category` colours them by kind.

Frames are innermost first: the operation, then the user's line. The page unpickles in JavaScript,
which knows protocol 4 and not all of that. Address 0 is the pool's begin; what lies outside the
pool is left out.

Thread rule: functions of their arguments. Cost: linear; some microseconds a residence.
"""

from __future__ import annotations

import pickle
import re
from typing import Any, TypeAlias

import numpy as np

from coop_jax._src.report.timeline_data import Ending, Kind, Label, TimelineData

Event: TypeAlias = dict[str, Any]

_SOURCE = re.compile(r"^(?P<filename>.*):(?P<line>\d+)(?: \((?P<name>.*)\))?$")


def save(timeline: TimelineData, path: str) -> None:
    """Writes a snapshot: drop it onto https://pytorch.org/memory_viz."""
    with open(path, "wb") as file:
        pickle.dump(snapshot(timeline), file, protocol=4)


def snapshot(timeline: TimelineData) -> dict[str, Any]:
    """A timeline in the form of `torch.cuda.memory._snapshot()`."""
    frames = [_frames(label) for label in timeline.labels]
    return {
        "segments": [_segment(timeline, frames)],
        "device_traces": [_events(timeline, frames)],
        "allocator_settings": {},
    }


def _frames(label: Label) -> list[Event]:
    """The operation, then the line of the user's program that it comes from."""
    found = _SOURCE.match(label.source)
    shape = f" {label.dtype}[{','.join(map(str, label.shape))}]" if label.dtype else ""
    filename, line = (found["filename"], int(found["line"])) if found else ("", 0)
    frames = [{"filename": filename, "line": line, "name": label.operation + shape}]
    if found:
        name = found["name"] or label.path
        frames.append({"filename": filename, "line": line, "name": name})
    return frames


def _events(timeline: TimelineData, frames: list[list[Event]]) -> list[Event]:
    rows = timeline.residences
    category = [kind.name.lower() for kind in Kind]
    # The page asks for this category where it finds others.
    events: list[Event] = [
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "category": "unknown"}
    ]
    for moment, begins, position in _in_order(timeline):
        what = {
            "addr": int(rows.address[position]),
            "size": int(rows.nbytes[position]),
            "stream": 0,
            "time_us": _microseconds(timeline, moment),
            "frames": frames[rows.label[position]],
            "category": category[rows.kind[position]],
        }
        if begins:
            events.append({"action": "alloc", **what})
        else:
            events.append({"action": "free_requested", **what})
            events.append({"action": "free_completed", **what})
    return events


def _in_order(timeline: TimelineData) -> list[tuple[int, bool, int]]:
    """(moment, whether it begins, position) of what begins and ends: ends before begins."""
    rows = timeline.residences
    pooled = np.flatnonzero(rows.address >= 0)
    ended = pooled[rows.ending[pooled] != Ending.KEPT]
    found = [(int(rows.begin[p]), True, int(p)) for p in pooled]
    found += [(int(rows.end[p]), False, int(p)) for p in ended]
    return sorted(found)


def _microseconds(timeline: TimelineData, moment: int) -> int:
    seconds = timeline.launches.seconds
    return moment if seconds is None else round(float(seconds[moment]) * 1e6)


def _segment(timeline: TimelineData, frames: list[list[Event]]) -> dict[str, Any]:
    """The pool as it is at the end."""
    rows = timeline.residences
    held = np.flatnonzero((rows.address >= 0) & (rows.ending == Ending.KEPT))
    blocks: list[Event] = []
    end = 0
    for position in held[np.argsort(rows.address[held], kind="stable")].tolist():
        address, nbytes = int(rows.address[position]), int(rows.nbytes[position])
        if address > end:
            blocks.append(_free(end, address))
        blocks.append(
            {
                "address": address,
                "size": nbytes,
                "requested_size": int(rows.asked_bytes[position]),
                "state": "active_allocated",
                "frames": frames[rows.label[position]],
            }
        )
        end = address + nbytes
    if end < timeline.pool_bytes:
        blocks.append(_free(end, timeline.pool_bytes))
    held_bytes = int(rows.nbytes[held].sum())
    return {
        "device": 0,
        "address": 0,
        "total_size": timeline.pool_bytes,
        "allocated_size": held_bytes,
        "active_size": held_bytes,
        "requested_size": int(rows.asked_bytes[held].sum()),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _free(begin: int, end: int) -> Event:
    size = end - begin
    return {"address": begin, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
