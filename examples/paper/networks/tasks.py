"""Synthetic tasks: batches of the shapes of the literature that a network can learn something from.

Images show one of a few smooth patterns under noise; token sequences follow a skewed Markov chain.
Everything is drawn from NumPy generators with fixed seeds: the same seed gives the same batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Batch = tuple[Any, ...]
_PATTERN_SEED = 1000
_AUXILIARY_WEIGHT = 0.4  # of Inception's second classifier; 0.3 in its paper, 0.4 in torchvision
_MASKED = 0.15  # share of tokens that BERT predicts


def _float(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _int(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy of integer labels."""
    losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()


def _pattern(rng: np.random.Generator, count: int, pixels: int, channels: int) -> np.ndarray:
    """Smooth random images float32 [count, pixels, pixels, channels] in [-2, 2]."""
    y, x = np.meshgrid(*[np.linspace(0, 2 * np.pi, pixels, dtype=np.float32)] * 2, indexing="ij")
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1, channels)).astype(np.float32)
    waves = rng.integers(-2, 3, (2, count, 1, 1, channels)).astype(np.float32)
    colour = rng.uniform(-1, 1, (count, 1, 1, channels)).astype(np.float32)
    return np.sin(waves[0] * x[..., None] + waves[1] * y[..., None] + phase) + colour


