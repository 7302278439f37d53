"""Programs that go through the same layer or write into the same buffer many times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.little_networks import lstm_cell

ROWS = 8


@dataclasses.dataclass(frozen=True)
class Loop:
    """A program, its arguments, and which of them it replaces."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...] = (0,)


def compiled_bytes(compiled: Any) -> int:
    """What XLA needs: arguments, results that are no arguments, temporary memory."""
    found = compiled.memory_analysis()
    kept = found.output_size_in_bytes - found.alias_size_in_bytes
    return int(found.argument_size_in_bytes + kept + found.temp_size_in_bytes)


def array(*shape: int, seed: int = 0) -> np.ndarray:
    """Small random numbers."""
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(np.float32)


def trained(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def step(weights: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, *batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step


def _lstm(layers: list[jax.Array], xs: jax.Array, *, reverse: bool = False) -> jax.Array:
    zero = (jnp.zeros((ROWS, xs.shape[-1])),) * 2

    def body(states: Any, x: jax.Array) -> Any:
        after = []
        for state, w in zip(states, layers, strict=True):
            state, x = lstm_cell(state, x, w)
            after.append(state)
        return tuple(after), x

    return jax.lax.scan(body, (zero,) * len(layers), xs, reverse=reverse)[1]


def lstm_loss(layers: list[jax.Array], xs: jax.Array) -> jax.Array:
    """All layers in one scan."""
    return jnp.mean(_lstm(layers, xs) ** 2)


def layer_by_layer_loss(layers: list[jax.Array], xs: jax.Array) -> jax.Array:
    """A scan for each layer."""
    for w in layers:
        xs = _lstm([w], xs)
    return jnp.mean(xs**2)


def both_ways_loss(weights: list[jax.Array], xs: jax.Array) -> jax.Array:
    """A bidirectional layer."""
    forth, back, out = weights
    ys = jnp.concatenate([_lstm([forth], xs), _lstm([back], xs, reverse=True)], -1)
    return jnp.mean((ys @ out) ** 2)


def gru_loss(weights: list[jax.Array], xs: jax.Array) -> jax.Array:
    """With biases."""
    wx, wh, b = weights
    width = wh.shape[0]

    def body(h: jax.Array, x: jax.Array) -> Any:
        of_x, of_h = x @ wx + b, h @ wh
        r = jax.nn.sigmoid(of_x[:, :width] + of_h[:, :width])
        z = jax.nn.sigmoid(of_x[:, width : 2 * width] + of_h[:, width : 2 * width])
        n = jnp.tanh(of_x[:, 2 * width :] + r * of_h[:, 2 * width :])
        h = (1 - z) * n + z * h
        return h, h

    return jnp.mean(jax.lax.scan(body, jnp.zeros((ROWS, width)), xs)[1] ** 2)


def rnn_loss(weights: list[jax.Array], xs: jax.Array) -> jax.Array:
    """Of which only the last state counts."""

    def body(h: jax.Array, x: jax.Array) -> Any:
        return jnp.tanh(h @ weights[0] + x @ weights[1]), None

    return jnp.mean(jax.lax.scan(body, jnp.zeros(xs.shape[1:]), xs)[0] ** 2)


def mapped_loss(weights: list[jax.Array], xs: jax.Array) -> jax.Array:
    """The same for each sequence of a batch."""
    return jnp.mean(jax.vmap(rnn_loss, (None, 1))(weights, xs))


def nested_loss(weights: list[jax.Array], xs: jax.Array) -> jax.Array:
    """A scan in a scan."""

    def word(h: jax.Array, x: jax.Array) -> Any:
        h = jnp.tanh(h @ weights[0] + x)
        return h, h

    def sentence(h: jax.Array, words: jax.Array) -> Any:
        h, states = jax.lax.scan(word, h, words)
        return jnp.tanh(h @ weights[1]), states.sum(0)

    words = xs.reshape(4, -1, *xs.shape[1:])
    return jnp.mean(jax.lax.scan(sentence, jnp.zeros(xs.shape[1:]), words)[1] ** 2)


def graph_loss(
    weights: list[jax.Array], nodes: jax.Array, senders: jax.Array, receivers: jax.Array
) -> jax.Array:
    """Messages along edges, summed at nodes, several rounds of the same layer."""

    def body(nodes: jax.Array, _: None) -> Any:
        edges = jnp.concatenate([nodes[senders], nodes[receivers]], -1)
        sums = jax.ops.segment_sum(jnp.tanh(edges @ weights[0]), receivers, len(nodes))
        return nodes + jnp.tanh(jnp.concatenate([nodes, sums], -1) @ weights[1]), None

    return jnp.mean(jax.lax.scan(body, nodes, None, length=4)[0] ** 2)


def accumulated(weights: list[jax.Array], batches: jax.Array) -> Any:
    """Gradients of microbatches, summed in a scan."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def body(total: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(jnp.add, total, grads), value

    total, values = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, weights), batches)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, total), values.mean()


def accumulated_with_biases(weights: list[Any], batches: jax.Array) -> Any:
    """The same of residual layers with biases, whose gradients are sums over the batch."""

    def loss(weights: list[Any], x: jax.Array) -> jax.Array:
        for w, bias in weights:
            x = x + jnp.tanh(x @ w + bias.reshape(1, -1)) @ w.T
        return jnp.mean(x**2)

    def body(total: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, x)), None

    total, _ = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, weights), batches)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, total)


def states_of(w: jax.Array, x: jax.Array) -> jax.Array:
    """All states of a recurrence."""

    def body(h: jax.Array, _: None) -> Any:
        h = jnp.tanh(h @ w)
        return h, h

    return jax.lax.scan(body, x, None, length=24)[1]


def recorded(w: jax.Array, x: jax.Array) -> Any:
    """A loop that writes each state into a buffer that it carries."""

    def body(i: Any, carry: Any) -> Any:
        y, buffer = carry
        y = jnp.tanh(y @ w)
        return y, jax.lax.dynamic_update_slice(buffer, y[None], (i, 0, 0))

    return jax.lax.fori_loop(0, 16, body, (x, jnp.zeros((16, *x.shape))))


def decoded(cache: Any, weights: list[jax.Array], x: jax.Array) -> Any:
    """Steps of attention over keys and values so far."""
    wq, wk, wv = weights

    def body(carry: Any, i: jax.Array) -> Any:
        x, (keys, values) = carry
        keys = jax.lax.dynamic_update_slice(keys, (x @ wk)[:, None], (0, i, 0))
        values = jax.lax.dynamic_update_slice(values, (x @ wv)[:, None], (0, i, 0))
        scores = jnp.einsum("bd,btd->bt", x @ wq, keys)
        share = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[1]) <= i, scores, -1e9), -1)
        x = x + jnp.einsum("bt,btd->bd", share, values)
        return (x, (keys, values)), x

    (_, cache), xs = jax.lax.scan(body, (x, cache), jnp.arange(cache[0].shape[1]))
    return cache, xs


def loops(steps: int, width: int) -> dict[str, Loop]:
    """All of them, of so many steps over states of a width.

    Args:
      steps: of each sequence; a multiple of 4.
      width: of a state.
    """
    xs = array(steps, ROWS, width, seed=9)
    lstm = [array(2 * width, 4 * width, seed=k) for k in range(4)]
    square = [array(width, width, seed=k) for k in range(3)]
    gru = [array(width, 3 * width), array(width, 3 * width, seed=1), array(3 * width, seed=2)]
    edges = np.random.default_rng(3).integers(0, 8 * steps, (2, 32 * steps))
    graph = [array(2 * width, width), array(2 * width, width, seed=1)]
    cache = (array(ROWS, steps, width), array(ROWS, steps, width, seed=1))
    wide = [(array(width, 4 * width, seed=k), array(4 * width)) for k in range(3)]
    return {
        "lstm": Loop(trained(lstm_loss), (lstm[:1], xs)),
        "lstm of 4 layers": Loop(trained(lstm_loss), (lstm, xs)),
        "lstm layer by layer": Loop(trained(layer_by_layer_loss), (lstm[:2], xs)),
        "lstm's gradient": Loop(jax.value_and_grad(lstm_loss), (lstm[:2], xs), ()),
        "bidirectional lstm": Loop(
            trained(both_ways_loss), ([*lstm[:2], array(2 * width, width)], xs)
        ),
        "gru": Loop(trained(gru_loss), (gru, xs)),
        "rnn": Loop(trained(rnn_loss), (square[:2], xs)),
        "rnn under vmap": Loop(trained(mapped_loss), (square[:2], xs)),
        "nested scans": Loop(trained(nested_loss), (square[:2], xs)),
        "graph network": Loop(trained(graph_loss), (graph, array(8 * steps, width), *edges)),
        "microbatches": Loop(accumulated, (square, array(8, 4 * ROWS, width))),
        "microbatches, biases": Loop(
            accumulated_with_biases,
            (wide, array(8, 16 * ROWS, width)),
        ),
        "stacked states": Loop(states_of, (square[0], xs[0]), ()),
        "carried buffer": Loop(recorded, (square[0], xs[0]), ()),
        "decoding": Loop(decoded, (cache, square, xs[0])),
        "decoding, cache kept": Loop(decoded, (cache, square, xs[0]), ()),
    }
