"""`Runtime.report()` and `Stats.scalars()`: parts add up, and agree with the statistics."""

from __future__ import annotations

import inspect
import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax

PARAMS = {f"w{n}": jnp.eye(64) * 0.5 for n in range(8)}
X = jnp.ones((512, 64))


def _loss(params: Any, x: jax.Array) -> jax.Array:
    for n in range(8):
        x = jnp.tanh(x @ params[f"w{n}"])
    return (x**2).mean()


def _step(params: Any, x: jax.Array) -> Any:
    return jax.grad(_loss)(params, x)


def _depends(params: Any, x: jax.Array) -> Any:
    x = jax.lax.while_loop(lambda x: x.sum() < 1, lambda x: x + 1, x)
    return _step(params, x)


def _tight(make: Any) -> Any:
    """A function that ran a few times in 60% of what it needs."""
    free = make(None)
    free(PARAMS, X)
    step = make(int(0.6 * free.runtime.stats().peak_bytes))
    for _ in range(4):
        step(PARAMS, X)
    return step


FRONT_ENDS: dict[str, Any] = {
    "run": lambda budget: coop_jax.run(_step, budget),
    "run without fusion": lambda budget: coop_jax.run(_step, budget, fusion=False),
    "run, depends on values": lambda budget: coop_jax.run(_depends, budget),
    "remat_eager": lambda budget: coop_jax.remat_eager(_step, budget=budget),
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_it_adds_up(front_end: str) -> None:
    runtime = _tight(FRONT_ENDS[front_end]).runtime
    report, stats = runtime.report(), runtime.stats()
    assert report.stats == stats
    assert stats.rematerialisations > 0
    assert sum(op.count for op in report.operations) == stats.rematerialisations
    assert sum(op.count for op in report.lines) == stats.rematerialisations
    assert sum(op.seconds for op in report.lines) == pytest.approx(
        sum(op.seconds for op in report.operations)
    )
    assert report.compute_seconds == stats.compute_seconds
    assert report.recompute_seconds == stats.recompute_seconds
    parts = (
        report.compute_seconds,
        report.recompute_seconds,
        report.search_seconds,
        report.compile_seconds,
        report.dispatch_seconds,
    )
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(report.total_seconds)
    seconds = [op.seconds for op in report.operations]
    assert seconds == sorted(seconds, reverse=True)


def test_it_names_lines_and_says_what_is_not_measured() -> None:
    code, first = inspect.getsourcelines(_loss)
    line = first + next(n for n, text in enumerate(code) if "tanh" in text)
    planned = _tight(FRONT_ENDS["run"]).runtime.report()
    assert f"{__file__}:{line} " in planned.lines[0].source
    text = str(planned)
    assert f"{__file__}:{line} " in text
    for part in ("compute", "recompute", "search", "compile", "dispatch", "fragmentation"):
        assert part in text
    assert json.loads(planned.to_json())["stats"]["calls"] == 4
    eager = _tight(FRONT_ENDS["remat_eager"]).runtime.report()
    assert {op.source for op in eager.operations} == {""}
    assert any("lines" in what for what in eager.not_measured)
    assert "unknown source" in str(eager)


def test_a_runtime_that_did_nothing() -> None:
    report = coop_jax.Runtime("1MiB").report()
    assert (report.total_seconds, report.operations, report.lines) == (0.0, (), ())
    assert str(report)


def test_plans_that_are_not_kept_count() -> None:
    """The caller holds what each step returns, so each call has a plan of its own."""
    free = coop_jax.run(_step)
    free(PARAMS, X)
    budget = 2 * free.runtime.stats().peak_bytes
    step = coop_jax.run(_step, budget)

    def hold_results() -> None:
        held = []
        while True:
            held.append(step(PARAMS, X))

    with pytest.raises(coop_jax.BudgetExceededError, match="drop results of earlier calls"):
        hold_results()
    stats = step.runtime.stats()
    counts = sum(op.count for op in step.runtime.report().operations)
    assert counts == stats.rematerialisations


def test_scalars() -> None:
    runtime = coop_jax.Runtime("64MiB")
    assert not any("step/" in name for name in runtime.stats().scalars())
    step = coop_jax.run(_step, runtime=runtime)
    for _ in range(2):
        step(PARAMS, X)
    stats = runtime.stats()
    assert stats.last_call is not None
    scalars = stats.scalars()
    assert all(type(name) is str and type(value) is float for name, value in scalars.items())
    assert scalars["coop_jax/total/peak_bytes"] == stats.peak_bytes
    assert scalars["coop_jax/total/calls"] == 2
    assert scalars["coop_jax/step/peak_bytes"] == stats.last_call.peak_bytes
    assert scalars["coop_jax/step/compute_seconds"] == stats.last_call.compute_seconds
    assert "coop_jax/step/calls" not in scalars
    assert all(name.startswith("memory_") for name in stats.scalars(prefix="memory_"))
    assert "coop_jax/total/budget_bytes" not in coop_jax.Runtime(None).stats().scalars()
