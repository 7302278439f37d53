"""The evaluation's tables hold what coop_jax simulates, and are picked up again."""

from __future__ import annotations

import csv
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tqdm import tqdm

import coop_jax
from coop_jax._src.ir.cost_model import PROFILES
from examples.paper.evaluation import (
    batches,
    checkpoints,
    densities,
    methods,
    overheads,
    simulating,
    tables,
    thresholds,
)
from examples.paper.networks import NETWORKS, Network

PROFILE = "a100-80gb-fp32"
COLUMNS = {
    "overhead.csv": "network,title,method,ratio,budget_bytes,unbudgeted_peak_bytes,feasible,"
    "peak_bytes,overhead,compute_seconds,recompute_seconds,repeated_seconds,operations,evictions,"
    "rematerialisations,fragmentation,max_fragmentation,searches,mean_search_seconds,p99_search_seconds,"
    "max_search_seconds",
    "nearby.csv": "network,title,method,ratio,budget_bytes,overhead",
    "static.csv": "network,title,remat,peak_bytes,ratio,overhead",
    "budgets.csv": "network,title,method,cutoff_bytes,min_bytes,unbudgeted_peak_bytes",
}
UNET = NETWORKS["unet"]


@pytest.fixture(scope="module")
def unet() -> coop_jax.TracedProgram:
    return simulating.traced(UNET, "small")


def evaluate(folder: Path, network: Network, ratios: tuple[float, ...], **settings: Any) -> None:
    evaluation = simulating.Evaluation(
        folder, PROFILE, ("coop", "dtr"), ratios, size="small", **settings
    )
    with tqdm(disable=True) as bar:
        evaluation.network(network, bar)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("results")
    evaluate(made, UNET, (0.8, 0.5))
    return made


def test_the_columns_are_those_that_the_report_reads(folder: Path) -> None:
    for name, columns in COLUMNS.items():
        assert (folder / name).read_text(encoding="utf-8").splitlines()[0] == columns
        assert rows(folder / name)
    assert len(rows(folder / "overhead.csv")) == 2 * 2
    assert [row["remat"] for row in rows(folder / "static.csv")] == ["per-layer", "sqrt"]


def repeated(found: coop_jax.Simulation, program: coop_jax.TracedProgram) -> float:
    """Seconds of runs of operations that had been recomputed before."""
    seconds, seen, total = program.cost_seconds(PROFILES[PROFILE]), set(), 0.0
    for action in found.actions:
        if isinstance(action, coop_jax.Run) and action.recompute:
            total += seconds[action.operation] if action.operation in seen else 0.0
            seen.add(action.operation)
    return total


def test_numbers_are_those_of_simulate(folder: Path, unet: coop_jax.TracedProgram) -> None:
    peak = coop_jax.simulate(unet, device_profile=PROFILE).unbudgeted_peak_bytes
    for row in tables.Table(folder / "overhead.csv", tables.Overhead).rows:
        assert row.unbudgeted_peak_bytes == peak
        assert row.budget_bytes == int(peak * row.ratio)
        found = coop_jax.simulate(
            unet,
            budget=row.budget_bytes,
            policy=methods.METHODS[row.method],
            device_profile=PROFILE,
            alternatives=False,
        )
        assert row.feasible
        assert found.feasible
        for field in ("overhead", "evictions", "fragmentation", "peak_bytes", "operations"):
            assert getattr(row, field) == getattr(found, field)
        assert row.repeated_seconds == pytest.approx(repeated(found, unet))
        assert row.repeated_seconds < row.recompute_seconds
        assert row.evictions > 0
        assert row.p99_search_seconds <= row.max_search_seconds


def test_nearby_budgets_lie_around_a_ratio(folder: Path, unet: coop_jax.TracedProgram) -> None:
    found = tables.Table(folder / "nearby.csv", tables.Nearby).find(method="coop")
    assert len(found) == 2 * 9
    at_half = [row for row in found if row.ratio == 0.5]
    peak = coop_jax.simulate(unet, device_profile=PROFILE).unbudgeted_peak_bytes
    assert at_half[4].budget_bytes == int(peak * 0.5)
    assert at_half[0].budget_bytes == int(peak * 0.5 * 0.99)
    budgets = [row.budget_bytes for row in at_half]
    simulated = overheads.simulations(unet, "coop", budgets, PROFILE)
    assert [row.overhead for row in at_half] == [
        one.overhead if one.feasible else float("inf") for one in simulated
    ]


def test_the_thresholds_are_where_things_change(folder: Path, unet: coop_jax.TracedProgram) -> None:
    for row in tables.Table(folder / "budgets.csv", tables.Budgets).rows:
        step = int(row.unbudgeted_peak_bytes * thresholds.RESOLUTION)

        def at(budget: int, method: str = row.method) -> coop_jax.Simulation:
            return overheads.simulations(unet, method, [budget], PROFILE)[0]

        assert at(row.min_bytes).feasible
        assert not at(row.min_bytes - 2 * step).feasible
        assert at(row.cutoff_bytes).evictions > 0
        assert at(row.cutoff_bytes + 2 * step).evictions == 0


def test_static_checkpoints_take_less_memory_and_more_time(folder: Path) -> None:
    for row in tables.Table(folder / "static.csv", tables.Static).rows:
        assert 0 < row.ratio < 1
        assert 0 < row.overhead < 1


