"""The train steps that the benchmarks time, and plain JAX running them in a process of its own.

`coop_jax` turns off JAX's asynchronous dispatch on CPU for its whole process, which could slow its
rivals down. So they are also timed as they are without it: this module never imports `coop_jax`;
run as a program it serves steps to the process that measures, which asks for one at a time. While
one process computes the other one waits, so the times compare as if taken in one process.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

State = Any  # (parameters, optimizer state)
Batch = tuple[Any, ...]
Step = Callable[[State, Batch], tuple[State, jax.Array]]


class TrainingProgram(NamedTuple):
    """A train step as a user writes it, without jit; its first state and its batches, as NumPy."""

    step: Step
    state: State
    batches: tuple[Batch, ...]  # taken in turn


class CNN(nn.Module):
    features: tuple[int, ...] = (32, 64, 128)
    convolutions: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in self.features:
            for _ in range(self.convolutions):
                x = nn.Conv(features, (3, 3), use_bias=False)(x)
                x = nn.relu(nn.GroupNorm(num_groups=8)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Block(nn.Module):
    """Pre-norm causal attention and a feed-forward part."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        y = nn.Dense(3 * width)(nn.LayerNorm()(x)).reshape(batch, length, 3, self.heads, -1)
        q, k, v = y[:, :, 0], y[:, :, 1], y[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // self.heads)
        scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
        y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + nn.Dense(width)(y)
        y = nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x)))
        return x + nn.Dense(width)(y)


class ScannedBlock(nn.Module):
    """The body of a scan over blocks."""

    heads: int
    remat: bool

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        # In a scan nothing is common to the two passes: no barrier is needed to keep them apart.
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        return block(self.heads)(x), None


class GPT(nn.Module):
    layers: int = 4
    width: int = 128
    heads: int = 4
    vocabulary: int = 512
    remat: bool = False  # a checkpoint around each block
    scan: bool = False  # blocks in a scan, their parameters stacked

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(self.vocabulary, self.width)
        shape = (tokens.shape[1], self.width)
        x = embed(tokens) + self.param("positions", nn.initializers.normal(0.02), shape)
        if self.scan:
            stacked: dict[str, Any] = {"variable_axes": {"params": 0}, "length": self.layers}
            blocks = nn.scan(ScannedBlock, split_rngs={"params": True}, **stacked)
            x, _ = blocks(self.heads, self.remat)(x, None)
        else:
            block = nn.remat(Block) if self.remat else Block
            for layer in range(self.layers):
                x = block(self.heads, name=f"Block_{layer}")(x)
        return embed.attend(nn.LayerNorm()(x))


class BiLSTM(nn.Module):
    """Reads a sequence (steps, batch, features) both ways; as many steps as there are."""

    width: int = 128
    classes: int = 8

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        last = []
        for steps in (list(x), list(x)[::-1]):
            cell = nn.OptimizedLSTMCell(self.width)
            carry = cell.initialize_carry(jax.random.key(0), x.shape[1:])
            for step in steps:
                carry, y = cell(carry, step)
            last.append(y)
        return nn.Dense(self.classes)(jnp.concatenate(last, -1))


def trained(
    loss: Callable[..., jax.Array], params: Any, batches: tuple[Batch, ...]
) -> TrainingProgram:
    """A train step of Adam; the loss takes parameters and a batch's arrays."""
    optimizer = optax.adam(1e-3)

    def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        params, optimizer_state = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), value

    state = jax.tree.map(np.asarray, (params, jax.jit(optimizer.init)(params)))
    return TrainingProgram(step, state, batches)


def _program(
    loss: Callable[..., jax.Array], model: nn.Module, batches: tuple[Batch, ...], *inputs: Any
) -> TrainingProgram:
    return trained(loss, jax.jit(model.init)(jax.random.key(0), *inputs), batches)


def cnn() -> TrainingProgram:
    """Six convolutions with group normalization on 32 images of 32x32, Adam."""
    model = CNN()

    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = model.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    random = np.random.default_rng(0)
    images = random.standard_normal((32, 32, 32, 3)).astype(np.float32)
    labels = random.integers(0, 10, 32, dtype=np.int32)
    return _program(loss, model, ((images, labels),), images[:1])


def gpt(remat: bool = False, layers: int = 4, scan: bool = False) -> TrainingProgram:
    """Four GPT-style blocks (or `layers`) of width 128 on 8 sequences of 128 tokens, Adam."""
    model = GPT(layers=layers, remat=remat, scan=scan)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    tokens = np.random.default_rng(0).integers(0, 512, (8, 129), dtype=np.int32)
    return _program(loss, model, ((tokens,),), tokens[:1, :-1])


def bilstm() -> TrainingProgram:
    """A bidirectional LSTM of width 128, a Python loop over 16 to 28 steps, 32 rows, Adam."""
    model = BiLSTM()

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = model.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    random = np.random.default_rng(0)
    batches = tuple(
        (
            random.standard_normal((length, 32, 64)).astype(np.float32),
            random.integers(0, 8, 32, dtype=np.int32),
        )
        for length in (24, 16, 28, 20)
    )
    return _program(loss, model, batches, batches[0][0])


PROGRAMS: dict[str, Callable[[], TrainingProgram]] = {"cnn": cnn, "gpt": gpt, "bilstm": bilstm}


class Trainer:
    """Trains on, one timed step a call."""

    def __init__(self, step: Step, program: TrainingProgram):
        self._step = step
        self._state = jax.tree.map(jnp.array, program.state)
        self._batches = itertools.cycle(jax.tree.map(jnp.array, program.batches))

    def __call__(self) -> float:
        """Trains one step; the seconds until its results are there."""
        batch = next(self._batches)
        begin = time.perf_counter()
        self._state, loss = self._step(self._state, batch)
        jax.block_until_ready((self._state, loss))
        return time.perf_counter() - begin


def _serve(name: str) -> None:
    """Reads "jit" or "eager" from each line of standard input; answers with a step's seconds."""
    program = PROGRAMS[name]()
    trainers: dict[str, Trainer] = {}
    for line in sys.stdin:
        kind = line.strip()
        if kind not in trainers:
            step = jax.jit(program.step, donate_argnums=0) if kind == "jit" else program.step
            trainers[kind] = Trainer(step, program)
        print(trainers[kind](), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
