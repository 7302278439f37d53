"""U-Net (Ronneberger et al., MICCAI 2015), with batch normalisation as in the paper's table 1.

Convolutions are padded, so that the output has the size of the input; the channels are the
original's (64 to 1024). 31,037,698 parameters with three input channels and two classes.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.paper.networks.base import Network, Remat, Setting, Stage, chain
from examples.paper.networks.tasks import Segmentation


class DoubleConv(nn.Module):
    """Twice a 3 x 3 convolution, batch normalisation and ReLU."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.Conv(self.features, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        return x


class UNet(nn.Module):
    """Logits [batch, height, width, classes] of images [batch, height, width, channels].

    Attributes:
      width: channels at full resolution; each of the `depth` halvings doubles them.
    """

    width: int = 64
    depth: int = 4
    classes: int = 2
    remat: Remat = "none"

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        # What the stages hand on: the activation, then those that wait for the way up.
        stages = [_down(k, self.width << k) for k in range(self.depth)]
        stages.append(_bottom(self.width << self.depth))
        stages += [_up(k, self.width << k) for k in reversed(range(self.depth))]
        (x,) = chain(self, stages, (images,), self.remat)
        return nn.Conv(self.classes, (1, 1), name="head")(x)


def _down(level: int, features: int) -> Stage:
    def stage(module: nn.Module, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, *skips = carry
        x = DoubleConv(features, parent=module, name=f"down{level}")(x)
        return nn.max_pool(x, (2, 2), (2, 2)), *skips, x

    return stage


def _bottom(features: int) -> Stage:
    def stage(module: nn.Module, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, *skips = carry
        return DoubleConv(features, parent=module, name="bottom")(x), *skips

    return stage


def _up(level: int, features: int) -> Stage:
    def stage(module: nn.Module, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, *skips, skip = carry
        x = nn.ConvTranspose(features, (2, 2), (2, 2), parent=module, name=f"grow{level}")(x)
        x = jnp.concatenate([skip, x], axis=-1)
        return DoubleConv(features, parent=module, name=f"up{level}")(x), *skips

    return stage


NETWORK = Network(
    name="unet",
    title="U-Net",
    source="Ronneberger et al., U-Net, MICCAI 2015; batch normalisation as the paper's table 1",
    settings={
        "paper": Setting(
            lambda remat: UNet(remat=remat),
            Segmentation(batch=16, pixels=512),
            optax.sgd(0.01, momentum=0.9),
        ),
        "small": Setting(
            lambda remat: UNet(width=8, depth=3, remat=remat),
            Segmentation(batch=8, pixels=64),
            optax.sgd(0.05, momentum=0.9),
        ),
    },
)
