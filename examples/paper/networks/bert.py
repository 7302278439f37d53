"""BERT-Large with both pretraining heads (Devlin et al., NAACL 2019).

335,141,888 parameters in the encoder with its pooler, 336,226,108 with the heads; the output
projection is tied to the token embedding.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.paper.networks.attention import attention, dropout
from examples.paper.networks.base import Network, Remat, Setting, Stage, chain
from examples.paper.networks.tasks import BertPretraining

_KERNEL = nn.initializers.normal(0.02)


class Layer(nn.Module):
    """Attention, then a feed-forward part four times as wide; each sum is normalised."""

    heads: int
    dropout: float
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, key: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        keys = jax.random.split(key, 3)
        q, k, v = (
            nn.Dense(width, kernel_init=_KERNEL, name=name)(x).reshape(
                batch, length, self.heads, -1
            )
            for name in ("query", "key", "value")
        )
        y = attention(q, k, v, bias, keys[0], self.dropout, self.remat).reshape(x.shape)
        y = nn.Dense(width, kernel_init=_KERNEL, name="out")(y)
        x = nn.LayerNorm(name="norm1")(x + dropout(keys[1], y, self.dropout))
        y = nn.gelu(nn.Dense(4 * width, kernel_init=_KERNEL, name="up")(x))
        y = nn.Dense(width, kernel_init=_KERNEL, name="down")(y)
        return nn.LayerNorm(name="norm2")(x + dropout(keys[2], y, self.dropout))


class Bert(nn.Module):
    """Logits of masked tokens [batch, length, vocabulary] and of the next sentence [batch, 2].

    Takes tokens and segments [batch, length], and the seed of dropout. All sequences are full, so
    nothing is masked in attention but by the zeros that are added.
    """

    layers: int
    width: int
    heads: int
    length: int = 512
    vocabulary: int = 30522
    dropout: float = 0.1
    remat: Remat = "none"

    @nn.compact
    def __call__(
        self, tokens: jax.Array, segments: jax.Array, seed: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        batch, length = tokens.shape
        keys = jax.random.split(jax.random.key(seed), self.layers + 1)
        embed = nn.Embed(self.vocabulary, self.width, embedding_init=_KERNEL, name="tokens")
        kinds = nn.Embed(2, self.width, embedding_init=_KERNEL, name="segments")
        places = self.param("places", _KERNEL, (self.length, self.width))
        x = nn.LayerNorm(name="norm")(embed(tokens) + kinds(segments) + places[:length])
        x = dropout(keys[-1], x, self.dropout)
        bias = jnp.asarray(np.zeros((batch, 1, 1, length), np.float32))
        stages = [_layer(self, n, bias, keys[n]) for n in range(self.layers)]
        x = chain(self, stages, x, self.remat)

        pooled = nn.tanh(nn.Dense(self.width, kernel_init=_KERNEL, name="pooler")(x[:, 0]))
        follows = nn.Dense(2, kernel_init=_KERNEL, name="next")(pooled)
        y = nn.gelu(nn.Dense(self.width, kernel_init=_KERNEL, name="transform")(x))
        y = nn.LayerNorm(name="head_norm")(y)
        scores = embed.attend(y)
        return scores + self.param("bias", nn.initializers.zeros, (self.vocabulary,)), follows


def _layer(model: Bert, number: int, bias: jax.Array, key: jax.Array) -> Stage:
    def stage(module: nn.Module, x: jax.Array) -> jax.Array:
        layer = Layer(model.heads, model.dropout, model.remat, parent=module, name=f"layer{number}")
        return layer(x, bias, key)

    return stage


NETWORK = Network(
    name="bert",
    title="BERT Large",
    source="Devlin et al., BERT, NAACL 2019",
    settings={
        "paper": Setting(
            lambda remat: Bert(24, 1024, 16, remat=remat),
            BertPretraining(batch=16, length=512, vocabulary=30522),
            optax.adam(1e-4),
        ),
        "small": Setting(
            lambda remat: Bert(4, 128, 4, length=64, vocabulary=256, remat=remat),
            BertPretraining(batch=8, length=64, vocabulary=256),
            optax.adam(3e-3),
        ),
    },
    remat=("none", "per-layer", "sqrt", "selective"),
)
