"""The tables of an output folder, and how to look things up in them.

Model: a table is a tuple of rows; a file that is missing is an empty table whose name is in
`Results.missing`. Columns that nobody here reads are ignored. Numbers of infeasible rows mean
nothing and are never returned: their overhead is infinite, everything else of them None.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import math
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from examples.paper.evaluation.methods import ABLATIONS as ABLATIONS
from examples.paper.evaluation.methods import ABLATIONS_PUBLISHED, PUBLISHED
from examples.paper.evaluation.methods import MAIN as MAIN
from examples.paper.evaluation.tables import Batch, Budgets, Density, Nearby, Overhead, Static

# In the order of the paper's figures; GPT-2 is in the latency figure only.
EIGHT = ("resnet50", "inception", "unet", "swin", "bert", "gpt3", "bilstm", "spos")
NETWORKS = (*EIGHT, "gpt2")
TITLES = dict(
    zip(
        NETWORKS,
        "ResNet-50,Inception V3,U-Net,Swin-T,BERT Large,GPT-3 style 2.7B,BiLSTM,SPOS,GPT-2".split(
            ","
        ),
        strict=True,
    )
)
RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


@dataclasses.dataclass(frozen=True, slots=True)
class Real:
    """A real run of a small size beside its simulation (real.csv)."""

    network: str
    title: str
    policy: str
    ratio: float
    budget_bytes: int
    simulated_overhead: float
    measured_overhead: float
    evictions: int


@dataclasses.dataclass(frozen=True)
class Results:
    """All tables."""

    overhead: tuple[Overhead, ...]
    nearby: tuple[Nearby, ...]
    static: tuple[Static, ...]
    budgets: tuple[Budgets, ...]
    batch: tuple[Batch, ...]
    table1: tuple[Density, ...]
    real: tuple[Real, ...]
    missing: tuple[str, ...]
    about: str  # what the tables were made with, as text; empty if unknown

    @functools.cached_property
    def _steps(self) -> dict[tuple[str, str, float], Overhead]:
        return {(r.network, r.method, round(r.ratio, 4)): r for r in self.overhead}

    @functools.cached_property
    def _budgets(self) -> dict[tuple[str, str], Budgets]:
        return {(row.network, row.method): row for row in self.budgets}

    def step(self, network: str, method: str, ratio: float) -> Overhead | None:
        """The row of a simulated step, feasible or not; None if it was not simulated."""
        return self._steps.get((network, method, round(ratio, 4)))

    def feasible(self, network: str, method: str, ratio: float) -> Overhead | None:
        """The row of a simulated step, None if it was not simulated or does not fit."""
        row = self.step(network, method, ratio)
        return row if row is not None and row.feasible else None

    def cost(self, network: str, method: str, ratio: float) -> float | None:
        """Overhead; infinite where it does not fit, None where it was not simulated."""
        row = self.step(network, method, ratio)
        return None if row is None else row.overhead if row.feasible else math.inf

    def budget(self, network: str, method: str) -> Budgets | None:
        """The row of cutoff and minimum budgets."""
        return self._budgets.get((network, method))

    def published(self) -> Results:
        """The same tables, where the methods are those as published, and there are no others."""

        def renamed(rows: tuple[Any, ...]) -> tuple[Any, ...]:
            forms = dict(zip((*PUBLISHED, *ABLATIONS_PUBLISHED), (*MAIN, *ABLATIONS), strict=True))
            return tuple(
                dataclasses.replace(row, method=forms[row.method])
                for row in rows
                if row.method in forms
            )

        return dataclasses.replace(
            self, overhead=renamed(self.overhead), budgets=renamed(self.budgets), batch=()
        )

    def rival(self, network: str, remat: str) -> Static | None:
        """A static rival."""
        found = (row for row in self.static if (row.network, row.remat) == (network, remat))
        return next(found, None)

    def ratios(self) -> tuple[float, ...]:
        """All budgets that were simulated, largest first."""
        return tuple(sorted({round(row.ratio, 4) for row in self.overhead}, reverse=True))


RowT = TypeVar("RowT")


def read(folder: Path) -> Results:
    """Reads a folder.

    Raises:
      ValueError: a file lacks columns or holds what is no number.
    """
    types: dict[str, type] = {
        "overhead": Overhead,
        "nearby": Nearby,
        "static": Static,
        "budgets": Budgets,
        "batch": Batch,
        "table1": Density,
        "real": Real,
    }
    tables: dict[str, Any] = {
        name: _rows(folder / f"{name}.csv", row_type) for name, row_type in types.items()
    }
    missing = tuple(f"{name}.csv" for name, rows in tables.items() if not rows)
    about = folder / "about.json"
    facts = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
    text = ", ".join(f"{name} {value}" for name, value in facts.items())
    return Results(**tables, missing=missing, about=text)


def _rows(path: Path, row_type: type[RowT]) -> tuple[RowT, ...]:
    if not path.exists():
        return ()
    types = typing.get_type_hints(row_type)
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        lacks = [name for name in types if name not in (reader.fieldnames or ())]
        if lacks:
            raise ValueError(f"{path}: no column {', '.join(lacks)}")
        rows = []
        for line in reader:
            try:
                rows.append(row_type(**{n: _value(t, line[n]) for n, t in types.items()}))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    return tuple(rows)


def _value(kind: type, text: str) -> Any:
    if kind is bool:
        if text not in ("True", "False"):
            raise ValueError(f"{text!r} is neither True nor False")
        return text == "True"
    return kind(text)


def known(networks: Iterable[str]) -> list[str]:
    """Networks in the paper's order, those that it does not have at the end."""
    there = set(networks)
    return [n for n in NETWORKS if n in there] + sorted(there.difference(NETWORKS))


def title(network: str) -> str:
    """How a network is called."""
    return TITLES.get(network, network)


def percent(value: float | None, digits: int = 0) -> str:
    """A share as text: 'OOM' for what does not fit, a dash for what was not simulated."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "OOM"
    if digits == 0 and 0 < abs(value) < 0.0995:
        digits = 1
    return f"{value:.{digits}%}"
