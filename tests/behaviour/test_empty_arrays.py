"""Arrays without elements: read, computed with, differentiated, given and given up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax

FRONT_ENDS: list[Callable[..., Any]] = [coop_jax.run, coop_jax.remat_eager]
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)
X = np.ones(4, np.float32)

READERS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "repr": repr,
    "format": lambda x: f"{x}",
    "list": lambda x: x.tolist(),
    "iter": list,
    "numpy": lambda x: np.asarray(x).shape,
    "device_get": lambda x: jax.device_get(x).shape,
    "deepcopy": lambda x: copy.deepcopy(x).shape,
    "bool": lambda x: bool(jnp.all(x > 3)),
    "bfloat16": lambda x: str(x.astype(jnp.bfloat16)),
    "keys": lambda x: jax.random.split(jax.random.key(0), 3)[: x.size].shape,
}


@pytest.mark.parametrize("reader", READERS)
def test_what_reads_values(reader: str) -> None:
    read = READERS[reader]
    assert coop_jax.remat_eager(lambda x: read(x[x > 2]))(X) == read(X[X > 2] + jnp.ones(0))


def test_operations() -> None:
    def program(x: Any) -> Any:
        y = x[x > 2]
        return (
            jnp.concatenate([y, x]),
            y.sum() + jnp.prod(y),
            jnp.zeros((0, 4)) @ jnp.ones((4, 3)),
            jnp.ones((3, 0)) @ jnp.zeros((0, 2)),
            y.reshape(0, 5),
            jnp.sort(y),
            y.at[:].set(2.0),
        )

    for found, wanted in zip(
        coop_jax.remat_eager(program)(X), program(jnp.asarray(X)), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
        assert found.shape == wanted.shape


@front_ends
def test_gradients_and_scans(front_end: Any) -> None:
    def loss(p: Any) -> Any:
        total, ys = jax.lax.scan(lambda c, e: (c + e.sum(), e * 2), 0.0, p["a"])
        return total + (p["b"] ** 2).sum() + ys.sum()

    p = {"a": jnp.zeros((0, 3)), "b": jnp.asarray(X)}
    value, gradient = front_end(jax.value_and_grad(loss))(p)
    assert float(value) == 4
    assert gradient["a"].shape == (0, 3)
    np.testing.assert_array_equal(gradient["b"], 2 * X)


def test_donated() -> None:
    step = coop_jax.run(lambda x, y: (x + 1, y * 2), donate_argnums=(0, 1))
    state: Any = jnp.zeros((0, 3)), jnp.ones(1000)
    for _ in range(4):
        state = step(*state)
    assert state[0].shape == (0, 3)
    assert float(state[1][0]) == 16
