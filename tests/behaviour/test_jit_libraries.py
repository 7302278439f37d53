"""`coop_jax.jit` of functions under another library's `jit`: they do all that it promises."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import coop_jax

ROWS, WIDTH = 4096, 32


def batch() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (ROWS, WIDTH))


class Deep(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(6)])
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


def test_a_module_that_changes_in_place_does_so() -> None:
    def step(model: Deep, x: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads))
        return loss

    planned = coop_jax.jit(nnx.jit(step), budget=0.75)
    model, other = Deep(), Deep()
    assert planned.plan(model, batch()).attempts
    assert model.calls[...] == 0
    plain = nnx.jit(step)
    for _ in range(3):
        np.testing.assert_allclose(planned(model, batch()), plain(other, batch()), rtol=1e-5)
    assert model.calls[...] == 3
    for a, b in zip(
        *(jax.tree.leaves(nnx.state(m, nnx.Param)) for m in (model, other)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_leaves_that_are_no_arrays_are_static_as_in_filter_jit() -> None:
    model = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 6, activation=jnp.tanh, key=jax.random.key(0))

    @eqx.filter_jit
    def grads(model: eqx.nn.MLP, x: jax.Array) -> eqx.nn.MLP:
        return eqx.filter_grad(lambda m: (jax.vmap(m)(x) ** 2).mean())(model)

    planned = coop_jax.jit(grads, budget=0.85)
    assert planned.plan(model, batch()).attempts
    found, expected = planned(model, batch()), grads(model, batch())
    arrays = (jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in (found, expected))
    for a, b in zip(*arrays, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert planned.min_budget(model, batch()) <= planned.plan(model, batch()).jit_bytes
