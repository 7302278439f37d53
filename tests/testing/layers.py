"""A stack of layers, its loss and a step of SGD."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 48


def loss_fn(params: Any, x: jax.Array) -> jax.Array:
    h = x
    for w in params["layers"]:
        h = jnp.tanh(h @ w) * params["scale"]
    return (h**2).mean()


def sgd_step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


def first_params() -> Any:
    random = np.random.default_rng(0)
    layers = [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 7 for _ in range(4)]
    return {"layers": layers, "scale": np.ones(WIDTH * 8, np.float32)[:WIDTH] * 1.1}


def data(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((256, WIDTH)).astype(np.float32)
