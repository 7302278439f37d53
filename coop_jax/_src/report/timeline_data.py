"""What lies where in memory, and when: the data of a timeline, whatever it was made of.

Model: time is a row of *moments*, one for each launch of an operation, in order. A *residence* is
the time in which a storage stays at one address: a rectangle of moments [begin, end) and of
addresses [address, address + nbytes). While an operation runs, its operands and its results are
resident; a result that takes an operand's block begins where that one ends. What is evicted and
computed again has a residence for each time. Rectangles never overlap.

Columns are NumPy arrays, an element a residence, and what is said of values in words is kept once
for all residences that share it: a million of them take 40 MB.

Invariants: residences are in order of `begin`; 0 <= begin < end <= moments; blocks in the pool lie
within it; an address of -1 means outside the pool.
Thread rule: values. Complexity: linear in residences and moments, unless said otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

# Samples of fragmentation that are made together, from the residences that any of them sees.
_CHUNK = 64


class Kind(enum.IntEnum):
    """What a storage is for."""

    STATE = 0  # a donated argument: parameters, optimizer state
    INPUT = 1
    CONSTANT = 2
    FORWARD = 3  # made in the forward pass
    BACKWARD = 4  # made in the backward pass
    RESULT = 5
    SCRATCH = 6  # read by nothing: results that are not asked for, workspace
    RESERVED = 7  # kept free of blocks: it stands for memory outside the pool
    OTHER = 8
    UPDATE = 9  # made after the backward pass began, of no pass: the optimizer's


class Ending(enum.IntEnum):
    """Why a residence ends."""

    KEPT = 0  # it outlives the timeline
    DROPPED = 1  # nothing reads it any more
    EVICTED = 2  # to make room; it may be computed again
    OVERWRITTEN = 3  # a result took its block


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """What is said of a value.

    Attributes:
      operation: what made it, "dot_general+tanh" for instance.
      source: "file:line (function)" of the user's program; "" where none is known.
      shape: of the value.
      dtype: its name, "" where there is none.
      path: the module path or name stack, "jvp(CNN)/Conv_0" for instance.
    """

    operation: str
    source: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    path: str = ""


class Labels:
    """Labels by number, each once."""

    def __init__(self) -> None:
        self._numbers: dict[Label, int] = {}

    def number(self, label: Label) -> int:
        """The number of a label, a new one at first sight."""
        return self._numbers.setdefault(label, len(self._numbers))

    def all(self) -> tuple[Label, ...]:
        """The labels, in order of their numbers."""
        return tuple(self._numbers)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Residences:
    """Columns, an element a residence.

    Attributes:
      begin: int32, the first moment.
      end: int32, the moment after the last.
      address: int64, in bytes from the pool's begin; -1 outside the pool.
      nbytes: int64, what the block takes: as asked for, rounded up to the alignment.
      asked_bytes: int64, what was asked for.
      kind: uint8, a `Kind`.
      ending: uint8, an `Ending`.
      label: int32, the number of a label.
      storage: int32, equal for residences of one storage; -1 for scratch.
      recomputation: uint16, how often the storage had been computed before.
    """

    begin: NDArray[np.int32]
    end: NDArray[np.int32]
    address: Ints
    nbytes: Ints
    asked_bytes: Ints
    kind: NDArray[np.uint8]
    ending: NDArray[np.uint8]
    label: NDArray[np.int32]
    storage: NDArray[np.int32]
    recomputation: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.begin)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> Residences:
        """From rows of numbers in the order of the columns, sorted by their first moment."""
        table = np.array(rows, np.int64).reshape(-1, len(_DTYPES)).T
        order = np.argsort(table[0], kind="stable")
        return cls(*(c[order].astype(t) for c, t in zip(table, _DTYPES, strict=True)))


_DTYPES = (
    *(np.int32, np.int32, np.int64, np.int64, np.int64),
    *(np.uint8, np.uint8, np.int32, np.int32, np.uint16),
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Columns, an element a moment.

    Attributes:
      label: int32, of the operation that runs; -1 where none is known.
      recompute: bool, whether it had run before.
      seconds: float64, when each moment begins, with one more for the end of the last; None where
        nothing is known of times.
    """

    label: NDArray[np.int32]
    recompute: NDArray[np.bool_]
    seconds: NDArray[np.float64] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LiveLine:
    """What is live of one source line at a moment.

    Attributes:
      source: "file:line (function)"; "" for what has none.
      nbytes: of all its storages, in the pool and outside.
      residences: their positions in `Timeline.residences`, the largest first.
      label: of the largest.
    """

    source: str
    nbytes: int
    residences: tuple[int, ...]
    label: Label


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TimelineData:
    """See `coop_jax.Timeline`.

    Attributes:
      title: for people.
      pool_bytes: the addresses that there are.
      residences: what lies where, and when.
      launches: what runs at each moment.
      labels: by number.
      budget_bytes: the cap on everything, None for none.
      seconds_are_measured: whether they are, or estimated by a cost model.
    """

    title: str
    pool_bytes: int
    residences: Residences
    launches: Launches
    labels: tuple[Label, ...]
    budget_bytes: int | None = None
    seconds_are_measured: bool = False

    @property
    def moments(self) -> int:
        """How many there are."""
        return len(self.launches.label)

    @property
    def evictions(self) -> int:
        """Residences that ended to make room."""
        return int(np.count_nonzero(self.residences.ending == Ending.EVICTED))

    @property
    def recomputations(self) -> int:
        """Launches of operations that had run before."""
        return int(np.count_nonzero(self.launches.recompute))

    @property
    def live_bytes(self) -> Ints:
        """Bytes in blocks of the pool at each moment, what is reserved not counted."""
        rows = self.residences
        counted = (rows.address >= 0) & (rows.kind != Kind.RESERVED)
        return self._summed(counted)

    @property
    def outside_bytes(self) -> Ints:
        """Bytes outside the pool at each moment, as far as they are known."""
        return self._summed(self.residences.address < 0)

    @property
    def peak_bytes(self) -> int:
        """The most `live_bytes`, and what is reserved beside them."""
        rows = self.residences
        reserved = self._summed(rows.kind == Kind.RESERVED)
        return int((self.live_bytes + reserved).max(initial=0))

    @property
    def peak_moment(self) -> int:
        """The first moment with the most `live_bytes`."""
        return int(np.argmax(self.live_bytes)) if self.moments else 0

    def live_at(self, moment: int) -> tuple[LiveLine, ...]:
        """What is live at a moment, by source line, the line with the most bytes first.

        In the pool and outside; what is reserved stands for the latter, and is not listed.

        Args:
          moment: from 0 to `moments` - 1; `peak_moment` for instance.

        Raises:
          IndexError: there is no such moment.
        """
        if not 0 <= moment < self.moments:
            raise IndexError(f"there is no moment {moment}: the timeline has {self.moments}")
        rows = self.residences
        there = (rows.begin <= moment) & (rows.end > moment) & (rows.kind != Kind.RESERVED)
        alive = np.flatnonzero(there)
        by_source: dict[str, list[int]] = {}
        for position in alive[np.argsort(-rows.nbytes[alive], kind="stable")].tolist():
            source = self.labels[rows.label[position]].source
            by_source.setdefault(source, []).append(position)
        lines = [
            LiveLine(
                source,
                int(rows.nbytes[found].sum()),
                tuple(found),
                self.labels[rows.label[found[0]]],
            )
            for source, found in by_source.items()
        ]
        return tuple(sorted(lines, key=lambda line: (-line.nbytes, line.source)))

    def fragmentation(self, moments: Iterable[int] | None = None) -> NDArray[np.float64]:
        """How much of the free bytes is not in the largest free block, from 0 to 1.

        Args:
          moments: which; all if not given.

        Returns:
          A float64 for each; 0 where nothing is free.
        """
        wanted = np.arange(self.moments) if moments is None else np.asarray(list(moments))
        found = np.zeros(len(wanted))
        rows = self.residences
        by_address = np.argsort(rows.address, kind="stable")
        by_address = by_address[rows.address[by_address] >= 0]
        begin, end = rows.begin[by_address], rows.end[by_address]
        first, last = rows.address[by_address], (rows.address + rows.nbytes)[by_address]
        order = np.argsort(wanted, kind="stable")
        for chunk in np.split(order, range(_CHUNK, len(order), _CHUNK)):
            if not len(chunk):
                continue
            seen = (begin <= wanted[chunk[-1]]) & (end > wanted[chunk[0]])
            part = begin[seen], end[seen], first[seen], last[seen]
            for number in chunk:
                found[number] = _scattered(*part, int(wanted[number]), self.pool_bytes)
        return found

    def _summed(self, which: NDArray[np.bool_]) -> Ints:
        """Bytes of some residences at each moment."""
        rows = self.residences
        change = np.zeros(self.moments + 1, np.int64)
        np.add.at(change, rows.begin[which], rows.nbytes[which])
        np.subtract.at(change, rows.end[which], rows.nbytes[which])
        return np.cumsum(change)[:-1]

    def to_json(self) -> dict[str, Any]:
        """Everything as lists, numbers and text, for `json.dump`."""
        rows, launches = self.residences, self.launches
        columns = {f.name: getattr(rows, f.name).tolist() for f in dataclasses.fields(rows)}
        return {
            "title": self.title,
            "pool_bytes": self.pool_bytes,
            "budget_bytes": self.budget_bytes,
            "moments": self.moments,
            "kinds": [kind.name.lower() for kind in Kind],
            "endings": [ending.name.lower() for ending in Ending],
            "labels": [dataclasses.asdict(label) for label in self.labels],
            "residences": columns,
            "launches": {
                "label": launches.label.tolist(),
                "recompute": launches.recompute.tolist(),
                "seconds": None if launches.seconds is None else launches.seconds.tolist(),
                "seconds_are_measured": self.seconds_are_measured,
            },
        }


def _scattered(
    begin: NDArray[np.int32],
    end: NDArray[np.int32],
    first: Ints,
    last: Ints,
    moment: int,
    pool_bytes: int,
) -> float:
    """Fragmentation at a moment, of blocks in order of address."""
    alive = (begin <= moment) & (end > moment)
    starts = np.append(first[alive], pool_bytes)
    ends = np.insert(last[alive], 0, 0)
    gaps = starts - ends
    free = int(gaps.sum())
    return 1 - int(gaps.max()) / free if free else 0.0
