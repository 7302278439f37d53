"""A timeline as bytes for the page: columns as typed arrays, words once, all of it compressed.

Format: gzip of a 4-byte length (little-endian), a JSON header of that length, padded with blanks to
a multiple of 8, then the columns that the header lists by name, type, begin and length. Addresses
and sizes are in units that divide them all, in 4 bytes where that is enough, and 8 otherwise; of
moments only differences are kept, which compress well. The reader is `page/decode.js`.

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

_OUTSIDE = 0xFFFFFFFF  # instead of an address in 4 bytes; in 8 it is -1

# Fragmentation is told at so many moments, evenly spread, or at each if there are fewer.
_SAMPLES = 2048
_LEVEL = 5  # of compression: beyond it the time grows, not the ratio


def encoded(timeline: TimelineData) -> bytes:
    """A timeline for the page."""
    address, address_unit = _in_units(timeline.residences.address)
    nbytes, bytes_unit = _in_units(timeline.residences.nbytes)
    columns = {"address": address, "nbytes": nbytes, **_columns(timeline)}
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
        "addressUnit": address_unit,
        "bytesUnit": bytes_unit,
        "measured": timeline.seconds_are_measured,
        "kinds": [kind.name.lower() for kind in Kind],
        "texts": texts,
    }
    return gzip.compress(_packed(header, columns), _LEVEL, mtime=0)


def _in_units(values: NDArray[np.int64]) -> tuple[NDArray[Any], int]:
    """Addresses or sizes as multiples of what divides them all, and that; -1 stands for none."""
    known = values >= 0
    unit = int(np.gcd.reduce(values[known], initial=0)) or 1
    units = np.where(known, values // unit, -1)
    if units.max(initial=0) < _OUTSIDE:
        return np.where(known, units, _OUTSIDE).astype(np.uint32), unit
    return units.astype(np.float64), unit


def _columns(timeline: TimelineData) -> dict[str, NDArray[Any]]:
    rows, launches = timeline.residences, timeline.launches
    columns: dict[str, NDArray[Any]] = {
        "beginStep": np.diff(rows.begin, prepend=np.int32(0)).astype(np.int32),
        "lifetime": rows.end - rows.begin,
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
