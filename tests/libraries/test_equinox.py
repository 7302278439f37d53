"""Equinox at half memory: filtered transformations, stateful batch norm, dropout keys, tree_at."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training import both_front_ends, check_training

import coop_jax

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


_OPTIMIZER = optax.adam(1e-2)


def _mse(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return ((jax.vmap(model)(x) - y) ** 2).mean()


def _step(model: Any, state: Any, x: Any, y: Any, scale: float = 1.0, name: str = "a") -> Any:
    loss, grads = eqx.filter_value_and_grad(_mse)(model, x, y)
    updates, state = _OPTIMIZER.update(grads, state)
    return eqx.apply_updates(model, updates), state, loss * scale, name


def _trained(step: Any, **named: Any) -> Any:
    model = eqx.nn.MLP(WIDTH, 4, WIDTH, 3, key=jax.random.PRNGKey(0))
    activation = model.activation
    state, losses = _OPTIMIZER.init(eqx.filter(model, eqx.is_array)), []
    for batch in _batches():
        model, state, loss, name = step(model, state, *batch, **named)
        losses.append(float(loss))
    assert model.activation is activation
    return losses, name, [np.asarray(a) for a in jax.tree.leaves(eqx.filter(model, eqx.is_array))]


@both_front_ends
def test_step_under_filter_jit(front_end: str) -> None:
    """Modules with activations are arguments and results; other leaves are static."""
    make = getattr(coop_jax, front_end)
    expected = _trained(eqx.filter_jit(_step), scale=2.0, name="b")
    for donate in ("none", "all"):
        full = _trained(make(eqx.filter_jit(_step, donate=donate)), scale=2.0, name="b")
        assert full[1] == "b"
        np.testing.assert_allclose(full[0], expected[0], rtol=1e-4)
        step = make(eqx.filter_jit(_step, donate=donate), budget="140KB")
        least = _trained(step, scale=2.0, name="b")
        assert full[:2] == least[:2]
        for a, b in zip(full[2], least[2], strict=True):
            np.testing.assert_array_equal(a, b)
        assert step.runtime.stats().peak_bytes <= 140_000


def test_static_leaves_are_part_of_the_signature() -> None:
    step = coop_jax.run(eqx.filter_jit(_step))
    for name in ("a", "b", "a"):
        assert _trained(step, name=name)[1] == name
    assert len(step._inner._signatures) == 2  # type: ignore[attr-defined]


def test_donation_is_the_wrapper_s() -> None:
    step = coop_jax.run(eqx.filter_jit(lambda x: x + 1, donate="all"))
    x = jnp.ones((64, 64))
    step(x)
    assert x.is_deleted()
    with pytest.raises(ValueError, match=r"filter_jit\(donate=\.\.\.\)"):
        coop_jax.run(eqx.filter_jit(lambda x: x + 1), donate_argnums=0)


@both_front_ends
def test_methods_bound_arguments_and_transformations(front_end: str) -> None:
    make = getattr(coop_jax, front_end)

    class Scaled(eqx.Module):
        factor: jax.Array
        name: str

        @eqx.filter_jit
        def __call__(self, x: jax.Array) -> jax.Array:
            return self.factor * x

    module, x = Scaled(jnp.full(3, 2.0), "scaled"), jnp.arange(3.0)
    call = eqx.filter_jit(lambda m, x: m.factor * x)
    for fn in (module.__call__, eqx.filter_jit(module), functools.partial(call, module)):
        np.testing.assert_array_equal(make(fn)(x), x * 2)
    grad = eqx.filter_grad(lambda m, x: make(call)(m, x).sum())(module, x)
    np.testing.assert_array_equal(grad.factor, x)


def test_simulation_of_a_wrapper() -> None:
    model, batch = eqx.nn.MLP(WIDTH, 4, WIDTH, 3, key=jax.random.PRNGKey(0)), _batches(1)[0]
    fn = eqx.filter_jit(eqx.filter_grad(_mse))
    simulation = coop_jax.run(fn).simulate(model, *batch)
    assert simulation.feasible
    assert simulation.peak_bytes == coop_jax.simulate(fn, model, *batch).peak_bytes
    assert coop_jax.min_budget(fn, model, *batch) <= simulation.peak_bytes


def test_without_a_filter_leaves_are_named() -> None:
    model = eqx.nn.MLP(WIDTH, 4, WIDTH, 3, key=jax.random.PRNGKey(0))
    with pytest.raises(TypeError, match=r"path model\.activation.[^$]*filter_jit"):
        coop_jax.run(_mse)(model, *_batches(1)[0])


def test_errors_of_values() -> None:
    step = coop_jax.run(eqx.filter_jit(lambda x: eqx.error_if(x, x > 0, "too large") * 2))
    assert float(step(jnp.float32(-1))) == -2
    with pytest.raises(RuntimeError, match="too large"):
        step(jnp.float32(1))
    assert float(step(jnp.float32(-3))) == -6
