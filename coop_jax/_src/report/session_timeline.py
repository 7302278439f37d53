"""From the log of a session to a timeline: of a call that ran operation by operation.

Model: rows in order (`cc/python/session/session_log.h`). Each launch is a moment; ids of storages
that ended are given to others, so a first launch begins a new storage and only a recomputation goes
on with one that was evicted.

Thread rule: functions of their arguments. Complexity: linear in the rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from coop_jax import _core
from coop_jax._src.eager.values import aval_of_key
from coop_jax._src.execution.call_recording import RecordedSession
from coop_jax._src.report.plan_timeline import Passes, folded
from coop_jax._src.report.timeline_data import (
    Ending,
    Kind,
    Label,
    Labels,
    Launches,
    Residences,
    TimelineData,
)

_ROW = np.dtype(
    [
        ("seconds", np.float64),
        ("offset", np.int64),
        ("bytes", np.int64),
        ("id", np.int32),
        ("event", np.int16),
        ("index", np.int16),
    ]
)
_ALIGNMENT = 64  # of what lies outside the pool, as it is counted

# Events, as in session_log.h.
_LAUNCH, _BEGIN, _DROPPED, _EVICTED, _OVERWRITTEN = range(5)
_SOURCE, _READ, _UNRESERVED, _RESERVED, _MOVED = range(5, 10)
_ENDINGS = {
    _DROPPED: Ending.DROPPED,
    _EVICTED: Ending.EVICTED,
    _OVERWRITTEN: Ending.OVERWRITTEN,
}


@dataclasses.dataclass(slots=True)
class _Storage:
    """A storage that is known by an id now; `row` is its open residence, None while it has none."""

    number: int
    kind: Kind
    label: Label
    times: int = 0
    row: list[int] | None = None


def timeline_of(call: RecordedSession, budget_bytes: int | None, title: str) -> TimelineData:
    """The timeline of a session, with measured seconds."""
    return _Reader(call).read(call, budget_bytes, title)


class _Reader:
    def __init__(self, call: RecordedSession):
        self._alignment = call.alignment_bytes
        self._prepared = call.log.prepared
        self._sources = call.sources
        self._log = np.frombuffer(call.log.rows, _ROW)
        self._labels = Labels()
        self._rows: list[list[int]] = []
        self._storages: dict[int, _Storage] = {}
        self._reserved: list[list[int]] = []
        self._launches: list[tuple[int, bool]] = []
        self._seconds: list[float] = []
        self._passes = Passes()
        self._made = 0
        self._first_launches = 0
        # Of the launch that goes on.
        self._again = False
        self._operation: _core.Prepared | None = None
        self._said = Label("")
        self._kind = Kind.FORWARD

    def read(self, call: RecordedSession, budget_bytes: int | None, title: str) -> TimelineData:
        for seconds, offset, nbytes, number, event, index in self._log.tolist():
            if event == _LAUNCH:
                self._launch(number, bool(index), seconds)
            elif event == _BEGIN:
                self._begin(number, index, offset, nbytes)
            elif event in _ENDINGS:
                self._close(number, _ENDINGS[event])
            elif event == _SOURCE:
                self._source(number, offset, nbytes, donated=bool(index))
            elif event == _READ:
                self._read(number, nbytes)
            elif event == _MOVED:
                self._move(number, offset)
            else:
                self._reserve(event, offset, nbytes)
        moments = len(self._launches)
        self._end(moments)
        rows = Residences.of_rows([row for row in self._rows if row[1] > row[0]])
        address, pool_bytes = folded(rows, budget_bytes)
        labels, again = zip(*self._launches, strict=True) if moments else ((), ())
        seconds = np.array([*self._seconds, call.end_seconds]) - call.begin_seconds
        return TimelineData(
            title,
            pool_bytes,
            dataclasses.replace(rows, address=address),
            Launches(np.array(labels, np.int32), np.array(again, bool), seconds),
            self._labels.all(),
            budget_bytes,
            seconds_are_measured=True,
        )

    def _launch(self, number: int, again: bool, seconds: float) -> None:
        operation = self._prepared[number]
        self._operation, self._again = operation, again
        source, path = "", ""
        if not again:
            source, path = self._sources.at(self._first_launches)
            self._first_launches += 1
            self._kind = self._passes.kind_of(path)
        self._said = Label(str(operation.kernel.label), source, (), "", path)
        self._launches.append((self._labels.number(self._said), again))
        self._seconds.append(seconds)

    @property
    def _moment(self) -> int:
        """Of the launch that goes on."""
        return max(0, len(self._launches) - 1)

    def _begin(self, number: int, index: int, offset: int, nbytes: int) -> None:
        storage = self._storages.get(number)
        if not self._again or storage is None:
            assert self._operation is not None
            label = _typed(self._said, self._operation.out_avals[index])
            storage = self._new(number, self._kind, label)
        elif storage.row is None:
            storage.times += 1
            # A recomputation is at the line that computed the storage first.
            self._launches[-1] = self._labels.number(_untyped(storage.label)), True
        if storage.row is None:
            storage.row = self._open(storage, offset, nbytes, self._moment)

    def _new(self, number: int, kind: Kind, label: Label) -> _Storage:
        storage = self._storages[number] = _Storage(self._made, kind, label)
        self._made += 1
        return storage

    def _open(self, storage: _Storage, offset: int, asked: int, moment: int) -> list[int]:
        aligned = self._alignment if offset >= 0 else _ALIGNMENT
        nbytes = -(-asked // aligned) * aligned
        label = self._labels.number(storage.label)
        row = [moment, moment, offset, nbytes, asked, storage.kind, Ending.KEPT, label]
        row += [storage.number, min(storage.times, 65535)]
        self._rows.append(row)
        return row

    def _close(self, number: int, ending: Ending) -> None:
        storage = self._storages.get(number)
        if storage is None or storage.row is None:
            return
        over = ending == Ending.OVERWRITTEN  # the launch that goes on has its place already
        storage.row[1], storage.row[6] = self._moment if over else len(self._launches), ending
        storage.row = None

    def _source(self, number: int, offset: int, nbytes: int, *, donated: bool) -> None:
        kind = Kind.STATE if donated else Kind.OTHER if offset >= 0 else Kind.INPUT
        storage = self._new(number, kind, Label("argument" if donated else "other arrays"))
        storage.row = self._open(storage, offset, nbytes, len(self._launches))

    def _read(self, number: int, key: int) -> None:
        """A source is an argument, or an array closed over: from now on its type is known."""
        storage = self._storages[number]
        storage.kind = Kind.STATE if storage.kind == Kind.STATE else Kind.INPUT
        storage.label = _typed(Label("argument"), aval_of_key(key))
        if storage.row is not None:
            storage.row[5], storage.row[7] = storage.kind, self._labels.number(storage.label)

    def _move(self, number: int, offset: int) -> None:
        storage = self._storages[number]
        if storage.row is not None:
            asked, storage.row[1] = storage.row[4], len(self._launches)
            storage.row[6] = Ending.DROPPED
            storage.row = self._open(storage, offset, asked, len(self._launches))

    def _reserve(self, event: int, offset: int, nbytes: int) -> None:
        moment = len(self._launches)
        if event == _UNRESERVED:
            for row in self._reserved:
                row[1] = moment
            self._reserved = []
            return
        label = self._labels.number(Label("reserved"))
        kind, ending = Kind.RESERVED, Ending.KEPT
        row = [moment, moment, offset, nbytes, nbytes, kind, ending, label, -1, 0]
        self._reserved.append(row)
        self._rows.append(row)

    def _end(self, moments: int) -> None:
        for row in self._reserved:
            row[1] = moments
        for storage in self._storages.values():
            if storage.row is not None:
                storage.row[1] = moments
                if storage.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE):
                    storage.row[5] = Kind.RESULT


def _typed(label: Label, aval: object) -> Label:
    shape = tuple(map(int, getattr(aval, "shape", ())))
    return dataclasses.replace(label, shape=shape, dtype=str(getattr(aval, "dtype", "")))


def _untyped(label: Label) -> Label:
    return dataclasses.replace(label, shape=(), dtype="")
