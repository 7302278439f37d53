"""The four programs that the core must train, small but with activations that dominate memory.

Each is an ordinary train step over ordinary Flax and Optax code: `step(state, batch)` returns the
new state and the loss. Nothing in them knows of budgets. States are NumPy arrays at first, so that
every training begins from the same bits and no array is shared. The steps of the first three are
jitted: that is how people have them, and JAX then traces each once for all tests.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import sklearn.datasets

State = Any  # (parameters, optimizer state)
Batch = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class TrainingProgram:
    """A train step with its first state and its batches."""

    name: str
    step: Callable[[State, Batch], tuple[State, jax.Array]]
    init: State
    batch: Callable[[int], Batch]


class CNN(nn.Module):
    features: tuple[int, ...] = (8, 16)
    convolutions: int = 3

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in self.features:
            for _ in range(self.convolutions):
                x = nn.Conv(features, (3, 3), use_bias=False)(x)
                x = nn.GroupNorm(num_groups=4)(x)
                x = nn.relu(x)
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class MLP(nn.Module):
    width: int = 64
    depth: int = 8

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.depth):
            x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)


class Block(nn.Module):
    """A GPT-style block: pre-norm causal attention and a feed-forward part."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        y = nn.LayerNorm()(x)
        qkv = nn.Dense(3 * width)(y).reshape(batch, length, 3, self.heads, -1)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // self.heads)
        scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
        y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + nn.Dense(width)(y)
        y = nn.LayerNorm()(x)
        return x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(y)))


class GPT(nn.Module):
    layers: int = 4
    width: int = 32
    heads: int = 4
    vocabulary: int = 64

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(self.vocabulary, self.width)
        x = embed(tokens) + self.param(
            "positions", nn.initializers.normal(0.02), (tokens.shape[1], self.width)
        )
        for _ in range(self.layers):
            x = Block(self.heads)(x)
        return embed.attend(nn.LayerNorm()(x))


def _train_step(
    loss_fn: Callable[..., jax.Array], optimizer: optax.GradientTransformation
) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    @jax.jit
    def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return step


def _initial(model: nn.Module, optimizer: Any, *inputs: Any) -> State:
    def init(key: jax.Array) -> State:
        params = model.init(key, *inputs)
        return params, optimizer.init(params)

    return jax.tree.map(np.asarray, jax.jit(init)(jax.random.key(0)))


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    digits = sklearn.datasets.load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    return images.repeat(2, axis=1).repeat(2, axis=2), digits.target.astype(np.int32)


@functools.cache
def cnn() -> TrainingProgram:
    """A Flax CNN on the digits of scikit-learn, with SGD and momentum."""
    model, optimizer = CNN(), optax.sgd(0.05, momentum=0.9)
    rows = 64

    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = model.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def batch(number: int) -> Batch:
        images, labels = _digits()
        part = slice(rows * number, rows * (number + 1))
        return images[part], labels[part]

    init = _initial(model, optimizer, jnp.zeros((1, 16, 16, 1)))
    return TrainingProgram("cnn", _train_step(loss, optimizer), init, batch)


@functools.cache
def mlp() -> TrainingProgram:
    """An MLP with Adam."""
    model, optimizer = MLP(), optax.adam(1e-2)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return ((model.apply(params, x) - y) ** 2).mean()

    def batch(number: int) -> Batch:
        x = np.random.default_rng(number).standard_normal((1024, 16)).astype(np.float32)
        return x, np.sin(x.sum(axis=1, keepdims=True))

    init = _initial(model, optimizer, jnp.zeros((1, 16)))
    return TrainingProgram("mlp", _train_step(loss, optimizer), init, batch)


@functools.cache
def gpt() -> TrainingProgram:
    """Four GPT-style blocks with AdamW on next-token prediction."""
    model, optimizer = GPT(), optax.adamw(1e-3)
    length = 48

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def batch(number: int) -> Batch:
        return (np.random.default_rng(number).integers(0, 64, (8, length + 1), dtype=np.int32),)

    init = _initial(model, optimizer, jnp.zeros((1, length), jnp.int32))
    return TrainingProgram("gpt", _train_step(loss, optimizer), init, batch)


@functools.cache
def data_dependent() -> TrainingProgram:
    """A net whose depth depends on the data: layers are applied until the activations settle.

    The number of layers is not the same for all three batches. Only the eager front end runs it.
    """
    width = 64

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ params["in"])
        depth = 0
        while jnp.abs(h).mean() > 0.15 and depth < 16:
            h = jnp.tanh(jnp.sin(h) @ params["hidden"] + params["bias"])
            depth += 1
        return ((h @ params["out"] - y) ** 2).mean()

    def step(params: State, batch: Batch) -> tuple[State, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value

    random = np.random.default_rng(0)
    init = {
        "in": 0.5 * random.standard_normal((16, width)),
        "hidden": 1 / np.sqrt(width) * random.standard_normal((width, width)),
        "out": 0.1 * random.standard_normal((width, 1)),
        "bias": np.zeros(width),
    }
    init = jax.tree.map(np.float32, init)

    def batch(number: int) -> Batch:
        x = np.random.default_rng(number).standard_normal((768, 16)).astype(np.float32)
        x *= np.float32([0.12, 0.25, 3.0][number % 3])
        return x, np.sin(x.sum(axis=1, keepdims=True))

    return TrainingProgram("data_dependent", step, init, batch)


def data_dependent_depth(params: State, batch: Batch) -> int:
    """How many hidden layers `data_dependent` applies to a batch, computed with NumPy."""
    params = jax.tree.map(np.asarray, params)
    h, depth = np.tanh(batch[0] @ params["in"]), 0
    while np.abs(h).mean() > 0.15 and depth < 16:
        h = np.tanh(np.sin(h) @ params["hidden"] + params["bias"])
        depth += 1
    return depth


def tanh_layers(layers: int) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """A step of layers that share weights: (weights, batch) to the new weights and the loss."""

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(w: jax.Array) -> jax.Array:
            h = x
            for _ in range(layers):
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    return step
