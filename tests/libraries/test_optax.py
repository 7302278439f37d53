"""Optax at half memory: chains, schedules, accumulation, masks, averages, injected parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from training import both_front_ends, check_training

ROWS, WIDTH, LAYERS = 128, 16, 5
Params = dict[str, Any]


def _params() -> Params:
    random = np.random.default_rng(0)
    return {
        f"layer{k}": {
            "w": (random.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32),
            "b": np.zeros(WIDTH, np.float32),
        }
        for k in range(LAYERS)
    }


def _loss(params: Params, batch: Any) -> jax.Array:
    x, y = batch
    for k in range(LAYERS):
        layer = params[f"layer{k}"]
        x = jnp.tanh(x @ layer["w"] + layer["b"]) + jnp.sin(x)
    return ((x - y) ** 2).mean()


def _batches(count: int = 4) -> list[Any]:
    random = np.random.default_rng(0)
    xs = [random.standard_normal((ROWS, WIDTH)).astype(np.float32) for _ in range(count)]
    return [(x, np.tanh(x)) for x in xs]


def _matrices(params: Params) -> Any:
    return jax.tree.map(lambda x: x.ndim == 2, params)


OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adam": lambda: optax.adam(1e-2),
    "chain": lambda: optax.chain(
        optax.clip_by_global_norm(0.1),
        optax.add_decayed_weights(1e-3),
        optax.scale_by_adam(),
        optax.scale_by_schedule(optax.warmup_cosine_decay_schedule(0.0, 0.01, 2, 4)),
        optax.scale(-1.0),
    ),
    "multi_steps": lambda: optax.MultiSteps(  # type: ignore[return-value]
        optax.adam(1e-2), every_k_schedule=2
    ).gradient_transformation(),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 2),
    "masked": lambda: optax.masked(optax.sgd(1e-2, momentum=0.9), _matrices),
    "ema": lambda: optax.chain(optax.sgd(1e-2), optax.ema(0.9)),
    "inject": lambda: optax.inject_hyperparams(optax.adamw)(
        learning_rate=optax.linear_schedule(1e-2, 1e-3, 4)
    ),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "multi_transform": lambda: optax.multi_transform(
        {True: optax.adam(1e-2), False: optax.set_to_zero()}, _matrices
    ),
    "schedule_free": lambda: optax.contrib.schedule_free_sgd(1e-2),
}


@both_front_ends
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(front_end: str, name: str) -> None:
    optimizer = OPTIMIZERS[name]()
    params = _params()

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, grads = jax.value_and_grad(_loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    init = params, jax.jit(optimizer.init)(params)
    batches = _batches()
    if name == "apply_if_finite":
        batches[1][0][3] = np.nan  # this step is left out
    last, losses = check_training(front_end, step, init, batches)
    assert sum(map(np.isfinite, losses)) == len(batches) - (name == "apply_if_finite")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(last[0]))


@both_front_ends
def test_lookahead(front_end: str) -> None:
    optimizer = optax.lookahead(optax.sgd(1e-2), sync_period=2, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(_params())

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, grads = jax.value_and_grad(_loss)(params.fast, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    check_training(front_end, step, (params, optimizer.init(params)), _batches())
