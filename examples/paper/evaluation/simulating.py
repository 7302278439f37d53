"""Everything that is simulated, table by table, with what is in the files already left out.

Model: a network is traced once, when its first row is missing, and dropped when its last is there.
Plans of one method at several budgets are made in as many threads as there are cores (the planner
lets go of the interpreter lock), so no process has to trace for another. Tables grow by the rows of
one (network, method); those of an interrupted run are there when it is run again.
Invariants: all rows of a folder are of one device profile, which about.json names.
Cost: a minute or two for most networks; BiLSTM, of 74,000 operations, takes most of the time.
"""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from tqdm import tqdm

import coop_jax
from examples.paper.evaluation import batches, densities
from examples.paper.evaluation.checkpoints import checkpointed
from examples.paper.evaluation.methods import (
    ABLATIONS_PUBLISHED,
    DEVICE_BYTES,
    LATENCY_ONLY,
    LEAST_PUBLISHED,
    LONG,
    MAIN,
    METHODS,
    NEARBY,
    PUBLISHED,
)
from examples.paper.evaluation.overheads import nearby, overheads, unbudgeted
from examples.paper.evaluation.tables import (
    Batch,
    Budgets,
    Density,
    Nearby,
    Overhead,
    Static,
    Table,
)
from examples.paper.evaluation.thresholds import thresholds
from examples.paper.networks import Network
from examples.paper.networks.base import Size

FILES = ("overhead.csv", "nearby.csv", "static.csv", "budgets.csv", "batch.csv", "table1.csv")

_LONGEST = "bilstm"  # comes last


class Evaluation:
    """The tables in a folder, and what to fill them with."""

    def __init__(
        self,
        folder: Path,
        profile: str,
        methods: Sequence[str],
        ratios: Sequence[float],
        *,
        size: Size = "paper",
        fresh: bool = False,
    ):
        """Args: see `simulate`; `size` for tests."""
        _check_about(folder, profile, size, fresh)
        self.profile = profile
        self.methods = methods
        self.ratios = ratios
        self.size: Size = size
        self.overhead = Table(folder / "overhead.csv", Overhead)
        self.nearby = Table(folder / "nearby.csv", Nearby)
        self.static = Table(folder / "static.csv", Static)
        self.budgets = Table(folder / "budgets.csv", Budgets)
        self.batch = Table(folder / "batch.csv", Batch)
        self.table1 = Table(folder / "table1.csv", Density)

    def network(self, network: Network, bar: tqdm[None]) -> None:
        """The rows of a network in the tables of overheads, static rivals and budgets."""

        def say(what: str) -> None:
            bar.set_postfix_str(f"{network.name}: {what}")

        @functools.cache
        def program(remat: str) -> coop_jax.TracedProgram:
            say(f"tracing, checkpoints {remat}")
            return traced(network, self.size, remat)

        @functools.cache
        def plain() -> coop_jax.Simulation:
            return unbudgeted(program("none"), self.profile)

        def is_long() -> bool:
            return len(program("none").program.operations) > LONG

        latency_only = network.name in LATENCY_ONLY
        for method in self.methods:
            if latency_only and method not in MAIN:
                continue
            there = {row.ratio for row in self.overhead.find(network=network.name, method=method)}
            missing = [ratio for ratio in self.ratios if ratio not in there]
            if missing and is_long():
                if METHODS[method].neighborhood == "exact" or method == "coop-by-size":
                    continue
                if method in (*PUBLISHED, *ABLATIONS_PUBLISHED):
                    missing = [ratio for ratio in missing if ratio >= LEAST_PUBLISHED]
            if not missing:
                continue
            peak = plain().unbudgeted_peak_bytes
            say(method)
            self.overhead.add(
                overheads(network, program("none"), method, missing, self.profile, peak)
            )
        if latency_only:
            return
        for method in (m for m in self.methods if m in NEARBY):
            there = {row.ratio for row in self.nearby.find(network=network.name, method=method)}
            missing = [ratio for ratio in self.ratios if ratio not in there]
            if not missing or is_long():
                continue
            peak = plain().unbudgeted_peak_bytes
            say(f"{method} at nearby budgets")
            self.nearby.add(nearby(network, program("none"), method, missing, self.profile, peak))
        for remat in network.remat:
            if remat == "none" or self.static.find(network=network.name, remat=remat):
                continue
            self.static.add([checkpointed(network, remat, program(remat), self.profile, plain())])
        for method in (m for m in self.methods if m in (*MAIN, *PUBLISHED)):
            if self.budgets.find(network=network.name, method=method):
                continue
            if method != "coop" and is_long():
                continue
            peak = plain().unbudgeted_peak_bytes
            known = self.overhead.find(network=network.name, method=method)
            say(f"smallest budget, {method}")
            self.budgets.add(
                [thresholds(network, program("none"), method, self.profile, peak, known)]
            )

    def batches(self, network: Network, bar: tqdm[None]) -> None:
        """The largest batches of a network."""

        @functools.cache
        def trace(remat: str, batch: int) -> coop_jax.TracedProgram:
            bar.set_postfix_str(f"{network.name}: batch of {batch}, checkpoints {remat}")
            return traced(network, self.size, remat, batch)

        start = network.setting(self.size).task.batch
        for method in batches.METHODS_COMPARED:
            if method in ("coop", "dte", "dtr") and method not in self.methods:
                continue
            if self.batch.find(network=network.name, method=method):
                continue
            row = batches.largest_batch(
                network, trace, method, DEVICE_BYTES[self.profile], self.profile, start
            )
            self.batch.add([row])
            start = row.batch or start

    def densities(self, bar: tqdm[None]) -> None:
        """Table 1."""
        for operation in densities.OPERATIONS:
            if not self.table1.find(operation=operation.name):
                bar.set_postfix_str(operation.name)
                self.table1.add([densities.density(operation, self.profile)])


