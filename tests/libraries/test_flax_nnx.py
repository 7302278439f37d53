"""Flax NNX at half memory: split and merged state, modules as arguments, optimizer, metrics."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from training import both_front_ends, check_training

ROWS, WIDTH = 64, 24


class Net(nnx.Module):
    """Dense layers with batch statistics and dropout."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(4)])
        self.norms = nnx.List([nnx.BatchNorm(WIDTH, rngs=rngs) for _ in range(4)])
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.dropout(nnx.gelu(norm(layer(x))))
        return self.head(x)


def _batches(count: int = 3) -> list[Any]:
    random = np.random.default_rng(0)
    xs = [random.standard_normal((ROWS, WIDTH)).astype(np.float32) for _ in range(count)]
    return [(x, np.tanh(x[:, :4])) for x in xs]


def _loss(model: Net, x: jax.Array, y: jax.Array) -> jax.Array:
    return ((model(x) - y) ** 2).mean()


def _created() -> tuple[Net, nnx.Optimizer[Net], nnx.MultiMetric]:
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    return model, optimizer, metrics


@both_front_ends
def test_split_and_merged_state(front_end: str) -> None:
    """The functional form: the state is a pytree of arrays, donated and returned."""
    graph, init = nnx.split(_created())

    def step(state: Any, batch: Any) -> Any:
        model, optimizer, metrics = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(_loss)(model, *batch)
        optimizer.update(model, grads)
        metrics.update(loss=loss)
        return nnx.state((model, optimizer, metrics)), (loss, metrics.compute()["loss"])

    last, losses = check_training(front_end, step, init, _batches())
    model, optimizer, metrics = nnx.merge(graph, last)
    assert int(optimizer.step[...]) == 3
    np.testing.assert_allclose(metrics.compute()["loss"], np.mean([a for a, _ in losses]), 1e-5)
    assert all(np.abs(norm.mean[...]).max() > 0 for norm in model.norms)
    counts = {int(v[...]) for _, v in nnx.to_flat_state(nnx.state(model, nnx.RngCount))}
    assert max(counts) == 3 * 4  # dropout drew once a layer and step


@both_front_ends
def test_jitted_step_inside(front_end: str) -> None:
    """A step that is under nnx.jit already, as NNX users write it, over a merged model."""
    graph, init = nnx.split(_created()[:2])

    @nnx.jit
    def inner(model: Net, optimizer: nnx.Optimizer[Net], x: jax.Array, y: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(_loss)(model, x, y)
        optimizer.update(model, grads)
        return loss

    def step(state: Any, batch: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss = inner(model, optimizer, *batch)
        return nnx.state((model, optimizer)), loss

    check_training(front_end, step, init, _batches())


@both_front_ends
def test_module_as_an_argument(front_end: str) -> None:
    """Modules are pytrees: given to the step, changed inside, returned."""
    model, optimizer, _ = _created()

    def step(state: Any, batch: Any) -> Any:
        model, optimizer = state
        loss, grads = nnx.value_and_grad(_loss)(model, *batch)
        optimizer.update(model, grads)
        return (model, optimizer), loss

    check_training(front_end, step, (model, optimizer), _batches())
