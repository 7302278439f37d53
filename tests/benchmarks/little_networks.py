"""Networks for `little_memory`: gradients of six small losses, without libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# A function of arrays, and its arguments.
Network = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(number: int, *shape: int, scale: float = 0.1) -> jax.Array:
    """Normal numbers, the same in every process."""
    return scale * jax.random.normal(jax.random.fold_in(jax.random.key(0), number), shape)


def layer_norm(x: jax.Array) -> jax.Array:
    """Over the last axis, without parameters."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Images [batch, height, width, channels] with a kernel [height, width, channels, channels]."""
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def chain(layers: int = 16, rows: int = 256, width: int = 128) -> Network:
    """A deep MLP."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    weights = [normal(n, width, width) for n in range(layers)]
    return jax.value_and_grad(loss), (weights, normal(99, rows, width))


def residual_cnn(layers: int = 8, rows: int = 8, channels: int = 16, size: int = 16) -> Network:
    """Residual blocks of two convolutions with a normalization between them."""

    def normalized(x: jax.Array) -> jax.Array:
        axes = (0, 1, 2)
        return (x - x.mean(axes)) * jax.lax.rsqrt(x.var(axes) + 1e-5)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for first, second in weights:
            x = x + convolved(jax.nn.relu(normalized(convolved(x, first))), second)
        return jnp.mean(x**2)

    shape = (3, 3, channels, channels)
    weights = [(normal(n, *shape), normal(50 + n, *shape)) for n in range(layers)]
    return jax.value_and_grad(loss), (weights, normal(99, rows, size, size, channels))


def mixer(layers: int = 6, rows: int = 8, tokens: int = 64, width: int = 64) -> Network:
    """An MLP-mixer."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for a, b, c, d in weights:
            mixed = jax.nn.gelu(jnp.swapaxes(layer_norm(x), 1, 2) @ a) @ b
            x = x + jnp.swapaxes(mixed, 1, 2)
            x = x + jax.nn.gelu(layer_norm(x) @ c) @ d
        return jnp.mean(x**2)

    shapes = ((tokens, 128), (128, tokens), (width, 256), (256, width))
    weights = [
        tuple(normal(50 * k + n, *shape) for k, shape in enumerate(shapes)) for n in range(layers)
    ]
    return jax.value_and_grad(loss), (weights, normal(999, rows, tokens, width))


def lstm_cell(state: Any, x: jax.Array, w: jax.Array) -> Any:
    """Of weights for input and state together."""
    h, c = state
    i, g, f, o = jnp.split(jnp.concatenate([x, h], -1) @ w, 4, -1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm(steps: int = 48, rows: int = 16, width: int = 128) -> Network:
    """An LSTM by `jax.lax.scan`."""

    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        start = (jnp.zeros((rows, width)),) * 2
        return jnp.mean(jax.lax.scan(functools.partial(lstm_cell, w=w), start, xs)[1] ** 2)

    w = normal(1, 2 * width, 4 * width, scale=0.05)
    return jax.value_and_grad(loss), (w, normal(2, steps, rows, width, scale=1.0))


def gpt(layers: int = 4, rows: int = 4, tokens: int = 64, width: int = 64) -> Network:
    """A decoder with causal attention."""
    heads, words = 4, 256
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))

    def attended(x: jax.Array, w: jax.Array) -> jax.Array:
        q, k, v = (
            z.reshape(rows, tokens, heads, width // heads).transpose(0, 2, 1, 3)
            for z in jnp.split(x @ w, 3, -1)
        )
        scores = jnp.where(mask, q @ jnp.swapaxes(k, -1, -2) / 4.0, -1e9)
        out = jax.nn.softmax(scores, -1) @ v
        return out.transpose(0, 2, 1, 3).reshape(rows, tokens, width)

    def loss(parameters: Any, tokens_: jax.Array) -> jax.Array:
        weights, embedding = parameters
        x = embedding[tokens_]
        for a, b, c, d in weights:
            x = x + attended(layer_norm(x), a) @ b
            x = x + jax.nn.gelu(layer_norm(x) @ c) @ d
        logs = jax.nn.log_softmax(layer_norm(x) @ embedding.T, -1)
        return -jnp.mean(jnp.take_along_axis(logs, jnp.roll(tokens_, -1, 1)[..., None], -1))

    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    weights = [
        tuple(normal(50 * k + n, *shape) for k, shape in enumerate(shapes)) for n in range(layers)
    ]
    text = jax.random.randint(jax.random.key(0), (rows, tokens), 0, words)
    return jax.value_and_grad(loss), ((weights, normal(300, words, width)), text)


def unet(rows: int = 4, size: int = 32, channels: int = 8, depth: int = 3) -> Network:
    """A U-Net of pairs of convolutions."""
    widths = [channels * 2**n for n in range(depth)]

    def pair(number: int, before: int, middle: int, after: int) -> tuple[jax.Array, jax.Array]:
        first = normal(2 * number, 3, 3, before, middle)
        return first, normal(2 * number + 1, 3, 3, middle, after)

    down = [pair(n, 3 if n == 0 else widths[n - 1], w, w) for n, w in enumerate(widths)]
    bottom = pair(100, widths[-1], 2 * widths[-1], widths[-1])
    above = [*widths[1:], widths[-1]]
    up = [pair(200 + n, above[n] + w, w, w) for n, w in reversed(list(enumerate(widths)))]

    def both(x: jax.Array, weights: Any) -> jax.Array:
        for w in weights:
            x = jax.nn.relu(convolved(x, w))
        return x

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        down, bottom, up, last = parameters
        y, skipped = x, []
        for weights in down:
            y = both(y, weights)
            skipped.append(y)
            n, h, w, c = y.shape
            y = y.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))
        y = both(y, bottom)
        for weights, skip in zip(up, reversed(skipped), strict=True):
            y = jnp.repeat(jnp.repeat(y, 2, 1), 2, 2)
            y = both(jnp.concatenate([y, skip], -1), weights)
        return jnp.mean((convolved(y, last) - x) ** 2)

    last = normal(900, 3, 3, widths[0], 3)
    return jax.value_and_grad(loss), ((down, bottom, up, last), normal(500, rows, size, size, 3))


NETWORKS: dict[str, Callable[..., Network]] = {
    "chain": chain,
    "residual CNN": residual_cnn,
    "mixer": mixer,
    "LSTM": lstm,
    "GPT": gpt,
    "U-Net": unet,
}