def traced(
    network: Network,
    size: Size,
    remat: str = "none",
    batch: int | None = None,
    *,
    fusion: bool = False,
) -> coop_jax.TracedProgram:
    """The program of a train step; the evaluation runs it primitive by primitive, as the paper."""
    step = network.make_step(size, remat, batch)  # type: ignore[arg-type]
    return coop_jax.trace_program(
        step.fn, *step.arguments, donate_argnums=step.donate_argnums, fusion=fusion
    )


def simulate(
    folder: Path,
    networks: Sequence[Network],
    methods: Sequence[str],
    ratios: Sequence[float],
    profile: str,
    *,
    fresh: bool = False,
) -> None:
    """Fills the tables of a folder.

    Args:
      folder: where to; made if it is not there.
      networks: which.
      methods: names in `METHODS`.
      ratios: budgets, as shares of Coop's unbudgeted peak.
      profile: the simulated device, a name in `DEVICE_BYTES`.
      fresh: whether tables that are there are thrown away first.

    Raises:
      ValueError: the folder holds tables of another device, or that cannot be read.
    """
    evaluation = Evaluation(folder, profile, methods, ratios, fresh=fresh)
    compared = [n for n in networks if n.name in batches.NETWORKS_COMPARED]
    parts: list[Callable[[tqdm[None]], None]] = [
        evaluation.densities,
        *(functools.partial(evaluation.network, n) for n in networks if n.name != _LONGEST),
        *(functools.partial(evaluation.batches, n) for n in compared),
        *(functools.partial(evaluation.network, n) for n in networks if n.name == _LONGEST),
    ]
    with tqdm(total=len(parts), unit="part") as bar:
        for part in parts:
            part(bar)
            bar.update()


def _check_about(folder: Path, profile: str, size: str, fresh: bool) -> None:
    """Writes about.json, or checks that what is there is of the same device."""
    path = folder / "about.json"
    if fresh:
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    about = {
        "profile": profile,
        "size": size,
        "coop_jax": coop_jax.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))
        for name in ("profile", "size"):
            if there.get(name) != about[name]:
                raise ValueError(
                    f"{folder} holds tables of {name} {there.get(name)!r}, not {about[name]!r}:"
                    " give another --out, or --fresh"
                )
        return
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
