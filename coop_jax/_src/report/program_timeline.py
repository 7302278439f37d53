"""The timeline of a compiled program: XLA's allocations one above the other, what lies in each.

Arguments, results and XLA's one block of temporary memory are there all the time; constants of the
executable, which a program's peak does not count, are left out.

Thread rule: functions of their arguments. Cost: linear in the buffers.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from coop_jax._src.report.buffers import Buffer
from coop_jax._src.report.memory_report import MemoryReport
from coop_jax._src.report.timeline_data import (
    Ending,
    Kind,
    Label,
    Labels,
    Launches,
    Residences,
    TimelineData,
)

_KINDS = {
    "parameters": Kind.STATE,
    "optimizer state": Kind.STATE,
    "inputs": Kind.INPUT,
    "results": Kind.RESULT,
    "residuals": Kind.FORWARD,
}
_PHASES = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD}


@dataclasses.dataclass(frozen=True, slots=True)
class BufferRow:
    """A buffer of a compiled program, as XLA's buffer assignment has it.

    Attributes:
      address: in bytes, from the begin of all allocations; -1 for outside them.
      nbytes: of the buffer.
      first: the number of the instruction that makes it; 0 for what is there before.
      last: the number of the last instruction that needs it.
      kind: what it is for.
      label: what is said of it.
    """

    address: int
    nbytes: int
    first: int
    last: int
    kind: Kind
    label: Label


def timeline_of(report: MemoryReport, title: str) -> TimelineData:
    """The timeline of a program that was compiled for a report.

    Raises:
      ValueError: XLA does not say where buffers lie.
    """
    buffers = [b for b in report.lifetimes if b.kind not in ("constants", "unused") and b.nbytes]
    if not report.moments or any(b.allocation < 0 for b in buffers):
        raise ValueError(
            "this report says nothing of addresses: those of a function of coop_jax.run are in"
            " step.simulate(*args), and not every platform tells those of its programs"
        )
    begins, pool_bytes = _begins(buffers)
    updates_from = max((b.first for b in buffers if b.phase == "backward"), default=report.moments)
    rows = [
        BufferRow(
            begins[b.allocation] + b.offset,
            b.nbytes,
            b.first,
            b.last,
            _kind(b, updates_from),
            Label(_operation(b), b.source, b.shape, b.dtype, b.path or b.module),
        )
        for b in buffers
    ]
    return timeline_of_rows(rows, report.moments, pool_bytes, title)


def timeline_of_rows(
    buffers: Iterable[BufferRow], moments: int, pool_bytes: int, title: str
) -> TimelineData:
    """The timeline of buffers, see `Timeline.from_buffers`."""
    labels, rows = Labels(), []
    runs = np.full(moments, -1, np.int32)
    for storage, b in enumerate(buffers):
        if not 0 <= b.first <= b.last < moments:
            raise ValueError(f"no such moments: {b.first} to {b.last} of {moments}")
        if b.address + b.nbytes > pool_bytes:
            raise ValueError(f"a buffer ends at {b.address + b.nbytes}, after {pool_bytes}")
        number = labels.number(b.label)
        ending = Ending.KEPT if b.last == moments - 1 else Ending.DROPPED
        place = b.address, b.nbytes, b.nbytes
        rows.append([b.first, b.last + 1, *place, b.kind, ending, number, storage, 0])
        runs[b.first] = number
    launches = Launches(runs, np.zeros(moments, bool))
    return TimelineData(title, pool_bytes, Residences.of_rows(rows), launches, labels.all())


def _begins(buffers: Sequence[Buffer]) -> tuple[Mapping[int, int], int]:
    """Where each allocation begins, and where all end: those with the fewest buffers first.

    So arguments and results lie below, and XLA's one block of temporary memory above them.
    """
    sizes: collections.Counter[int] = collections.Counter()
    counts = collections.Counter(b.allocation for b in buffers)
    for b in buffers:
        sizes[b.allocation] = max(sizes[b.allocation], b.offset + b.nbytes)
    begins, end = {}, 0
    for allocation in sorted(sizes, key=lambda a: (counts[a], a)):
        begins[allocation], end = end, end + sizes[allocation]
    return begins, end


def _operation(buffer: Buffer) -> str:
    return buffer.kind if buffer.operation in ("", "parameter") else buffer.operation


def _kind(buffer: Buffer, updates_from: int) -> Kind:
    if buffer.kind in _KINDS:
        return _KINDS[buffer.kind]
    other = Kind.UPDATE if buffer.first > updates_from else Kind.OTHER
    return _PHASES.get(buffer.phase, other)
