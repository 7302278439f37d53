"""Timelines: they agree with the statistics to the byte, and rectangles never overlap."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.report.program_timeline import BufferRow
from coop_jax._src.report.timeline_data import Ending, Kind, Label
from tests.benchmarks.large_timelines import large_timeline
from tests.report.steps import LAYERS, SHAPES, simulated, step, timeline

BUDGETS = [None, 0.8, 0.6, 0.05]


def assert_is_sound(found: coop_jax.Timeline) -> None:
    """No two residences share an address at a moment; all lie within the pool."""
    rows = found.residences
    assert (np.diff(rows.begin) >= 0).all()
    assert ((rows.begin >= 0) & (rows.begin < rows.end) & (rows.end <= found.moments)).all()
    pooled = np.flatnonzero(rows.address >= 0)
    assert (rows.address[pooled] + rows.nbytes[pooled] <= found.pool_bytes).all()
    for moment in range(found.moments):
        there = pooled[(rows.begin[pooled] <= moment) & (rows.end[pooled] > moment)]
        there = there[np.argsort(rows.address[there])]
        ends = rows.address[there] + rows.nbytes[there]
        assert (ends[:-1] <= rows.address[there][1:]).all(), moment


@pytest.mark.parametrize("budget", BUDGETS)
def test_it_agrees_with_the_simulation_to_the_byte(budget: float | None) -> None:
    simulation, found = simulated(budget), timeline(budget)
    stats = simulation.plan.stats
    assert found.live_bytes.max(initial=0) == stats.peak_pool_bytes
    if simulation.feasible:
        assert found.peak_bytes == simulation.peak_bytes
    assert found.evictions == simulation.evictions
    assert found.recomputations == simulation.rematerialisations
    assert found.moments == simulation.operations + simulation.rematerialisations
    assert found.budget_bytes == simulation.budget_bytes
    assert found.launches.seconds is not None
    expected = simulation.compute_seconds + simulation.recompute_seconds
    assert np.isclose(found.launches.seconds[-1], expected)


@pytest.mark.parametrize("policy", ["lookahead", "coop", "dtr", "dte"])
@pytest.mark.parametrize("fusion", [False, True])
def test_it_counts_as_each_policy_does(policy: str, fusion: bool) -> None:
    traced = coop_jax.trace_program(step, *SHAPES, donate_argnums=(0,), fusion=fusion)
    for budget in (0.9, 0.7, 0.5, 0.4):
        simulation = coop_jax.simulate(traced, budget=budget, policy=policy)
        if not simulation.feasible:
            continue
        found = coop_jax.timeline(simulation)
        assert_is_sound(found)
        assert found.evictions == simulation.evictions
        assert found.recomputations == simulation.rematerialisations
        # Statistics count results as they are placed, before room for the next one is made.
        assert found.peak_bytes <= simulation.peak_bytes


@pytest.mark.parametrize("budget", BUDGETS)
def test_rectangles_lie_in_the_pool_and_never_overlap(budget: float | None) -> None:
    assert_is_sound(timeline(budget))


def test_workspace_and_scratch_have_their_blocks() -> None:
    def two(x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.tanh(x) @ x).sum()

    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    large = 1 << 20
    count = len(coop_jax.trace_program(two, x).program.operations)
    simulation = coop_jax.simulate(two, x, budget="4MiB", workspace=[large] + [0] * (count - 1))
    found = coop_jax.timeline(simulation)
    assert_is_sound(found)
    assert found.peak_bytes == simulation.peak_bytes


def test_the_address_space_of_a_plan_without_a_budget_is_folded() -> None:
    found = timeline(None)
    assert found.budget_bytes is None
    assert found.pool_bytes < 2 * simulated(None).peak_bytes


def test_residences_of_a_storage_are_numbered_in_order() -> None:
    rows = timeline().residences
    again = np.flatnonzero(rows.recomputation > 0)
    assert len(again) > 0
    for position in again.tolist():
        before = np.flatnonzero(
            (rows.storage == rows.storage[position])
            & (rows.recomputation == rows.recomputation[position] - 1)
        )
        assert len(before) == 1
        assert rows.ending[before[0]] != Ending.KEPT
        assert rows.end[before[0]] <= rows.begin[position]


def test_kinds_tell_arguments_passes_and_results_apart() -> None:
    found = timeline()
    rows = found.residences
    by_kind = {Kind(k): found.labels[rows.label[p]] for p, k in enumerate(rows.kind.tolist())}
    assert by_kind[Kind.STATE].shape == (LAYERS, 64, 64)
    assert by_kind[Kind.INPUT].shape == (512, 64)
    assert "jvp" in by_kind[Kind.FORWARD].path
    assert "transpose(" in by_kind[Kind.BACKWARD].path
    assert Kind.RESULT in by_kind
    assert by_kind[Kind.FORWARD].source.endswith("(step.<locals>.loss)")


def test_what_is_live_is_listed_by_line() -> None:
    found = timeline()
    lines = found.live_at(found.peak_moment)
    live = found.live_bytes[found.peak_moment] + found.outside_bytes[found.peak_moment]
    assert sum(line.nbytes for line in lines) == live
    assert [line.nbytes for line in lines] == sorted((x.nbytes for x in lines), reverse=True)
    assert "steps.py" in lines[0].source
    sizes = found.residences.nbytes[list(lines[0].residences)]
    assert sizes.sum() == lines[0].nbytes
    assert (np.diff(sizes) <= 0).all()
    for moment in (-1, found.moments):
        with pytest.raises(IndexError, match=f"has {found.moments}"):
            found.live_at(moment)


def test_fragmentation_is_the_part_outside_the_largest_free_block() -> None:
    rows = [
        BufferRow(100, 100, 0, 1, Kind.FORWARD, Label("a")),
        BufferRow(300, 100, 1, 2, Kind.FORWARD, Label("b")),
        BufferRow(0, 400, 3, 3, Kind.FORWARD, Label("c")),
    ]
    found = coop_jax.Timeline.from_buffers(rows, moments=4, pool_bytes=400)
    # Free: [0, 100) and [200, 400); [0, 100) and [200, 300); [0, 300); nothing.
    assert np.allclose(found.fragmentation(), [1 / 3, 1 / 2, 0, 0])
    assert np.allclose(found.fragmentation([2, 0]), [0, 1 / 3])
    assert found.live_bytes.tolist() == [100, 200, 100, 400]


def test_fragmentation_of_many_moments_is_that_of_each() -> None:
    found = large_timeline(3000)
    moments = list(range(0, found.moments, 7))
    assert np.allclose(found.fragmentation()[moments], found.fragmentation(moments))
    assert 0 < found.fragmentation().max() < 1


@pytest.mark.parametrize(
    ("first", "last", "address", "message"),
    [(2, 1, 0, "moments"), (0, 4, 0, "moments"), (-1, 1, 0, "moments"), (0, 1, 1, "ends at")],
)
def test_buffers_that_make_no_sense_are_refused(
    first: int, last: int, address: int, message: str
) -> None:
    row = BufferRow(address, 64, first, last, Kind.FORWARD, Label("a"))
    with pytest.raises(ValueError, match=message):
        coop_jax.Timeline.from_buffers([row], moments=4, pool_bytes=64)


def test_only_simulations_have_timelines() -> None:
    with pytest.raises(TypeError, match="Simulation"):
        coop_jax.timeline(simulated().plan)  # type: ignore[arg-type]
    found = coop_jax.sweep(
        lambda x: jnp.tanh(x @ x), jnp.ones((8, 8)), budget=[1.0], front_end="jit"
    )
    with pytest.raises(ValueError, match="XLA places"):
        coop_jax.timeline(found[0])


def test_it_goes_through_json() -> None:
    found = timeline()
    read = json.loads(json.dumps(found.to_json()))
    assert read["residences"]["address"] == found.residences.address.tolist()
    assert read["moments"] == found.moments


@pytest.mark.parametrize("name", ["step.txt", "step", "step.json.gz"])
def test_other_endings_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"\.html, \.pickle, \.json, \.png, \.svg"):
        timeline().save(name)


def test_only_pages_show_two(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="beside="):
        timeline().save(f"{tmp_path}/step.json", beside=timeline())
    with pytest.raises(TypeError, match="path"):
        timeline().save(3)


def trained(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    return [p - 0.1 * g for p, g in zip(params, jax.grad(loss)(params), strict=True)]


@pytest.mark.parametrize("donated", [(), (0,)])
def test_a_program_that_xla_compiled(donated: tuple[int, ...]) -> None:
    args = [jnp.ones((64, 64))] * 6, jnp.ones((512, 64))
    report = coop_jax.memory(jax.jit(trained, donate_argnums=donated), *args)
    found = coop_jax.timeline(report)
    assert found.moments == report.moments
    # Allocations one above the other; what lives in them at the fullest moment is no more.
    assert report.peak_bytes - 1024 <= found.pool_bytes <= report.peak_bytes
    unused = report.by_kind.get("unused", 0)
    listed = sum(b.nbytes for b in report.buffers if b.kind != "unused")
    assert listed == report.peak_bytes - unused
    assert found.peak_bytes <= found.pool_bytes
    assert found.peak_bytes >= 0.9 * (report.peak_bytes - unused)
    kinds = {Kind(k) for k in found.residences.kind}
    assert {Kind.FORWARD, Kind.BACKWARD, Kind.STATE if donated else Kind.RESULT} <= kinds
    begin, end = found.residences.address, found.residences.address + found.residences.nbytes
    assert begin.min() >= 0
    assert end.max() <= found.pool_bytes
    forward = [line.source for line in found.live_at(int(found.live_bytes.argmax()))]
    assert any("(trained.<locals>.loss)" in source for source in forward)


def test_a_report_of_a_planned_step_and_what_is_none() -> None:
    x = jnp.ones((256, 256))
    report = coop_jax.memory(coop_jax.run(lambda x: jnp.tanh(x) @ x), x)
    found = coop_jax.timeline(report)
    assert found.peak_bytes <= report.peak_bytes
    silent = dataclasses.replace(report, moments=0, lifetimes=())
    with pytest.raises(ValueError, match=r"step\.simulate"):
        coop_jax.timeline(silent)
    with pytest.raises(TypeError, match="MemoryReport"):
        coop_jax.timeline(x)  # type: ignore[arg-type]
