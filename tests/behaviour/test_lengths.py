"""Sequences of many lengths: operations are compiled once for each distinct shape, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits

WIDTH, LAYERS, ROWS = 16, 4, 8
LENGTHS = [12 + 3 * n for n in range(50)]


def _params() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(LAYERS)]


def _sequence(length: int) -> np.ndarray:
    shape = (ROWS, length, WIDTH)
    return np.random.default_rng(length).standard_normal(shape).astype(np.float32)


def _step(params: Any, x: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], loss


@pytest.mark.slow
def test_fifty_lengths_compile_per_distinct_shape_only(
    backend_compilations: Callable[[], int],
) -> None:
    unbudgeted = coop_jax.remat_eager(_step)
    unbudgeted(_params(), _sequence(LENGTHS[-1]))
    budget_bytes = int(0.65 * unbudgeted.runtime.stats().peak_bytes)
    runtime = coop_jax.Runtime(budget_bytes)
    step = coop_jax.remat_eager(_step, runtime=runtime)

    def epoch() -> tuple[Any, list[int], list[int]]:
        params, compiled, backend = _params(), [], []
        for length in LENGTHS:
            before = runtime.stats().compilations, backend_compilations()
            params, loss = step(params, _sequence(length))
            assert np.isfinite(loss)
            compiled.append(runtime.stats().compilations - before[0])
            backend.append(backend_compilations() - before[1])
        return jax.tree.map(np.array, params), compiled, backend

    first, compiled, backend = epoch()
    # The longest was seen above, without a budget; all others are new and need as much each.
    assert compiled[-1] == 0
    assert len(set(compiled[1:-1])) == 1
    # Distinct operations of the step that see the length: far fewer than it runs.
    per_length = compiled[1]
    operations = runtime.stats().operations // len(LENGTHS)
    assert 0 < per_length < 0.6 * operations
    assert max(backend[1:]) <= 2 * per_length
    for number in range(2):
        again, compiled, anew = epoch()
        assert_same_bits(again, first)
        assert compiled == [0] * len(LENGTHS)
        # Where eviction begins, JAX once traces an operation again that it knows: a few of 600.
        assert sum(anew) <= (0.02 * sum(backend) if number == 0 else 0)
    stats = runtime.stats()
    assert stats.rematerialisations > 0
    assert stats.peak_bytes <= budget_bytes
