"""Equinox at half memory: filtered transformations, stateful batch norm, dropout keys, tree_at."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from training import both_front_ends, check_training

ROWS, WIDTH = 64, 24


def _batches(count: int = 3) -> list[Any]:
    random = np.random.default_rng(0)
    xs = [random.standard_normal((ROWS, WIDTH)).astype(np.float32) for _ in range(count)]
    return [(x, np.tanh(x[:, :4])) for x in xs]


class Net(eqx.Module):
    """Dense layers with batch statistics, dropout, a frozen scale and static fields."""

    layers: list[eqx.nn.Linear]
    norms: list[eqx.nn.BatchNorm]
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear
    scale: jax.Array
    name: str = eqx.field(static=True)

    def __init__(self, key: jax.Array):
        *keys, last = jax.random.split(key, 5)
        self.layers = [eqx.nn.Linear(WIDTH, WIDTH, key=k) for k in keys]
        self.norms = [eqx.nn.BatchNorm(WIDTH, "batch", mode="batch") for _ in keys]
        self.dropout = eqx.nn.Dropout(0.2)
        self.head = eqx.nn.Linear(WIDTH, 4, key=last)
        self.scale = jnp.ones(WIDTH)
        self.name = "net"

    def __call__(
        self, x: jax.Array, state: eqx.nn.State, key: jax.Array
    ) -> tuple[jax.Array, eqx.nn.State]:
        x = x * self.scale
        for layer, norm, k in zip(
            self.layers, self.norms, jax.random.split(key, len(self.layers)), strict=True
        ):
            x, state = norm(jax.nn.gelu(layer(x)), state)
            x = self.dropout(x, key=k)
        return self.head(x), state


def _loss(trained: Any, fixed: Any, state: eqx.nn.State, batch: Any, key: jax.Array) -> Any:
    model = eqx.combine(trained, fixed)
    x, y = batch
    keys = jax.random.split(key, len(x))
    each = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    out, state = each(x, state, keys)
    return ((out - y) ** 2).mean(), state


@both_front_ends
def test_partitioned_model_with_state(front_end: str) -> None:
    model, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    chosen = jax.tree.map(eqx.is_inexact_array, model)
    chosen = eqx.tree_at(lambda m: m.scale, chosen, replace=False)
    trained, fixed = eqx.partition(model, chosen)
    arrays, static = eqx.partition(fixed, eqx.is_array)
    optimizer = optax.adam(1e-2)
    init = trained, arrays, state, optimizer.init(trained), jax.random.key(1)

    def step(given: Any, batch: Any) -> Any:
        trained, arrays, state, opt_state, key = given
        key, now = jax.random.split(key)
        fixed = eqx.combine(arrays, static)
        (loss, state), grads = eqx.filter_value_and_grad(_loss, has_aux=True)(
            trained, fixed, state, batch, now
        )
        updates, opt_state = optimizer.update(grads, opt_state)
        trained = eqx.apply_updates(trained, updates)
        return (trained, arrays, state, opt_state, key), loss

    check_training(front_end, step, init, _batches())


@both_front_ends
def test_filter_jit_inside_and_tree_at(front_end: str) -> None:
    model = eqx.nn.MLP(WIDTH, 4, WIDTH, 5, key=jax.random.PRNGKey(0))
    arrays, static = eqx.partition(model, eqx.is_array)

    @eqx.filter_jit
    def loss_of(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return ((jax.vmap(model)(x) - y) ** 2).mean()

    def step(arrays: Any, batch: Any) -> Any:
        model = eqx.combine(arrays, static)
        loss, grads = eqx.filter_value_and_grad(loss_of)(model, *batch)
        model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.05 * g, grads))
        model = eqx.tree_at(lambda m: m.layers[-1].bias, model, replace_fn=lambda b: b * 0.9)
        return eqx.filter(model, eqx.is_array), loss

    check_training(front_end, step, arrays, _batches())
