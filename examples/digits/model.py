"""A small convolutional network for 16 x 16 images, written as any Flax user would write it.

Nothing here knows about memory budgets: no `nn.remat`, no `jax.checkpoint`, no annotation. At batch
128 its activations take far more memory than its parameters, so that a budget has something to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax


class ConvBlock(nn.Module):
    """Convolution, group normalisation, activation."""

    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(self.features, kernel_size=(3, 3), strides=self.stride, use_bias=False)(x)
        x = nn.GroupNorm(num_groups=4)(x)
        return nn.relu(x)


class DigitsCNN(nn.Module):
    """Stages of convolutions, the last of which halves the resolution; then one dense layer.

    Attributes:
      features: channels of each stage.
      depth: convolutions of each stage.
      classes: number of digits.
    """

    features: Sequence[int] = (16, 32)
    depth: int = 5
    classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [batch, classes] of images [batch, height, width, 1]."""
        x = images
        for features in self.features:
            for _ in range(self.depth - 1):
                x = ConvBlock(features)(x)
            x = ConvBlock(features, stride=2)(x)
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(self.classes)(x)
