"""ResNet-50 (He et al., Deep Residual Learning for Image Recognition, CVPR 2016).

Version 1.5: the stride is in the 3 x 3 convolution, as in torchvision. 25,557,032 parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.paper.networks.base import Network, Remat, Setting, Stage, chain
from examples.paper.networks.tasks import Classification


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut; four times as many channels out."""

    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def norm(y: jax.Array) -> jax.Array:
            return nn.BatchNorm(use_running_average=False, momentum=0.9)(y)

        y = nn.relu(norm(nn.Conv(self.features, (1, 1), use_bias=False)(x)))
        y = nn.Conv(self.features, (3, 3), self.stride, padding=1, use_bias=False)(y)
        y = nn.relu(norm(y))
        y = norm(nn.Conv(4 * self.features, (1, 1), use_bias=False)(y))
        if x.shape != y.shape:
            x = norm(nn.Conv(4 * self.features, (1, 1), self.stride, use_bias=False)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Logits [batch, classes] of images [batch, height, width, 3].

    Attributes:
      blocks: bottlenecks in each of the stages; each stage but the first halves the resolution.
      width: channels of the first stage.
    """

    blocks: Sequence[int] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    remat: Remat = "none"

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(self.width, (7, 7), 2, padding=3, use_bias=False)(images)
        x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        stages = [
            _bottleneck(f"stage{k}_block{b}", self.width << k, 2 if k and not b else 1)
            for k, count in enumerate(self.blocks)
            for b in range(count)
        ]
        x = chain(self, stages, x, self.remat)
        return nn.Dense(self.classes)(jnp.mean(x, axis=(1, 2)))


def _bottleneck(name: str, features: int, stride: int) -> Stage:
    return lambda module, x: Bottleneck(features, stride, parent=module, name=name)(x)


NETWORK = Network(
    name="resnet50",
    title="ResNet-50",
    source="He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
    settings={
        "paper": Setting(
            lambda remat: ResNet(remat=remat),
            Classification(batch=128, pixels=224),
            optax.sgd(0.1, momentum=0.9),
        ),
        "small": Setting(
            lambda remat: ResNet(blocks=(2, 2, 2), width=16, classes=10, remat=remat),
            Classification(batch=16, pixels=64, classes=10),
            optax.sgd(0.02, momentum=0.9),
        ),
    },
)
