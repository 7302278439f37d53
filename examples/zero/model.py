"""A small GPT in Flax NNX: pre-normalisation, learned positions, tied embedding.

It knows nothing of devices, of ZeRO or of the budget.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

_NORMAL = nnx.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a GPT; those of GPT-3 2.7B are 32, 2560, 32, 2048, 50257."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    length: int = 128
    vocabulary: int = 256  # bytes


class Layer(nnx.Module):
    """Causal attention, then a feed-forward part four times as wide; each on a normalised input."""

    def __init__(self, size: Size, rngs: nnx.Rngs):
        width = size.width
        self.heads = size.heads
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, kernel_init=_NORMAL, rngs=rngs)
        self.out = nnx.Linear(width, width, kernel_init=_NORMAL, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, kernel_init=_NORMAL, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, kernel_init=_NORMAL, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3 * self.heads, -1)
        q, k, v = jnp.split(qkv, 3, axis=2)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class GPT(nnx.Module):
    """Logits [batch, length, vocabulary] of tokens [batch, length]."""

    def __init__(self, size: Size, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(size.vocabulary, size.width, embedding_init=_NORMAL, rngs=rngs)
        self.places = nnx.Embed(size.length, size.width, embedding_init=_NORMAL, rngs=rngs)
        self.layers = nnx.List(Layer(size, rngs) for _ in range(size.layers))
        self.norm = nnx.LayerNorm(size.width, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.places(jnp.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.tokens.attend(self.norm(x))