def test_a_second_run_computes_only_what_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = (tmp_path / "overhead.csv").read_text(encoding="utf-8")
    traces = []
    original = simulating.traced

    def counting(*args: Any) -> coop_jax.TracedProgram:
        traces.append(args)
        return original(*args)

    monkeypatch.setattr(simulating, "traced", counting)
    evaluate(tmp_path, UNET, (0.8, 0.5))
    assert not traces
    assert (tmp_path / "overhead.csv").read_text(encoding="utf-8") == before
    evaluate(tmp_path, UNET, (0.8, 0.65, 0.5))
    assert len(traces) == 1
    after = (tmp_path / "overhead.csv").read_text(encoding="utf-8")
    assert after.startswith(before)
    assert [row["ratio"] for row in rows(tmp_path / "overhead.csv")[4:]] == ["0.65", "0.65"]
    evaluate(tmp_path, UNET, (0.5,), fresh=True)
    assert [row["ratio"] for row in rows(tmp_path / "overhead.csv")] == ["0.5", "0.5"]


def test_tables_of_another_device_are_not_mixed_in(folder: Path) -> None:
    with pytest.raises(ValueError, match="'a100-80gb-fp32', not 'h200'"):
        simulating.Evaluation(folder, "h200", ("coop",), (0.5,), size="small")


def test_the_network_for_the_latency_figure_is_in_no_other_table(tmp_path: Path) -> None:
    latency_only = dataclasses.replace(UNET, name=methods.LATENCY_ONLY[0])
    evaluate(tmp_path, latency_only, (0.6,))
    assert [row["method"] for row in rows(tmp_path / "overhead.csv")] == ["coop", "dtr"]
    assert not (tmp_path / "budgets.csv").exists()
    assert not (tmp_path / "static.csv").exists()


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "static.csv").write_text("network,overhead\nunet,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="is no table of network, title, remat"):
        tables.Table(tmp_path / "static.csv", tables.Static)


def test_rows_read_are_the_rows_written(tmp_path: Path) -> None:
    table = tables.Table(tmp_path / "batch.csv", tables.Batch)
    row = tables.Batch("a", "A, with a comma", "none", 5, 7)
    table.add([row])
    assert tables.Table(tmp_path / "batch.csv", tables.Batch).rows == [row]
    assert table.find(network="a", batch=7) == [row]
    assert not table.find(batch=8)


def test_a_checkpointed_program_is_priced_against_the_plain_one(
    unet: coop_jax.TracedProgram,
) -> None:
    plain = overheads.unbudgeted(unet, PROFILE)
    row = checkpoints.checkpointed(UNET, "none", unet, PROFILE, plain)
    assert (row.ratio, row.overhead) == (1, 0)


@pytest.mark.parametrize("limit", [-1, 0, 1, 5, 6, 40, 1000])
@pytest.mark.parametrize("start", [0, 1, 6, 39, 100])
def test_the_search_finds_the_last_that_fits(limit: int, start: int) -> None:
    tried: list[int] = []

    def fits(index: int) -> bool:
        assert index >= 0
        tried.append(index)
        return index <= limit

    assert batches.largest(fits, start) == limit
    assert len(tried) == len(set(tried))


def test_batches_grow_by_about_a_tenth() -> None:
    sizes = [batches.batch_at(index) for index in range(60)]
    assert sizes[:10] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert sizes[14:18] == [15, 16, 18, 20]
    assert all(a < b <= a * 9 / 8 for a, b in itertools.pairwise(sizes[8:]))
    for size in range(1, 500):
        index = batches.index_of(size)
        assert batches.batch_at(index) <= size < batches.batch_at(index + 1)


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    def trace(remat: str, batch: int) -> coop_jax.TracedProgram:
        return simulating.traced(UNET, "small", remat, batch)

    budget = overheads.unbudgeted(trace("none", 3), PROFILE).unbudgeted_peak_bytes
    plain = batches.largest_batch(UNET, trace, "none", budget, PROFILE, 4)
    assert (plain.batch, plain.budget_bytes) == (3, budget)
    coop = batches.largest_batch(UNET, trace, "coop", budget, PROFILE, 3)
    assert coop.batch > 3
    following = batches.batch_at(batches.index_of(coop.batch) + 1)
    for batch, feasible in ((coop.batch, True), (following, False)):
        program = trace("none", batch)
        assert overheads.simulations(program, "coop", [budget], PROFILE)[0].feasible == feasible


def test_densities_are_seconds_for_bytes_made() -> None:
    relu = densities.Operation("relu", jax.nn.relu, lambda batch: ((batch, 1024, 64),), 128, 1)
    row = densities.density(relu, PROFILE, runs=2)
    assert row.kind == "cheap"
    assert row.measured_us_per_mb > 0
    made = 4 * 128 * 1024 * 64
    device = coop_jax.DeviceProfile(PROFILE, 1.95e13, 2.039e12, 3e-6)
    wanted = device.launch_seconds + 2 * made / device.bytes_per_second
    assert row.profile_us_per_mb == pytest.approx(wanted / made * 1e12)
    square = densities.Operation("matmul", jnp.matmul, lambda n: ((n * 256,) * 2,) * 2, 16, 1)
    assert densities.density(square, PROFILE, runs=1).kind == "expensive"
