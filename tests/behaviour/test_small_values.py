"""Values too small for the pool count against the budget from the moment they are made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits


@pytest.mark.unless_forced("sweeps budgets around the peak of a call that evicts nothing")
def test_results_outside_the_pool_have_room_before_they_are_made() -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)

    def fn(x: jax.Array) -> list[jax.Array]:
        y = jnp.sin(x)
        z = jnp.cos(y)
        rows = jnp.split(x[0, :60], 10)  # ten results of one operation, where all else is there
        return [y, z, *rows]

    free = coop_jax.remat_eager(fn)
    free(x)
    peak, completed = free.runtime.stats().peak_bytes, 0
    for budget in range(peak - 2048, peak + 1024, 64):
        runtime = coop_jax.Runtime(budget)
        try:
            coop_jax.remat_eager(fn, runtime=runtime)(x)
        except coop_jax.BudgetExceededError:
            pass
        else:
            completed += 1
        assert runtime.stats().peak_bytes <= budget
    assert completed > 0


@pytest.mark.unless_forced("sweeps budgets around the peak of a call that evicts nothing")
def test_constants_have_room_before_they_are_there() -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)

    def fn(x: jax.Array) -> list[jax.Array]:
        kept = [x := jnp.sin(x) for _ in range(3)]
        return [sum(kept, x + np.ones((64, 64), np.float32)) + np.full((64, 64), 2, np.float32)]

    free = coop_jax.remat_eager(fn)
    expected = free(x)
    peak, completed = free.runtime.stats().peak_bytes, 0
    for budget in range(peak // 2, peak + 1024, 2048):
        runtime = coop_jax.Runtime(budget)
        try:
            assert_same_bits(coop_jax.remat_eager(fn, runtime=runtime)(x), expected)
        except coop_jax.BudgetExceededError:
            pass
        else:
            completed += 1
        assert runtime.stats().peak_bytes <= budget
    assert completed > 3
