"""Swin-T (Liu et al., Swin Transformer, ICCV 2021). 28,288,354 parameters.

Without stochastic depth: dropping whole layers for some samples changes no sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.paper.networks.attention import attention
from examples.paper.networks.base import Network, Remat, Setting, Stage, chain
from examples.paper.networks.tasks import Classification

_KERNEL = nn.initializers.truncated_normal(0.02)
_MASKED = -100.0  # as the authors'


@functools.cache
def relative_places(window: int) -> np.ndarray:
    """For each pair of the window's positions the number of their offset, [w², w²]."""
    y, x = np.divmod(np.arange(window**2), window)
    dy, dx = y[:, None] - y + window - 1, x[:, None] - x + window - 1
    return dy * (2 * window - 1) + dx


@functools.cache
def shifted_bias(height: int, width: int, window: int, shift: int) -> np.ndarray:
    """Keeps apart what a cyclic shift brings together in a window: [windows, 1, w², w²]."""
    region = np.zeros((height, width), np.int32)
    edges = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for number, (rows, columns) in enumerate((r, c) for r in edges for c in edges):
        region[rows, columns] = number
    parts = region.reshape(height // window, window, width // window, window)
    parts = parts.swapaxes(1, 2).reshape(-1, 1, window**2)
    apart = parts[..., :, None] != parts[..., None, :]
    return np.where(apart, np.float32(_MASKED), np.float32(0))


class WindowAttention(nn.Module):
    """Attention among the positions of each window, with a bias for each offset."""

    heads: int
    window: int
    shift: int
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, width, features = x.shape
        size, shift = self.window, self.shift
        if shift:
            x = jnp.roll(x, (-shift, -shift), axis=(1, 2))
        x = x.reshape(batch, height // size, size, width // size, size, features)
        x = x.swapaxes(2, 3).reshape(batch, -1, size**2, features)
        qkv = nn.Dense(3 * features, kernel_init=_KERNEL, name="qkv")(x)
        q, k, v = jnp.split(qkv.reshape(*x.shape[:3], 3 * self.heads, -1), 3, axis=3)
        table = self.param("offsets", _KERNEL, ((2 * size - 1) ** 2, self.heads))
        bias = table[relative_places(size)].transpose(2, 0, 1)[None]
        if shift:
            bias = bias + shifted_bias(height, width, size, shift)
        x = attention(q, k, v, bias, remat=self.remat).reshape(x.shape)
        x = nn.Dense(features, kernel_init=_KERNEL, name="out")(x)
        x = x.reshape(batch, height // size, width // size, size, size, features)
        x = x.swapaxes(2, 3).reshape(batch, height, width, features)
        return jnp.roll(x, (shift, shift), axis=(1, 2)) if shift else x


class Layer(nn.Module):
    """Attention in windows, then a feed-forward part; each on a normalised input."""

    heads: int
    window: int
    shift: int
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        y = nn.LayerNorm(name="norm1")(x)
        x = x + WindowAttention(self.heads, self.window, self.shift, self.remat, name="attend")(y)
        y = nn.LayerNorm(name="norm2")(x)
        y = nn.gelu(nn.Dense(4 * width, kernel_init=_KERNEL, name="up")(y), approximate=False)
        return x + nn.Dense(width, kernel_init=_KERNEL, name="down")(y)


class Merge(nn.Module):
    """Four neighbours become one with twice the features."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        y = nn.LayerNorm()(jnp.concatenate(parts, axis=-1))
        return nn.Dense(2 * x.shape[-1], use_bias=False, kernel_init=_KERNEL)(y)


class Swin(nn.Module):
    """Logits [batch, classes] of images [batch, height, width, 3].

    Attributes:
      depths: layers of each stage; between two stages neighbours are merged.
      width: features of the first stage.
      heads: attention heads of the first stage; each stage doubles them.
      window: side of a window.
      patch: side of the patches that the image is cut into.
    """

    depths: Sequence[int] = (2, 2, 6, 2)
    width: int = 96
    heads: int = 3
    window: int = 7
    patch: int = 4
    classes: int = 1000
    remat: Remat = "none"

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        patch = (self.patch, self.patch)
        x = nn.Conv(self.width, patch, patch, name="patches")(images)
        x = nn.LayerNorm(name="patch_norm")(x)
        stages: list[Stage] = []
        side = x.shape[1]
        for k, depth in enumerate(self.depths):
            # Where one window covers everything, there is nothing to shift.
            shift = self.window // 2 if side > self.window else 0
            stages += [_layer(self, k, n, shift if n % 2 else 0) for n in range(depth)]
            if k + 1 < len(self.depths):
                stages.append(_merge(k))
                side //= 2
        x = nn.LayerNorm(name="norm")(chain(self, stages, x, self.remat))
        return nn.Dense(self.classes, kernel_init=_KERNEL, name="head")(jnp.mean(x, axis=(1, 2)))


def _layer(model: Swin, stage: int, number: int, shift: int) -> Stage:
    name = f"stage{stage}_layer{number}"
    settings = (model.heads << stage, model.window, shift, model.remat)
    return lambda module, x: Layer(*settings, parent=module, name=name)(x)


def _merge(stage: int) -> Stage:
    return lambda module, x: Merge(parent=module, name=f"merge{stage}")(x)


NETWORK = Network(
    name="swin",
    title="Swin-T",
    source="Liu et al., Swin Transformer, ICCV 2021",
    settings={
        "paper": Setting(
            lambda remat: Swin(remat=remat),
            Classification(batch=128, pixels=224),
            optax.sgd(0.05, momentum=0.9),
        ),
        "small": Setting(
            lambda remat: Swin((2, 2), 32, 2, window=4, classes=10, remat=remat),
            Classification(batch=16, pixels=64, classes=10),
            optax.sgd(0.05, momentum=0.9),
        ),
    },
    remat=("none", "per-layer", "sqrt", "selective"),
)
