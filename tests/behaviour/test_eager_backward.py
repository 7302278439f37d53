"""Residuals go right after their last use in the backward pass, where nobody keeps them."""

from __future__ import annotations

import gc
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.testing.comparison import assert_same_bits
from tests.testing.eager_stub import liveness_peak_bytes, run_eagerly

X = np.linspace(-1, 1, 512, dtype=np.float32).reshape(8, 64)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(8)(x)


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(32, 32)(tokens)
        for _ in range(2):
            y = nn.LayerNorm()(x)
            q, k, v = (nn.DenseGeneral((4, 8))(y) for _ in range(3))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
            mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
            weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
            y = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
            x = x + nn.DenseGeneral(32, axis=(-2, -1))(y)
            x = x + nn.Dense(32)(nn.gelu(nn.Dense(128)(nn.LayerNorm()(x))))
        return nn.Dense(32)(nn.LayerNorm()(x))


class NormalisedCNN(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in (8, 16):
            x = nn.Conv(features, (3, 3))(x)
            x = nn.BatchNorm(use_running_average=False)(x)
            x = nn.avg_pool(nn.relu(x), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


MODELS: dict[str, tuple[nn.Module, Any]] = {
    "mlp": (MLP(), jax.ShapeDtypeStruct((256, 16), jnp.float32)),
    "transformer": (Transformer(), jax.ShapeDtypeStruct((8, 32), jnp.int32)),
    "normalised cnn": (NormalisedCNN(), jax.ShapeDtypeStruct((32, 16, 16, 3), jnp.float32)),
}


@pytest.mark.parametrize("name", MODELS)
def test_train_step_peaks_within_a_tenth_of_the_liveness_of_its_jaxpr(name: str) -> None:
    model, shape = MODELS[name]
    key = jax.random.key(0)
    if jnp.issubdtype(shape.dtype, jnp.integer):
        batch = jax.random.randint(key, shape.shape, 0, 32)
    else:
        batch = jax.random.normal(key, shape.shape)
    variables = jax.jit(model.init)(key, batch)
    params = variables.pop("params")

    def step(params: Any, rest: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            out, state = model.apply({"params": params, **rest}, batch, mutable=list(rest))
            return -jax.nn.log_softmax(out)[..., 0].mean(), state

        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, state, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    gc.collect()
    gc.disable()
    try:
        found, session = run_eagerly(step, params, variables, batch)
    finally:
        gc.enable()
    assert_same_bits(found, step(params, variables, batch))
    assert session.living == 0
    assert session.brought_back == 0
    assert session.peak_bytes <= 1.10 * liveness_peak_bytes(step, params, variables, batch)


def chain(w: Any, x: Any) -> Any:
    for _ in range(5):
        x = jnp.tanh(x @ w)
    return x.sum()


def test_every_layer_of_a_chain_is_released() -> None:
    w = np.eye(64, dtype=np.float32) * 0.9
    grads, session = run_eagerly(jax.grad(chain), w, X)
    assert_same_bits(grads, jax.grad(chain)(w, X))
    # At least five derivatives of tanh, and the four inputs of products that are not the caller's.
    assert session.released.count((8, 64)) >= 9
    assert (64, 64) not in session.released, "the weights are the caller's"
    assert session.brought_back == 0


def test_residual_that_the_program_keeps_is_not_released() -> None:
    kept: list[Any] = []

    def loss(x: Any) -> Any:
        kept.append(jnp.exp(x))  # exp's residual is its own result
        return jnp.sum(kept[-1] * 1.0)

    def program(x: Any) -> Any:
        grads = jax.grad(loss)(x)
        inner = kept.pop()
        return grads, inner.primal if hasattr(inner, "primal") else inner

    (grads, inner), session = run_eagerly(program, X)
    assert_same_bits([grads, inner], [jnp.exp(X), jnp.exp(X)])
    assert session.brought_back == 0


def test_backward_pass_may_run_twice() -> None:
    def program(x: Any) -> Any:
        y, pull = jax.vjp(lambda x: jnp.sin(x) @ x.T, x)
        return pull(y), pull(2 * y)

    found, session = run_eagerly(program, X)
    assert_same_bits(found, program(jnp.asarray(X)))
    assert session.brought_back > 0


def test_second_order_and_batched_pullbacks_are_left_alone() -> None:
    def program(x: Any) -> Any:
        second = jax.grad(lambda s: jax.grad(lambda s: jnp.sin(s) ** 3)(s))(x[0, 0])
        return second, jax.jacrev(jnp.sin)(x[0])

    found, session = run_eagerly(program, X)
    assert_same_bits(found, program(jnp.asarray(X)))
    assert session.brought_back == 0


def test_outside_an_eager_call_nothing_changes() -> None:
    run_eagerly(jax.grad(chain), np.eye(64, dtype=np.float32), X)
    w = jnp.eye(64) * 0.9
    inside_jit = str(jax.make_jaxpr(jax.grad(chain))(w, X))
    assert "coop_release" not in inside_jit
    assert_same_bits(jax.grad(chain)(w, X), run_eagerly(jax.grad(chain), w, X)[0])
