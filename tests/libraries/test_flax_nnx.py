"""Flax NNX at half memory: split and merged state, modules as arguments, optimizer, metrics."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from training import both_front_ends, check_training

import coop_jax

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


def _step(model: Net, optimizer: nnx.Optimizer[Net], x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(_loss)(model, x, y)
    optimizer.update(model, grads)
    return loss


def _contents(*modules: Any) -> list[Any]:
    leaves = jax.tree.leaves(nnx.state(modules))
    is_key = jax.dtypes.issubdtype
    return [
        np.asarray(jax.random.key_data(x) if is_key(x.dtype, jax.dtypes.prng_key) else x)
        for x in leaves
    ]


def _trained(step: Any, batches: Any) -> Any:
    model, optimizer, _ = _created()
    losses = [float(step(model, optimizer, *batch)) for batch in batches]
    return losses, _contents(model, optimizer)


@both_front_ends
def test_step_under_nnx_jit(front_end: str) -> None:
    """Modules change in place: parameters, moments, statistics, counts of random keys."""
    make, batches = getattr(coop_jax, front_end), _batches()
    expected = _trained(nnx.jit(_step), batches)
    ways: list[Any] = [
        lambda budget: make(nnx.jit(_step), budget=budget),
        lambda budget: make(nnx.jit(_step, donate_argnums=(0, 1)), budget=budget),
        lambda budget: make(functools.partial(nnx.jit(_step)), budget=budget),
    ]
    if front_end == "run":
        ways.append(lambda budget: make(nnx.jit(_step), budget=budget, donate_argnums=(0, 1)))
    for way in ways:
        full = _trained(way(None), batches)
        np.testing.assert_allclose(full[0], expected[0], rtol=1e-4)
        step = way("220KB")
        least = _trained(step, batches)
        for a, b in zip(full[1], least[1], strict=True):
            np.testing.assert_array_equal(a, b)
        assert full[0] == least[0]
        assert step.runtime.stats().peak_bytes <= 220_000


def test_signatures_and_plans_settle() -> None:
    step = coop_jax.run(nnx.jit(_step, donate_argnums=(0, 1)), budget="220KB")
    _trained(step, _batches(8))
    (signature,) = step._inner._signatures.values()  # type: ignore[attr-defined]
    assert signature.planned <= 3


def test_simulation_changes_nothing() -> None:
    step, (model, optimizer, _), batch = coop_jax.run(nnx.jit(_step)), _created(), _batches(1)[0]
    before = _contents(model, optimizer)
    simulation = step.simulate(model, optimizer, *batch)
    assert simulation.feasible
    peak = coop_jax.simulate(nnx.jit(_step), model, optimizer, *batch).peak_bytes
    assert peak == simulation.peak_bytes
    for a, b in zip(before, _contents(model, optimizer), strict=True):
        np.testing.assert_array_equal(a, b)
    step(model, optimizer, *batch)
    assert int(optimizer.step[...]) == 1


@both_front_ends
def test_static_arguments_other_modes_and_methods(front_end: str) -> None:
    make, batch = getattr(coop_jax, front_end), _batches(1)[0]

    def several(
        model: Net, optimizer: nnx.Optimizer[Net], x: jax.Array, y: jax.Array, count: int
    ) -> jax.Array:
        for _ in range(count):
            loss = _step(model, optimizer, x, y)
        return loss

    model, optimizer, _ = _created()
    make(nnx.jit(several, static_argnums=4))(model, optimizer, *batch, 3)
    assert int(optimizer.step[...]) == 3
    make(nnx.jit(_step, graph_updates=False))(model, optimizer, *batch)
    assert int(optimizer.step[...]) == 4
    partial = make(nnx.jit_partial(_step, model, optimizer, graph=False))
    partial(*batch)
    assert int(optimizer.step[...]) == 5

    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Variable(jax.numpy.zeros(()))

        @nnx.jit
        def __call__(self, x: jax.Array) -> jax.Array:
            self.count[...] += 1
            return x * self.count[...]

        budgeted = make(__call__)

    counter = Counter()
    assert float(make(counter.__call__)(2.0)) == 2
    assert float(counter.budgeted(2.0)) == 4


@both_front_ends
def test_steps_that_are_under_nothing(front_end: str) -> None:
    """Without nnx.jit around it a step is refused, and works where nothing is lost."""
    make, batch = getattr(coop_jax, front_end), _batches(1)[0]
    model, optimizer, _ = _created()
    before = np.asarray(model.head.kernel[...])
    with pytest.raises(TypeError, match=r"model, a Net, in place.*nnx\.jit"):
        make(_step)(model, optimizer, *batch)
    with pytest.raises(TypeError, match="in place"):  # statistics and counts of random keys
        make(_loss)(model, *batch)
    np.testing.assert_array_equal(model.head.kernel[...], before)

    def returned(model: Net, optimizer: nnx.Optimizer[Net], x: Any, y: Any) -> Any:
        _step(model, optimizer, x, y)
        return nnx.state((model, optimizer))

    assert make(returned)(model, optimizer, *batch)
    model.eval()
    assert make(_loss)(model, *batch) > 0
    assert make(lambda m, x, y: nnx.jit(_loss)(m, x, y))(model, *batch) > 0
    assert make(lambda m, x, y: nnx.grad(_loss)(m, x, y))(model, *batch)
