"""What a step says before it runs and afterwards: simulations, the smallest budget, statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from tests.testing import models

W = jnp.eye(64) * 0.5
X = jnp.ones((256, 64))


_step = models.tanh_layers(8)


def test_simulation_of_another_budget() -> None:
    step = coop_jax.run(_step, fusion=False)  # single operations fit into half of it
    shape = jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct(X.shape, X.dtype)
    for args in (shape, (W, X)):
        full = step.simulate(*args)
        assert full.budget_bytes is None
        assert full.evictions == 0
        half = step.simulate(*args, budget=0.5)
        assert half.budget_bytes == full.unbudgeted_peak_bytes // 2
        assert half.peak_bytes <= half.budget_bytes
        assert half.feasible
        assert half.evictions > 0
    assert coop_jax.run(_step, "1MiB").simulate(W, x=X, budget="2MiB").budget_bytes == 2**21
    assert coop_jax.run(_step, "1MiB").simulate(W, X).budget_bytes == 2**20
    with pytest.raises(ValueError, match="budget"):
        step.simulate(W, X, budget=-1)


def test_smallest_budget_of_a_step() -> None:
    step = coop_jax.run(_step)
    least = step.min_budget(W, X)
    assert least < step.simulate(W, X).peak_bytes
    assert step.simulate(W, X, budget=least).feasible
    cheap = step.min_budget(W, X, max_overhead=0.1)
    assert least <= cheap
    assert step.simulate(W, X, budget=cheap).overhead <= 0.1
    for overhead in (-1, "little"):
        with pytest.raises((TypeError, ValueError), match="max_overhead"):
            step.min_budget(W, X, max_overhead=overhead)  # type: ignore[arg-type]


def test_both_have_a_line_for_people() -> None:
    step = coop_jax.run(_step, budget=0.6)
    fits, fails = step.simulate(W, X), step.simulate(W, X, budget=0.01)
    assert str(fits).startswith("fits into ")
    assert f"{fits.evictions} evictions" in str(fits)
    assert str(fails).startswith("does not fit into ")
    step(W, X)
    text = str(step.runtime.stats())
    assert text.startswith("1 calls, ")
    for line in (str(fits), str(fails), text):
        assert "\n" not in line
        assert len(line) < 250
    assert repr(fits).startswith("Simulation(feasible=True, ")  # all of it, as before
    assert repr(step.runtime.stats()).startswith("Stats(budget_bytes=")


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_statistics_of_the_last_call(front_end: str) -> None:
    runtime = coop_jax.Runtime("1MiB")
    make = getattr(coop_jax, front_end)
    step, small = make(_step, runtime=runtime), make(lambda x: x * 3 + 1, runtime=runtime)
    assert runtime.stats().calls == 0
    assert runtime.stats().last_call is None
    counts = []
    for call in (lambda: step(W, X), lambda: step(W, X), lambda: small(W)):
        before = runtime.stats()
        call()
        stats = runtime.stats()
        last = stats.last_call
        assert last is not None
        assert last.last_call is None
        assert (stats.calls, last.calls) == (before.calls + 1, 1)
        for name in ("operations", "evictions", "rematerialisations", "compilations"):
            assert getattr(stats, name) == getattr(before, name) + getattr(last, name)
        for name in ("compute_seconds", "recompute_seconds", "search_seconds"):
            grown = getattr(stats, name) - getattr(before, name)
            assert getattr(last, name) == pytest.approx(grown)
        assert last.peak_bytes <= stats.peak_bytes
        counts.append(last)
    assert counts[0].operations > counts[2].operations > 0
    assert counts[2].peak_bytes < counts[0].peak_bytes == runtime.stats().peak_bytes
