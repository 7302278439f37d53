"""Recordings: what was recorded agrees with the statistics of the call to the byte."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.report.timeline_data import Ending, Kind
from tests.report import browser
from tests.report.steps import LAYERS, WIDTH, step
from tests.report.test_timeline import assert_is_sound

pytestmark = pytest.mark.unless_forced("then what was just read for the last time is evicted, too")

X = jnp.ones((512, WIDTH))


def first_weights() -> jax.Array:
    return 0.1 * jnp.ones((LAYERS, WIDTH, WIDTH))


def made(front_end: str, budget: str | None) -> Any:
    if front_end == "run":
        return coop_jax.run(step, budget, donate_argnums=(0,), fusion=False)
    return coop_jax.remat_eager(step, budget=budget)


def recorded(function: Any, calls: int, *, before: int = 1) -> coop_jax.Recording:
    """Of some steps of training, after others."""
    weights = first_weights()
    for _ in range(before):
        weights, _ = function(weights, X)
    if not before:
        function(jnp.copy(weights), X[:1])  # there is no runtime before
    with coop_jax.record_timeline(function.runtime) as recording:
        for _ in range(calls):
            weights, _ = function(weights, X)
    return recording


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
@pytest.mark.parametrize("budget", ["1280KiB", "2MiB", None])
def test_it_agrees_with_the_statistics_to_the_byte(front_end: str, budget: str | None) -> None:
    function = made(front_end, budget)
    recording = recorded(function, 3)
    assert len(recording) == 3
    found, stats = recording.timeline(-1), function.runtime.stats().last_call
    assert_is_sound(found)
    assert found.moments == stats.operations + stats.rematerialisations
    assert found.evictions == stats.evictions
    assert found.recomputations == stats.rematerialisations
    assert found.budget_bytes == stats.budget_bytes
    if budget is not None or front_end == "run":
        assert found.peak_bytes == stats.peak_bytes
    else:  # the statistics count the room that a budget would need beside the pool
        assert found.peak_bytes <= stats.peak_bytes
    if budget == "1280KiB":
        assert found.recomputations > 0


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_lines_types_and_passes_are_known(front_end: str) -> None:
    found = recorded(made(front_end, "1280KiB"), 1).timeline()
    rows = found.residences
    lines = found.live_at(found.peak_moment)
    assert "steps.py" in lines[0].source
    assert {k for k in Kind if k in rows.kind} >= {Kind.INPUT, Kind.FORWARD, Kind.RESULT}
    inputs = {found.labels[n].shape for n in rows.label[rows.kind == Kind.INPUT].tolist()}
    assert (512, WIDTH) in inputs
    named = [found.labels[n] for n in rows.label[rows.kind == Kind.FORWARD].tolist()]
    assert all(label.operation and label.dtype for label in named)
    again = np.flatnonzero(rows.recomputation > 0)
    assert len(again)
    for position in again.tolist():
        same = np.flatnonzero(rows.storage == rows.storage[position])
        assert len(set(rows.label[same].tolist())) == 1
        assert rows.ending[same[0]] != Ending.KEPT


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_seconds_are_measured_and_never_go_back(front_end: str) -> None:
    # The first calls are carried out in Python, in part or on the whole.
    for before in (0, 1, 4):
        recording = recorded(made(front_end, "1280KiB"), 2, before=before)
        for call in (0, 1, None):
            found = recording.timeline(call)
            assert found.seconds_are_measured
            assert found.launches.seconds is not None
            assert len(found.launches.seconds) == found.moments + 1
            assert (np.diff(found.launches.seconds) >= 0).all()
            assert found.launches.seconds[0] >= 0
            assert found.launches.seconds[-1] > 0


def test_calls_follow_each_other() -> None:
    recording = recorded(made("run", "1280KiB"), 3)
    parts, found = [recording.timeline(n) for n in range(3)], recording.timeline()
    assert_is_sound(found)
    assert found.moments == sum(part.moments for part in parts)
    assert found.evictions == sum(part.evictions for part in parts)
    assert found.live_bytes.tolist() == [n for part in parts for n in part.live_bytes.tolist()]
    assert "3 recorded calls" in found.title


def test_a_function_that_branches_on_values_is_recorded() -> None:
    def halved(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda h: h.sum() > 1, lambda h: jnp.sin(h) * 0.5, x)

    function = coop_jax.run(halved, "1MiB")
    function(X)
    with coop_jax.record_timeline(function.runtime) as recording:
        function(X)
    found, stats = recording.timeline(), function.runtime.stats().last_call
    assert_is_sound(found)
    assert stats is not None
    assert found.moments == stats.operations
    assert found.peak_bytes == stats.peak_bytes


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_results_are_the_same_while_recording(front_end: str) -> None:
    function = made(front_end, "1280KiB")
    plain = function(first_weights(), X)
    with coop_jax.record_timeline(function.runtime):
        again = function(first_weights(), X)
    for one, other in zip(plain, again, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def test_nothing_is_recorded_before_and_afterwards() -> None:
    function = made("run", None)
    recording = recorded(function, 1)
    function(first_weights(), X)
    assert len(recording) == 1
    assert function.runtime.recording is None
    with pytest.raises(IndexError, match="1 were recorded"):
        recording.timeline(1)
    assert recording.timeline(-1).moments == recording.timeline(0).moments


def test_a_call_that_fails_leaves_no_plan_behind() -> None:
    function = made("remat_eager", "1280KiB")
    function(first_weights(), X)
    runtime = function.runtime
    with coop_jax.record_timeline(runtime) as recording:
        with pytest.raises(coop_jax.BudgetExceededError):
            function(first_weights(), jnp.ones((512 * 8, WIDTH)))
        function(first_weights(), X)
    found = recording.timeline(-1)
    assert_is_sound(found)
    assert found.peak_bytes == runtime.stats().last_call.peak_bytes
    assert_is_sound(recording.timeline(0))  # up to the failure


def test_what_makes_no_sense_is_refused() -> None:
    runtime = coop_jax.Runtime("1MiB")
    with pytest.raises(TypeError, match="Runtime"), coop_jax.record_timeline(3):  # type: ignore[arg-type]
        pass
    with coop_jax.record_timeline(runtime) as recording:
        with pytest.raises(ValueError, match="already"), coop_jax.record_timeline(runtime):
            pass
        assert runtime.recording is not None
    with pytest.raises(ValueError, match="no call was recorded"):
        recording.timeline()


def test_what_is_reserved_counts_once_on_the_page(tmp_path: pathlib.Path) -> None:
    if browser.why_missing():
        pytest.skip(browser.why_missing())
    found = recorded(made("remat_eager", "1280KiB"), 2).timeline()
    found.save(tmp_path / "step.html")
    with browser.browser() as started:
        shown = browser.opened(started, tmp_path / "step.html")
        assert shown.evaluate("memoryTimeline.panels[0].model.peakBytes") == found.peak_bytes
        assert shown.complaints == []
