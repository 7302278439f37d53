"""Twenty steps under `coop_jax.jit`: the losses of `jax.jit` up to rounding, the same masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax

LAYERS, WIDTH, ROWS, STEPS = 6, 32, 128, 20


@pytest.fixture
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def params(dtype: Any) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), LAYERS)
    return [0.3 * jax.random.normal(k, (WIDTH, WIDTH), dtype) for k in keys]


def step(state: Any, x: Any) -> tuple[Any, Any]:
    """Dropout and Adam: returns what each mask dropped beside the loss."""
    weights, first, second, key, n = state
    key, used = jax.random.split(key)

    def loss(weights: Any) -> tuple[Any, Any]:
        h, dropped = x, []
        for k, w in zip(jax.random.split(used, LAYERS), weights, strict=True):
            mask = jax.random.bernoulli(k, 0.9, h.shape)
            dropped.append(mask)
            h = h + jnp.where(mask, jnp.tanh(h @ w) / 0.9, 0)
        return (h**2).mean(), dropped

    (value, dropped), grads = jax.value_and_grad(loss, has_aux=True)(weights)
    n = n + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, grads)

    def updated(w: Any, m: Any, v: Any) -> Any:
        return w - 1e-2 * (m / (1 - 0.9**n)) / (jnp.sqrt(v / (1 - 0.99**n)) + 1e-6)

    weights = jax.tree.map(updated, weights, first, second)
    counts = [mask.sum(0) for mask in dropped]
    return (weights, first, second, key, n), (value, counts)


def trained(fn: Any, dtype: Any) -> tuple[list[float], list[Any]]:
    weights = params(dtype)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = (weights, zeros, jax.tree.map(jnp.copy, zeros), jax.random.key(1), dtype(0))
    losses, masks = [], []
    for n in range(STEPS):
        x = jax.random.normal(jax.random.key(100 + n), (ROWS, WIDTH), dtype)
        state, (value, counts) = fn(state, x)
        losses.append(float(value))
        masks.append(jax.tree.map(np.asarray, counts))
    return losses, masks


@pytest.mark.parametrize("share", [0.85, 0.75])
def test_losses_of_twenty_steps_in_float64(wide: None, share: float) -> None:
    planned = coop_jax.jit(step, budget=share, donate_argnums=0)
    losses, masks = trained(planned, jnp.float64)
    right, other_masks = trained(jax.jit(step, donate_argnums=0), jnp.float64)
    np.testing.assert_allclose(losses, right, rtol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, masks, other_masks)
    assert losses[-1] < losses[0]


def test_losses_of_twenty_steps_in_float32() -> None:
    planned = coop_jax.jit(step, budget=0.75, donate_argnums=0)
    losses, masks = trained(planned, jnp.float32)
    right, other_masks = trained(jax.jit(step, donate_argnums=0), jnp.float32)
    np.testing.assert_allclose(losses, right, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, masks, other_masks)
