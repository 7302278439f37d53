"""Inception V3 (Szegedy et al., Rethinking the Inception Architecture, CVPR 2016).

As torchvision has it: 23,834,568 parameters, 27,161,264 with the auxiliary classifier.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.paper.networks.base import Network, Remat, Setting, Stage, chain
from examples.paper.networks.tasks import Classification

Branch = Callable[[jax.Array], jax.Array]


class ConvNorm(nn.Module):
    """Convolution, batch normalisation, ReLU."""

    features: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(self.features, self.kernel, self.stride, padding=self.padding, use_bias=False)(
            x
        )
        return nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-3)(x))


def _average(x: jax.Array) -> jax.Array:
    return nn.avg_pool(x, (3, 3), (1, 1), padding="SAME")


class Inception(nn.Module):
    """Branches of convolutions, side by side, concatenated.

    Attributes:
      branches: for each branch its convolutions, (features, kernel height, kernel width); the last
        of a branch may be several, side by side.
      pooled: features of the convolution after average pooling; of a reducing block 0, its
        branch is max pooling.
      reduce: the last convolution of each branch, and the pooling, halve the resolution.
    """

    branches: tuple[tuple[tuple[int, int, int] | tuple[tuple[int, int, int], ...], ...], ...]
    pooled: int = 0
    reduce: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        outputs = []
        for branch in self.branches:
            y = x
            for convolution in branch[:-1]:
                features, *kernel = convolution
                y = ConvNorm(features, tuple(kernel))(y)
            last = branch[-1]
            for features, *kernel in last if isinstance(last[0], tuple) else (last,):
                if self.reduce:
                    outputs.append(ConvNorm(features, tuple(kernel), 2, "VALID")(y))
                else:
                    outputs.append(ConvNorm(features, tuple(kernel))(y))
        if self.reduce:
            outputs.append(nn.max_pool(x, (3, 3), (2, 2)))
        else:
            outputs.append(ConvNorm(self.pooled)(_average(x)))
        return jnp.concatenate(outputs, axis=-1)


def _block_a(scale: int, pooled: int) -> Inception:
    c64, c48, c96 = 64 // scale, 48 // scale, 96 // scale
    branches = (
        ((c64, 1, 1),),
        ((c48, 1, 1), (c64, 5, 5)),
        ((c64, 1, 1), (c96, 3, 3), (c96, 3, 3)),
    )
    return Inception(branches, pooled // scale, parent=None)


def _block_b(scale: int) -> Inception:
    c384, c64, c96 = 384 // scale, 64 // scale, 96 // scale
    branches = (((c384, 3, 3),), ((c64, 1, 1), (c96, 3, 3), (c96, 3, 3)))
    return Inception(branches, reduce=True, parent=None)


def _block_c(scale: int, features: int) -> Inception:
    c, c192 = features // scale, 192 // scale
    branches = (
        ((c192, 1, 1),),
        ((c, 1, 1), (c, 1, 7), (c192, 7, 1)),
        ((c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (c192, 1, 7)),
    )
    return Inception(branches, c192, parent=None)


def _block_d(scale: int) -> Inception:
    c192, c320 = 192 // scale, 320 // scale
    branches = (
        ((c192, 1, 1), (c320, 3, 3)),
        ((c192, 1, 1), (c192, 1, 7), (c192, 7, 1), (c192, 3, 3)),
    )
    return Inception(branches, reduce=True, parent=None)


def _block_e(scale: int) -> Inception:
    c320, c384, c448, c192 = 320 // scale, 384 // scale, 448 // scale, 192 // scale
    both = ((c384, 1, 3), (c384, 3, 1))
    branches = (
        ((c320, 1, 1),),
        ((c384, 1, 1), both),
        ((c448, 1, 1), (c384, 3, 3), both),
    )
    return Inception(branches, c192, parent=None)


class Auxiliary(nn.Module):
    """The second classifier, half way up."""

    scale: int
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.shape[1] >= 5:
            x = nn.avg_pool(x, (5, 5), (3, 3))
        x = ConvNorm(128 // self.scale)(x)
        x = ConvNorm(768 // self.scale, x.shape[1:3], padding="VALID")(x)
        return nn.Dense(self.classes)(jnp.mean(x, axis=(1, 2)))


class InceptionV3(nn.Module):
    """Logits [batch, classes] of images [batch, height, width, 3], and those half way up.

    Attributes:
      scale: divides all numbers of channels.
      blocks: how many there are at each of the three resolutions, reducing ones aside.
    """

    scale: int = 1
    blocks: tuple[int, int, int] = (3, 4, 2)
    classes: int = 1000
    remat: Remat = "none"

    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        s = self.scale
        a, c, e = self.blocks
        lower = [
            _stage("conv0", ConvNorm(32 // s, (3, 3), 2, "VALID", parent=None)),
            _stage("conv1", ConvNorm(32 // s, (3, 3), padding="VALID", parent=None)),
            _stage("conv2", ConvNorm(64 // s, (3, 3), parent=None)),
            _pool,
            _stage("conv3", ConvNorm(80 // s, padding="VALID", parent=None)),
            _stage("conv4", ConvNorm(192 // s, (3, 3), padding="VALID", parent=None)),
            _pool,
            *[_stage(f"a{n}", _block_a(s, pooled)) for n, pooled in enumerate((32, 64, 64)[:a])],
            _stage("b", _block_b(s)),
            *[_stage(f"c{n}", _block_c(s, m)) for n, m in enumerate((128, 160, 160, 192)[:c])],
        ]
        upper = [_stage("d", _block_d(s)), *[_stage(f"e{n}", _block_e(s)) for n in range(e)]]
        x = chain(self, lower, images, self.remat)
        auxiliary = Auxiliary(s, self.classes, name="auxiliary")(x)
        x = chain(self, upper, x, self.remat)
        return nn.Dense(self.classes, name="head")(jnp.mean(x, axis=(1, 2))), auxiliary


def _stage(name: str, block: nn.Module) -> Stage:
    return lambda module, x: block.clone(parent=module, name=name)(x)


def _pool(module: nn.Module, x: jax.Array) -> jax.Array:
    return nn.max_pool(x, (3, 3), (2, 2))


NETWORK = Network(
    name="inception",
    title="Inception V3",
    source="Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016",
    settings={
        "paper": Setting(
            lambda remat: InceptionV3(remat=remat),
            Classification(batch=128, pixels=299),
            optax.sgd(0.045, momentum=0.9),
        ),
        "small": Setting(
            lambda remat: InceptionV3(scale=8, blocks=(1, 1, 1), classes=10, remat=remat),
            Classification(batch=16, pixels=127, classes=10),
            optax.sgd(0.01, momentum=0.9),
        ),
    },
)
