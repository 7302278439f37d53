"""`coop_jax.jit` on a GPU: within the budget as XLA counts, results of `jax.jit`, exact keys.

Networks are wide enough that activations outweigh what cuBLAS has to work in. Matrix products are
asked for in full precision, so that float32 results can be compared closely; what a process really
takes is measured by `compiled_plans`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax

LAYERS, WIDTH, ROWS = 12, 512, 16384
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}  # of the largest value

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "gpu", reason=f"no GPU: JAX runs on {jax.default_backend()}"
)


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield


def layer(w: Any, x: Any, key: Any) -> Any:
    h = jax.nn.gelu(x @ w)
    return jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h, 0) + x


def unrolled_loss(weights: Any, x: Any, key: Any) -> Any:
    for number in range(LAYERS):
        x = layer(weights[number], x, jax.random.fold_in(key, number))
    return (x.astype(jnp.float32) ** 2).mean()


def scanned_loss(weights: Any, x: Any, key: Any) -> Any:
    def body(x: Any, of_layer: Any) -> tuple[Any, None]:
        w, number = of_layer
        return layer(w, x, jax.random.fold_in(key, number)), None

    x, _ = jax.lax.scan(body, x, (weights, jnp.arange(LAYERS)))
    return (x.astype(jnp.float32) ** 2).mean()


def arguments(dtype: str) -> tuple[Any, Any, Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    weights = WIDTH**-0.5 * jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH), dtype)
    return weights, jax.random.normal(keys[1], (ROWS, WIDTH), dtype), keys[2]


@pytest.mark.parametrize("loss", [unrolled_loss, scanned_loss])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("share", [0.75, 0.5])
def test_within_the_budget_and_as_jit(loss: Any, dtype: str, share: float) -> None:
    def step(weights: Any, x: Any, key: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(weights, x, key)
        return weights - jnp.asarray(0.1, dtype) * grads, value

    weights, x, key = arguments(dtype)
    expected = jax.jit(step)(weights, x, key)
    planned = coop_jax.jit(step, budget=share, donate_argnums=0)
    report = planned.plan(weights, x, key)
    assert report.attempts
    assert report.needed_bytes <= share * report.jit_bytes
    memory = planned.lower(weights, x, key).compile().memory_analysis()
    assert report.needed_bytes == (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    found = planned(weights, x, key)
    assert weights.is_deleted()
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype, a.devices()) == (b.shape, b.dtype, b.devices())
        wide, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(wide - right).max() <= TOLERANCES[dtype] * np.abs(right).max()


def test_keys_and_masks_are_exact() -> None:
    def noisy(weights: Any, x: Any, key: Any) -> Any:
        def loss(weights: Any) -> Any:
            return unrolled_loss(weights, x, key)

        masks = [
            jax.random.bernoulli(jax.random.fold_in(key, n), 0.9, (64,)) for n in range(LAYERS)
        ]
        return jax.grad(loss)(weights), masks, jax.random.split(key)

    args = arguments("float32")
    planned = coop_jax.jit(noisy, budget=0.6)
    assert planned.plan(*args).recomputations > 0
    _, masks, keys = planned(*args)
    _, right_masks, right_keys = jax.jit(noisy)(*args)
    assert keys.dtype == right_keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(right_keys))
    np.testing.assert_array_equal(masks, right_masks)


def test_a_budget_that_suffices_compiles_the_program_of_jit() -> None:
    args = arguments("bfloat16")
    planned = coop_jax.jit(jax.grad(unrolled_loss), budget=1.0)
    assert not planned.plan(*args).attempts
    text = jax.jit(jax.grad(unrolled_loss)).lower(*args).as_text()
    assert planned.lower(*args).as_text() == text
