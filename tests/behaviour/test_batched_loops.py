"""Programs taken apart: loops that `vmap` batched, and what nothing needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits

ROWS = np.random.default_rng(0).random((6, 2, 2000)).astype(np.float32)
ROWS *= np.arange(6, dtype=np.float32)[:, None, None] / 10
BYTES = ROWS.nbytes


def grow(x: Any, key: Any) -> Any:
    """Runs a number of times that depends on the element; one carried value never changes."""

    def body(c: Any) -> Any:
        x, fixed, count, key = c
        key, used = jax.random.split(key)
        return jnp.sin(x) + x * 1.5 + jax.random.uniform(used), fixed, count + 1, key

    return jax.lax.while_loop(lambda c: jnp.sum(c[0]) < 9000, body, (x, x[0] * 2, 0, key))


@pytest.mark.parametrize("front", [coop_jax.run, coop_jax.remat_eager])
@pytest.mark.parametrize("evict_always", [False, True])
def test_elements_end_by_themselves(
    front: Callable[..., Callable[..., Any]], evict_always: bool
) -> None:
    def batched(x: Any) -> Any:
        keys = jax.random.split(jax.random.key(0), len(x))
        x, fixed, counts, keys = jax.vmap(grow)(jnp.cos(x) * x, keys)
        return x, fixed, counts, jax.random.key_data(keys)

    expected = batched(jnp.asarray(ROWS))
    assert len(np.unique(expected[2])) > 2
    reference = jax.tree.map(np.array, front(batched)(ROWS))
    for a, b in zip(reference, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    policy = coop_jax.Policy("coop", evict_always=evict_always)
    tight = front(batched, budget=8 * BYTES, policy=policy)
    assert_same_bits(jax.tree.map(np.array, tight(ROWS)), reference)
    stats = tight.runtime.stats()  # type: ignore[attr-defined]
    assert stats.peak_bytes <= 8 * BYTES
    assert not evict_always or stats.rematerialisations > 10


def test_what_a_jitted_function_does_not_need_is_not_computed() -> None:
    calls: list[int] = []

    def count(x: Any) -> Any:
        calls.append(1)
        return np.asarray(x)

    @jax.jit
    def product(x: Any) -> Any:
        unused = jax.pure_callback(count, x, x)
        unused = unused + 1
        return x @ x.T

    found = coop_jax.remat_eager(lambda x: product(x) + 1)(ROWS[0])
    np.testing.assert_allclose(found, ROWS[0] @ ROWS[0].T + 1, rtol=1e-5)
    assert not calls
