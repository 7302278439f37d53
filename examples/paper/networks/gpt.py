"""GPT-2 small and GPT-3 2.7B (Radford et al. 2019; Brown et al. 2020, table 2.1).

Pre-normalisation, learned positions, the output projection tied to the token embedding. 124,439,808
and 2,651,553,280 parameters. GPT-3's locally banded sparse layers are dense here, as in the open
reimplementations.

GPT-3 is trained with ZeRO stage 2, as in the paper: at the literature's size its step is that of
one of four workers (see `zero`), which has 10.6 GB of parameters and 5.3 GB of Adam's state. Its
batch is one sequence for each worker: the peak is 100 GB, and an A100 has 80.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.paper.networks import zero
from examples.paper.networks.attention import attention, dropout
from examples.paper.networks.base import Network, Remat, Setting, Stage, chain
from examples.paper.networks.tasks import CausalLM

_KERNEL = nn.initializers.normal(0.02)
_MASKED = -1e9  # a score that leaves nothing


class Layer(nn.Module):
    """Causal attention, then a feed-forward part four times as wide; each on a normalised input."""

    heads: int
    dropout: float
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, key: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        keys = jax.random.split(key, 3)
        y = zero.LayerNorm(name="norm1")(x)
        y = zero.Dense(3 * width, kernel_init=_KERNEL, name="qkv")(y)
        q, k, v = jnp.split(y.reshape(batch, length, 3 * self.heads, -1), 3, axis=2)
        y = attention(q, k, v, bias, keys[0], self.dropout, self.remat).reshape(x.shape)
        y = zero.Dense(width, kernel_init=_KERNEL, name="out")(y)
        x = x + dropout(keys[1], y, self.dropout)
        y = zero.LayerNorm(name="norm2")(x)
        y = nn.gelu(zero.Dense(4 * width, kernel_init=_KERNEL, name="up")(y))
        y = zero.Dense(width, kernel_init=_KERNEL, name="down")(y)
        return x + dropout(keys[2], y, self.dropout)


class GPT(zero.Attaching):
    """Logits [batch, length, vocabulary] of tokens [batch, length]; `seed` is that of dropout."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int = 50257
    dropout: float = 0.1
    remat: Remat = "none"

    @nn.compact
    def __call__(self, tokens: jax.Array, seed: jax.Array) -> jax.Array:
        length = tokens.shape[1]
        keys = jax.random.split(jax.random.key(seed), self.layers + 1)
        embed = zero.Embed(self.vocabulary, self.width, embedding_init=_KERNEL, name="tokens")
        places = self.param("places", _KERNEL, (self.length, self.width))
        x = dropout(keys[-1], embed(tokens) + places[:length], self.dropout)
        later = np.triu(np.ones((length, length), np.float32), 1)
        bias = jnp.asarray(later * np.float32(_MASKED))
        stages = [_layer(self, n, bias, keys[n]) for n in range(self.layers)]
        x = chain(self, stages, x, self.remat)
        return embed.attend(zero.LayerNorm(name="norm")(x))


def _layer(model: GPT, number: int, bias: jax.Array, key: jax.Array) -> Stage:
    def stage(module: nn.Module, x: jax.Array) -> jax.Array:
        layer = Layer(model.heads, model.dropout, model.remat, parent=module, name=f"layer{number}")
        return layer(x, bias, key)

    return stage


_REMAT: tuple[Remat, ...] = ("none", "per-layer", "sqrt", "selective")
GPT2 = Network(
    name="gpt2",
    title="GPT-2",
    source="Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
    settings={
        "paper": Setting(
            lambda remat: GPT(12, 768, 12, 1024, remat=remat),
            CausalLM(batch=8, length=1024, vocabulary=50257),
            optax.adam(2.5e-4),
        ),
        "small": Setting(
            lambda remat: GPT(4, 128, 4, 64, vocabulary=256, remat=remat),
            CausalLM(batch=8, length=64, vocabulary=256),
            optax.adam(3e-3),
        ),
    },
    remat=_REMAT,
)

GPT3 = Network(
    name="gpt3",
    title="GPT-3 style 2.7B",
    source="Brown et al., Language Models are Few-Shot Learners, NeurIPS 2020, table 2.1",
    settings={
        "paper": zero.setting(
            lambda remat: GPT(32, 2560, 32, 2048, remat=remat),
            CausalLM(batch=1, length=2048, vocabulary=50257),
            optax.adam(1.6e-4, b2=0.95),
            workers=4,
        ),
        "small": zero.setting(
            lambda remat: GPT(8, 96, 4, 128, vocabulary=256, remat=remat),
            CausalLM(batch=4, length=128, vocabulary=256),
            optax.adam(3e-3),
            workers=1,
        ),
    },
    remat=_REMAT,
)
