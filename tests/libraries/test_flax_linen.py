"""Flax Linen at half memory: batch statistics, dropout, scans over layers and time, nn.remat."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax.training import train_state
from training import both_front_ends, check_training

ROWS, WIDTH = 128, 32


def _batches(count: int = 3, shape: tuple[int, ...] = (ROWS, WIDTH)) -> list[Any]:
    random = np.random.default_rng(0)
    xs = [random.standard_normal(shape).astype(np.float32) for _ in range(count)]
    return [(x, np.tanh(x.reshape(shape[0], -1)[:, :4])) for x in xs]


class TrainState(train_state.TrainState):
    batch_stats: Any
    key: jax.Array


class Normalised(nn.Module):
    """Convolutions with batch statistics and dropout."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        for _ in range(3):
            x = nn.Conv(8, (3, 3), use_bias=False)(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = nn.relu(x)
            x = nn.Dropout(0.3, deterministic=not train)(x)
        return nn.Dense(4)(x.reshape(x.shape[0], -1))


@both_front_ends
def test_batch_statistics_dropout_and_train_state(front_end: str) -> None:
    model = Normalised()
    batches = _batches(shape=(32, 8, 8, 2))
    variables = jax.jit(lambda k, x: model.init(k, x, train=False))(
        jax.random.key(0), batches[0][0]
    )
    state = TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.adam(1e-2),
        batch_stats=variables["batch_stats"],
        key=jax.random.key(1),
    )

    def step(state: TrainState, batch: Any) -> Any:
        x, y = batch
        dropout = jax.random.fold_in(state.key, state.step)

        def loss_fn(params: Any) -> Any:
            out, updates = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                x,
                train=True,
                rngs={"dropout": dropout},
                mutable=["batch_stats"],
            )
            return ((out - y) ** 2).mean(), updates

        (loss, updates), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"])
        return state, loss

    last, losses = check_training(front_end, step, state, batches)
    assert int(last.step) == 3
    means = [v for k, v in _named(last.batch_stats) if "mean" in k]
    assert len(means) == 3
    assert all(np.abs(m).max() > 0 for m in means)
    assert np.isfinite(losses).all()


def _named(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(k), v) for k, v in jax.tree_util.tree_leaves_with_path(tree)]


class Block(nn.Module):
    """Pre-norm attention and feed-forward part, with dropout."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=False)(y)
        x = x + y
        y = nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=False)(y), None


class Scanned(nn.Module):
    """Four blocks by nn.scan, each under nn.remat if wanted."""

    remat: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=4,
        )
        x, _ = layers()(x, None)
        return nn.Dense(4)(x.mean(axis=1))


def _sgd_step(model: nn.Module) -> Any:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        x, y = batch
        key, dropout = jax.random.split(key)

        def loss_fn(params: Any) -> jax.Array:
            out = model.apply(params, x, rngs={"dropout": dropout})
            return ((out - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return (jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), key), loss

    return step


def _init(model: nn.Module, x: Any, key: jax.Array) -> Any:
    return jax.jit(model.init)({"params": key, "dropout": key}, x), key


@both_front_ends
def test_scan_over_layers(front_end: str) -> None:
    model, batches = Scanned(remat=False), _batches(shape=(8, 16, WIDTH))
    init = _init(model, batches[0][0], jax.random.key(0))
    check_training(front_end, _sgd_step(model), init, batches)


@pytest.mark.slow
@both_front_ends
def test_remat_of_scanned_layers(front_end: str) -> None:
    model, batches = Scanned(remat=True), _batches(shape=(8, 16, WIDTH))
    init = _init(model, batches[0][0], jax.random.PRNGKey(0))
    check_training(front_end, _sgd_step(model), init, batches)


class Recurrent(nn.Module):
    """An LSTM over time by nn.RNN, a GRU over time by nn.scan."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.RNN(nn.OptimizedLSTMCell(WIDTH))(x)
        scanned = nn.scan(
            nn.GRUCell,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        cell = scanned(WIDTH)
        carry = nn.GRUCell(WIDTH, parent=None).initialize_carry(jax.random.key(0), x[:, 0].shape)
        _, x = cell(carry, x)
        return nn.Dense(4)(x[:, -1])


@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
@both_front_ends
def test_recurrent_over_time(front_end: str) -> None:
    model, batches = Recurrent(), _batches(shape=(16, 12, WIDTH))
    init = _init(model, batches[0][0], jax.random.key(0))
    check_training(front_end, _sgd_step(model), init, batches)
