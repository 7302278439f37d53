"""Tables of results as CSV files that survive an interruption.

Model: a table is a list of rows of one dataclass, the file its only copy between runs. It is
written as a whole whenever rows are added, beside the old one and then put in its place, so a file
is never half a table. What is there already is not computed again.
Thread rule: one thread adds rows. Cost: a file is rewritten for each addition; tables are short.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar


@dataclasses.dataclass(frozen=True, slots=True)
class Overhead:
    """A simulated step (overhead.csv). See `coop_jax.Simulation` for the numbers.

    `ratio` and `unbudgeted_peak_bytes` are of Coop's unbudgeted peak, for every method, so that a
    ratio is the same budget for all. `repeated_seconds` is what of `recompute_seconds` went into
    operations that had been recomputed before. In a row that is not feasible only the numbers that
    say which row it is mean something.
    """

    network: str
    title: str
    method: str
    ratio: float
    budget_bytes: int
    unbudgeted_peak_bytes: int
    feasible: bool
    peak_bytes: int
    overhead: float
    compute_seconds: float
    recompute_seconds: float
    repeated_seconds: float
    operations: int
    evictions: int
    rematerialisations: int
    fragmentation: float
    max_fragmentation: float
    searches: int
    mean_search_seconds: float
    p99_search_seconds: float
    max_search_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Nearby:
    """Overhead at a budget within 1% of a ratio's (nearby.csv); infinite where it does not fit."""

    network: str
    title: str
    method: str
    ratio: float
    budget_bytes: int
    overhead: float


@dataclasses.dataclass(frozen=True, slots=True)
class Static:
    """A network with static checkpoints and no budget (static.csv)."""

    network: str
    title: str
    remat: str
    peak_bytes: int
    ratio: float
    overhead: float


@dataclasses.dataclass(frozen=True, slots=True)
class Budgets:
    """Where evictions begin, and the least that works (budgets.csv)."""

    network: str
    title: str
    method: str
    cutoff_bytes: int
    min_bytes: int
    unbudgeted_peak_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The largest batch that fits a device (batch.csv)."""

    network: str
    title: str
    method: str
    budget_bytes: int
    batch: int


@dataclasses.dataclass(frozen=True, slots=True)
class Density:
    """Cost densities of operations (table1.csv); MB are 10^6 bytes of output."""

    operation: str
    kind: str
    profile_us_per_mb: float
    measured_us_per_mb: float


RowT = TypeVar("RowT", Overhead, Nearby, Static, Budgets, Batch, Density)


class Table(Generic[RowT]):
    """A CSV file of rows of one type.

    Raises:
      ValueError: the file there is no such table.
    """

    def __init__(self, path: Path, row_type: type[RowT]):
        self.path = path
        self._row_type: type[RowT] = row_type
        self.rows: list[RowT] = []
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                names = [field.name for field in dataclasses.fields(row_type)]
                if reader.fieldnames != names:
                    raise ValueError(f"{path} is no table of {', '.join(names)}: use --fresh")
                self.rows = [_parse(row_type, row) for row in reader]

    def find(self, **values: Any) -> list[RowT]:
        """The rows with these values."""
        return [row for row in self.rows if all(getattr(row, k) == v for k, v in values.items())]

    def add(self, rows: Sequence[RowT], **replaced: Any) -> None:
        """Adds rows, in place of those with the values given, and writes the file."""
        if replaced:
            old = {id(row) for row in self.find(**replaced)}
            self.rows = [row for row in self.rows if id(row) not in old]
        self.rows += rows
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".new")
        with beside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in dataclasses.fields(self._row_type))
            writer.writerows(dataclasses.astuple(row) for row in self.rows)
        os.replace(beside, self.path)


def _parse(row_type: type[RowT], row: dict[str, str]) -> RowT:
    types = typing.get_type_hints(row_type)
    values: dict[str, Any] = {
        name: text == "True" if types[name] is bool else types[name](text)
        for name, text in row.items()
    }
    return row_type(**values)
