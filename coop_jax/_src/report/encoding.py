"""A timeline as bytes for the page: columns as typed arrays, words once, all of it compressed.

Format: gzip of a 4-byte length (little-endian), a JSON header of that length, padded with blanks to
a multiple of 8, then the columns that the header lists by name, type, begin and length. Addresses
and sizes are in units that divide them all, so that they fit into 4 bytes; of moments only
differences are kept, which compresses them to a tenth. The reader is `page/decode.js`.

Thread rule: functions of their arguments. Cost: linear; a second for a million residences.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coop_jax._src.report.timeline_data import Kind, TimelineData

OUTSIDE = 0xFFFFFFFF  # an address of none

# Fragmentation is told at so many moments, evenly spread, or at each if there are fewer.
_SAMPLES = 2048
_LEVEL = 5  # of compression: beyond it the time grows, not the ratio


def encoded(timeline: TimelineData) -> bytes:
    """A timeline for the page.

    Raises:
      ValueError: the pool is too large for addresses of 4 bytes in units of its blocks.
    """
    columns = _columns(timeline)
    unit = _unit(timeline)
    samples = np.unique(np.linspace(0, max(0, timeline.moments - 1), _SAMPLES).astype(np.int64))
    samples = samples[: timeline.moments]
    columns["fragmentationMoment"] = samples.astype(np.int32)
    columns["fragmentation"] = timeline.fragmentation(samples.tolist()).astype(np.float32)
    texts, numbers = _interned(timeline)
    columns.update(numbers)
    header = {
        "title": timeline.title,
        "poolBytes": timeline.pool_bytes,
        "budgetBytes": timeline.budget_bytes,
        "moments": timeline.moments,
        "unit": unit,
        "measured": timeline.seconds_are_measured,
        "kinds": [kind.name.lower() for kind in Kind],
        "texts": texts,
    }
    return gzip.compress(_packed(header, columns), _LEVEL, mtime=0)


def _unit(timeline: TimelineData) -> int:
    rows = timeline.residences
    pooled = rows.address[rows.address >= 0]
    unit = int(np.gcd.reduce(np.concatenate([pooled, rows.nbytes]), initial=0)) or 1
    largest = int(max(pooled.max(initial=0), rows.nbytes.max(initial=0)))
    if largest // unit >= OUTSIDE:
        raise ValueError(f"addresses up to {largest} in units of {unit} do not fit into 4 bytes")
    return unit


def _columns(timeline: TimelineData) -> dict[str, NDArray[Any]]:
    rows, launches, unit = timeline.residences, timeline.launches, _unit(timeline)
    columns: dict[str, NDArray[Any]] = {
        "beginStep": np.diff(rows.begin, prepend=np.int32(0)).astype(np.int32),
        "lifetime": rows.end - rows.begin,
        "address": np.where(rows.address < 0, OUTSIDE, rows.address // unit).astype(np.uint32),
        "nbytes": (rows.nbytes // unit).astype(np.uint32),
        "padding": (rows.nbytes - rows.asked_bytes).astype(np.uint32),
        "label": rows.label,
        "storage": rows.storage,
        "recomputation": rows.recomputation,
        "kind": rows.kind,
        "ending": rows.ending,
        "launchLabel": launches.label,
        "launchAgain": launches.recompute.astype(np.uint8),
    }
    if launches.seconds is not None:
        columns["seconds"] = launches.seconds
    return columns


def _interned(timeline: TimelineData) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """The words of labels, each once, and for each label the numbers of its own."""
    numbers: dict[str, int] = {}

    def numbered(words: Iterable[str]) -> NDArray[np.int32]:
        return np.array([numbers.setdefault(w, len(numbers)) for w in words], np.int32)

    labels = timeline.labels
    columns: dict[str, NDArray[Any]] = {
        "labelOperation": numbered(x.operation for x in labels),
        "labelSource": numbered(x.source for x in labels),
        "labelShape": numbered(
            f"[{', '.join(map(str, x.shape))}]" if x.dtype else "" for x in labels
        ),
        "labelDtype": numbered(x.dtype for x in labels),
        "labelPath": numbered(x.path for x in labels),
    }
    return list(numbers), columns


def _packed(header: dict[str, Any], columns: dict[str, NDArray[Any]]) -> bytes:
    listed, parts, begin = [], [], 0
    for name, column in columns.items():
        data = np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<")).tobytes()
        listed.append([name, column.dtype.name, begin, len(column)])
        parts.append(data + bytes(-len(data) % 8))
        begin += len(parts[-1])
    text = json.dumps({**header, "columns": listed}).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(parts)
