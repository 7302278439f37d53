"""Orbax saves and restores arrays that live in the pool, also while training goes on."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from training import both_front_ends, make, to_numpy

from tests.testing.comparison import assert_same_bits

LAYERS, WIDTH, ROWS = 6, 64, 512
# Orbax tells of its own deprecations and of threads it leaves.
pytestmark = pytest.mark.filterwarnings("ignore")


def _params() -> dict[str, Any]:
    random = np.random.default_rng(0)
    weights = [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8 for _ in range(LAYERS)]
    return {"layers": weights, "half": np.ones((WIDTH, WIDTH), jnp.bfloat16), "step": np.int32(0)}


def _step(params: Any, x: jax.Array) -> Any:
    def loss_fn(layers: Any) -> jax.Array:
        h = x
        for w in layers:
            h = jnp.tanh(h @ w) + jnp.sin(h)
        return (h**2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params["layers"])
    layers = [p - 0.1 * g for p, g in zip(params["layers"], grads, strict=True)]
    return {"layers": layers, "half": params["half"] * 0.5, "step": params["step"] + 1}, loss


def _x(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((ROWS, WIDTH)).astype(np.float32)


def _peak_bytes(front_end: str) -> int:
    unbudgeted = make(front_end, _step, None, donate=True)
    unbudgeted(_params(), _x(0))
    return int(unbudgeted.runtime.stats().peak_bytes)


@both_front_ends
def test_training_goes_on_from_a_restored_checkpoint(
    front_end: str, tmp_path: pathlib.Path
) -> None:
    budget_bytes = int(_peak_bytes(front_end) * 0.6)
    step = make(front_end, _step, budget_bytes, donate=True)
    params = _params()
    for n in range(2):
        params, _ = step(params, _x(n))
    pool = step.runtime.memory()
    assert all(pool.offset_of(x) >= 0 for x in params["layers"])
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(tmp_path / "state", params)
    checkpointer.wait_until_finished()
    saved = to_numpy(params)
    for n in range(2, 4):
        params, _ = step(params, _x(n))
    expected = to_numpy(params)
    assert step.runtime.stats().rematerialisations > 0

    template = jax.tree.map(ocp.utils.to_shape_dtype_struct, saved)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), template
    )
    restored = checkpointer.restore(tmp_path / "state", template)
    assert_same_bits(to_numpy(restored), saved)
    again = make(front_end, _step, budget_bytes, donate=True)
    for runs in (step, again):  # in the pool that made them, and in another
        params = jax.tree.map(jnp.array, restored)
        for n in range(2, 4):
            params, _ = runs(params, _x(n))
        assert_same_bits(to_numpy(params), expected)
    checkpointer.close()
