"""Random training loops, each from a seed: a network, an optimizer of Optax, what happens between.

Model. The state is everything a step replaces: parameters, the optimizer's state and, by chance, a
moving average, a random key and a counter. A step is given it and returns it. Choices depend on the
seed alone, so a loop can be run again, disturbed or not, and has to end in the same bits.
Cost: a handful of layers of at most 64 x 64 values; eight steps.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTHS = (16, 32, 48)
STEPS = 8

OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.05, momentum=0.9),
    "nesterov": lambda: optax.sgd(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-3),
    "adamw": lambda: optax.adamw(optax.cosine_decay_schedule(1e-3, 100)),
    "adafactor": lambda: optax.adafactor(1e-3, min_dim_size_to_factor=16),
    "lion": lambda: optax.lion(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-3, centered=True),
    "lamb": lambda: optax.lamb(1e-3),
    "novograd": lambda: optax.novograd(1e-3),
    "sm3": lambda: optax.sm3(1e-2),
    "adagrad": lambda: optax.adagrad(1e-2),
    "clipped adam": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "noisy sgd": lambda: optax.noisy_sgd(0.01, key=0),
    "masked": lambda: optax.masked(
        optax.adam(1e-3), lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
    ),
}


@dataclasses.dataclass(frozen=True)
class TrainingLoop:
    """A step, what it is given, and where to find its name.

    Attributes:
      name: of the optimizer and the layers.
      step: `step(state, batch)` returns the next state and the loss.
      state: makes the first state, new arrays each time.
      batch: makes the batch of a step.
      constant: an array that the step closes over, or None.
    """

    name: str
    step: Callable[[Any, Any], tuple[Any, Any]]
    state: Callable[[], Any]
    batch: Callable[[int], np.ndarray]
    constant: jax.Array | None


def _dense(draw: random.Random, width: int) -> tuple[list[Any], Callable[..., Any]]:
    act = draw.choice([jnp.tanh, jax.nn.relu, jax.nn.gelu, jax.nn.silu])
    return [(width, width), (width,)], lambda w, x: act(x @ w[0] + w[1])


def _residual(draw: random.Random, width: int) -> tuple[list[Any], Callable[..., Any]]:
    inner = draw.choice([width, 2 * width])

    def layer(w: Any, x: Any) -> Any:
        normed = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return x + jax.nn.relu((normed * w[2]) @ w[0]) @ w[1]

    return [(width, inner), (inner, width), (width,)], layer


def _attention(draw: random.Random, width: int) -> tuple[list[Any], Callable[..., Any]]:
    del draw

    def layer(w: Any, x: Any) -> Any:
        q, k, v = jnp.split(x @ w[0], 3, axis=-1)
        return x + jax.nn.softmax(q @ k.T / width**0.5) @ v @ w[1]

    return [(width, 3 * width), (width, width)], layer


def _scanned(draw: random.Random, width: int) -> tuple[list[Any], Callable[..., Any]]:
    depth = draw.randint(2, 4)

    def layer(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, v: (x + jnp.tanh(x @ v), None), x, w[0])[0]

    return [(depth, width, width)], layer


def _recurrent(draw: random.Random, width: int) -> tuple[list[Any], Callable[..., Any]]:
    del draw

    def layer(w: Any, x: Any) -> Any:
        def cell(h: Any, row: Any) -> tuple[Any, Any]:
            h = jnp.tanh(row @ w[0] + h @ w[1])
            return h, h

        return jax.lax.scan(cell, jnp.zeros(width), x)[1]

    return [(width, width), (width, width)], layer


LAYERS = [_dense, _dense, _residual, _residual, _attention, _scanned, _recurrent]


def random_loop(seed: int, rows: int | None = None) -> TrainingLoop:
    """The training loop of a seed; of batches of so many rows, 8 or 16 if None."""
    draw = random.Random(seed)
    width, few = draw.choice(WIDTHS), draw.choice([8, 16])
    rows = few if rows is None else rows
    chosen = [draw.choice(LAYERS) for _ in range(draw.randint(2, 5))]
    layers = [make(draw, width) for make in chosen]
    optimizer_name = draw.choice(list(OPTIMIZERS))
    optimizer = OPTIMIZERS[optimizer_name]()
    averaged, keyed, counted = (draw.random() < 0.3 for _ in range(3))
    # A constant of the program; by chance memory that is donated, too.
    closed = draw.choice([None, "apart", "parameter"])
    shapes = [s for needed, _ in layers for s in needed]
    values = np.random.default_rng(seed)
    start = [values.normal(0, 0.3, s).astype(np.float32) for s in shapes]
    rows_of = values.uniform(-1, 1, (STEPS, rows, width)).astype(np.float32)
    constant = None
    if closed is not None:
        constant = jnp.asarray(start[0]) if closed == "parameter" else jnp.full(shapes[0], 0.01)

    def loss_of(params: Any, batch: Any, key: Any) -> Any:
        x, at = batch, 0
        for needed, layer in layers:
            x = layer(params[at : at + len(needed)], x)
            at += len(needed)
        if key is not None:
            x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)
        decay = 0.0 if constant is None else ((params[0] - constant) ** 2).mean()
        return (x**2).mean() + 0.1 * decay

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        key = state.get("key")
        loss, grads = jax.value_and_grad(loss_of)(state["params"], batch, key)
        updates, kept = optimizer.update(grads, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        new = {"params": params, "optimizer": kept}
        if averaged:
            new["average"] = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state["average"], params)
        if keyed:
            new["key"] = jax.random.fold_in(key, 1)
        if counted:
            new["count"] = state["count"] + 1
        return new, loss

    def state() -> Any:
        params = [jnp.array(x) for x in start]
        if closed == "parameter":
            params[0] = constant
        first = {"params": params, "optimizer": optimizer.init(params)}
        if averaged:
            first["average"] = [jnp.array(x) for x in start]
        if keyed:
            first["key"] = jax.random.key(seed)
        if counted:
            first["count"] = jnp.int32(0)
        return first

    names = "+".join(make.__name__[1:] for make in chosen)
    name = f"{optimizer_name} on {names}{' averaged' * averaged}, closes over {closed}"
    return TrainingLoop(name, step, state, lambda n: rows_of[n], constant)
