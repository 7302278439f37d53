"""A stacked bidirectional LSTM over texts of different lengths (Graves and Schmidhuber 2005).

The loop over time is a Python loop: each length is another program. Two layers of 512 units each
way on 300-dimensional embeddings; the paper does not give the sizes of its own.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.paper.networks.base import Network, Remat, Setting, segment_length
from examples.paper.networks.tasks import SequenceClassification


class LSTM(nn.Module):
    """One direction: outputs for each of the inputs [batch, features], in the order of the inputs.

    Checkpoints are segments of time: a step each, or about the square root of the length.
    """

    features: int
    remat: Remat = "none"

    @nn.compact
    def __call__(self, inputs: list[jax.Array]) -> list[jax.Array]:
        def steps(module: nn.Module, carry: Any, inputs: list[jax.Array]) -> Any:
            cell = nn.OptimizedLSTMCell(self.features, parent=module, name="cell")
            outputs = []
            for x in inputs:
                carry, y = cell(carry, x)
                outputs.append(y)
            return carry, outputs

        zeros = jnp.zeros((inputs[0].shape[0], self.features), inputs[0].dtype)
        carry = (zeros, zeros)
        length = segment_length(self.remat, len(inputs))
        if not length or self.is_initializing():
            return steps(self, carry, inputs)[1]
        outputs: list[jax.Array] = []
        for start in range(0, len(inputs), length):
            carry, part = nn.remat(steps)(self, carry, inputs[start : start + length])
            outputs += part
        return outputs


class BiLSTM(nn.Module):
    """Logits [batch, 2] of tokens [batch, length]."""

    layers: int = 2
    features: int = 512
    embedding: int = 300
    vocabulary: int = 20000
    remat: Remat = "none"

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocabulary, self.embedding)(tokens)
        # One step is enough to make the parameters, whatever the length.
        steps = 1 if self.is_initializing() else tokens.shape[1]
        sequence = [x[:, t] for t in range(steps)]
        for n in range(self.layers):
            forward = LSTM(self.features, self.remat, name=f"forward{n}")(sequence)
            backward = LSTM(self.features, self.remat, name=f"backward{n}")(sequence[::-1])[::-1]
            pairs = zip(forward, backward, strict=True)
            sequence = [jnp.concatenate(pair, axis=-1) for pair in pairs]
        return nn.Dense(2)(jnp.max(jnp.stack(sequence, axis=1), axis=1))


NETWORK = Network(
    name="bilstm",
    title="BiLSTM",
    source="Graves and Schmidhuber, Framewise Phoneme Classification with Bidirectional LSTM, 2005",
    settings={
        "paper": Setting(
            lambda remat: BiLSTM(remat=remat),
            SequenceClassification(batch=128, length=256, shortest=64, vocabulary=20000),
            optax.sgd(0.1, momentum=0.9),
        ),
        "small": Setting(
            lambda remat: BiLSTM(1, 64, 32, 100, remat=remat),
            SequenceClassification(batch=32, length=24, shortest=8, vocabulary=100),
            optax.sgd(1.0, momentum=0.9),
        ),
    },
    dynamic=True,
)