@dataclasses.dataclass(frozen=True, slots=True)
class Classification:
    """Images float32 [batch, pixels, pixels, 3] of one of `classes` patterns; labels [batch]."""

    batch: int
    pixels: int
    classes: int = 1000

    def shapes(self) -> Batch:
        return _float(self.batch, self.pixels, self.pixels, 3), _int(self.batch)

    def sample(self, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        patterns = _pattern(np.random.default_rng(_PATTERN_SEED), self.classes, self.pixels, 3)
        labels = rng.integers(0, self.classes, self.batch, dtype=np.int32)
        noise = rng.standard_normal((self.batch, self.pixels, self.pixels, 3), dtype=np.float32)
        return patterns[labels] + np.float32(0.3) * noise, labels

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        return batch[:1]

    def loss(self, outputs: Any, batch: Batch) -> jax.Array:
        """Of logits, or of logits and those of an auxiliary classifier."""
        if not isinstance(outputs, tuple):
            return cross_entropy(outputs, batch[1])
        logits, auxiliary = outputs
        return cross_entropy(logits, batch[1]) + _AUXILIARY_WEIGHT * cross_entropy(
            auxiliary, batch[1]
        )


@dataclasses.dataclass(frozen=True, slots=True)
class PathClassification(Classification):
    """As Classification, with a path through a supernet that differs from step to step.

    Attributes:
      blocks: how many blocks a path goes through.
      choices: how many there are for each.
    """

    blocks: int = 20
    choices: int = 4

    def sample_dynamic(self, seed: int) -> Batch:
        """Images, labels and the path int32 [blocks]."""
        path = np.random.default_rng([seed, 1]).integers(0, self.choices, self.blocks)
        return *self.sample(seed), path.astype(np.int32)


@dataclasses.dataclass(frozen=True, slots=True)
class Segmentation:
    """Images float32 [batch, pixels, pixels, 3]; which pixels lie on a disc, int32 without 3."""

    batch: int
    pixels: int

    def shapes(self) -> Batch:
        side = self.pixels
        return _float(self.batch, side, side, 3), _int(self.batch, side, side)

    def sample(self, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        centre = rng.uniform(0.3, 0.7, (2, self.batch, 1, 1))
        radius = rng.uniform(0.1, 0.3, (self.batch, 1, 1))
        y, x = np.meshgrid(*[np.linspace(0, 1, self.pixels)] * 2, indexing="ij")
        disc = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
        noise = rng.standard_normal((self.batch, self.pixels, self.pixels, 3), dtype=np.float32)
        return disc[..., None].astype(np.float32) + np.float32(0.5) * noise, disc.astype(np.int32)

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        return batch[:1]

    def loss(self, outputs: Any, batch: Batch) -> jax.Array:
        return cross_entropy(outputs, batch[1])


def _tokens(rng: np.random.Generator, batch: int, length: int, vocabulary: int) -> np.ndarray:
    """Sequences int32 [batch, length]: nine of ten tokens follow from the one before."""
    following = np.random.default_rng(_PATTERN_SEED).integers(0, vocabulary, vocabulary)
    fresh = (vocabulary * rng.random((batch, length)) ** 3).astype(np.int64)
    jumps = rng.random((batch, length)) < 0.1
    tokens = np.empty((batch, length), np.int32)
    tokens[:, 0] = fresh[:, 0]
    for t in range(1, length):
        tokens[:, t] = np.where(jumps[:, t], fresh[:, t], following[tokens[:, t - 1]])
    return tokens


def _seed_of(seed: int) -> np.uint32:
    return np.uint32(seed)


@dataclasses.dataclass(frozen=True, slots=True)
class CausalLM:
    """Tokens int32 [batch, length + 1], each to be told from those before; a seed for dropout."""

    batch: int
    length: int
    vocabulary: int

    def shapes(self) -> Batch:
        return _int(self.batch, self.length + 1), jax.ShapeDtypeStruct((), jnp.uint32)

    def sample(self, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        tokens = _tokens(rng, self.batch, self.length + 1, self.vocabulary)
        return tokens, _seed_of(seed)

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        return batch[0][:, :-1], batch[1]

    def loss(self, outputs: Any, batch: Batch) -> jax.Array:
        return cross_entropy(outputs, batch[0][:, 1:])


@dataclasses.dataclass(frozen=True, slots=True)
class BertPretraining:
    """Masked tokens and next-sentence prediction (Devlin et al., section 3.1).

    A batch is tokens, segments, wanted tokens, int32 [batch, length], which of them are to be
    predicted, float32 of the same shape, whether the second half follows the first, int32 [batch],
    and a seed for dropout. Token 0 is the mask.
    """

    batch: int
    length: int
    vocabulary: int

    def shapes(self) -> Batch:
        ids = _int(self.batch, self.length)
        weights = _float(self.batch, self.length)
        return ids, ids, ids, weights, _int(self.batch), jax.ShapeDtypeStruct((), jnp.uint32)

    def sample(self, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        wanted = _tokens(rng, self.batch, self.length, self.vocabulary)
        follows = rng.integers(0, 2, self.batch, dtype=np.int32)
        half = self.length // 2
        other = _tokens(rng, self.batch, self.length - half, self.vocabulary)
        wanted[:, half:] = np.where(follows[:, None], wanted[:, half:], other)
        masked = rng.random((self.batch, self.length)) < _MASKED
        tokens = np.where(masked, 0, wanted).astype(np.int32)
        segments = np.broadcast_to(np.arange(self.length) >= half, tokens.shape).astype(np.int32)
        return tokens, segments, wanted, masked.astype(np.float32), follows, _seed_of(seed)

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        return batch[0], batch[1], batch[5]

    def loss(self, outputs: Any, batch: Batch) -> jax.Array:
        logits, next_logits = outputs
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[2])
        masked: jax.Array = jnp.sum(losses * batch[3]) / jnp.maximum(jnp.sum(batch[3]), 1)
        return masked + cross_entropy(next_logits, batch[4])


@dataclasses.dataclass(frozen=True, slots=True)
class SequenceClassification:
    """Tokens int32 [batch, length] of one of two kinds of text; labels int32 [batch].

    All sequences of a batch have one length (they are bucketed); it differs from batch to batch,
    between `shortest` and `length`.
    """

    batch: int
    length: int
    shortest: int
    vocabulary: int

    def shapes(self) -> Batch:
        return _int(self.batch, self.length), _int(self.batch)

    def sample(self, seed: int) -> Batch:
        return self._sample(seed, self.length)

    def sample_dynamic(self, seed: int) -> Batch:
        """A batch of a random length."""
        length = np.random.default_rng([seed, 1]).integers(self.shortest, self.length + 1)
        return self._sample(seed, int(length))

    def _sample(self, seed: int, length: int) -> Batch:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, self.batch, dtype=np.int32)
        # The first kind of text prefers small token numbers, the second large ones.
        tokens = (self.vocabulary * rng.random((self.batch, length)) ** 2).astype(np.int32)
        return np.where(labels[:, None], self.vocabulary - 1 - tokens, tokens), labels

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        return batch[:1]

    def loss(self, outputs: Any, batch: Batch) -> jax.Array:
        return cross_entropy(outputs, batch[1])
