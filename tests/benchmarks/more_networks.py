"""Networks in plain JAX, each a train step of Adam, with and without static checkpoints.

They have what the paper's networks do not: layers in a `lax.scan`, a residual stream cut into
patches, noise drawn in the step, a recurrence in a scan over time. Sizes are such that a step takes
0.1 to 0.5 s on two cores, and that temporaries take most of the memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.paper.networks.attention import attention, dropout
from examples.paper.networks.base import Remat, segment_length
from examples.paper.networks.tasks import cross_entropy
from tests.benchmarks.little_networks import convolved, layer_norm
from tests.benchmarks.plain_jax import TrainingProgram, trained

Parameters = Any
Stage = Callable[[Parameters, Any], Any]

_MASKED = -1e9  # a score that leaves nothing


def _chained(stages: Sequence[tuple[Stage, Parameters]], carry: Any, remat: Remat) -> Any:
    """Applies stages one after the other, in checkpoints of as many as the option says."""

    def run(stages: Sequence[Stage], weights: Sequence[Parameters], carry: Any) -> Any:
        for stage, w in zip(stages, weights, strict=True):
            carry = stage(w, carry)
        return carry

    length = segment_length(remat, len(stages))
    for start in range(0, len(stages), length or len(stages)):
        functions, weights = zip(*stages[start : start + (length or len(stages))], strict=True)
        part = functools.partial(run, functions)
        carry = (jax.checkpoint(part) if length else part)(weights, carry)
    return carry


class _Drawn:
    """Draws first values of parameters."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def matrix(self, *shape: int) -> np.ndarray:
        """Normal numbers, scaled by the number of inputs: all axes but the last."""
        drawn = self._rng.standard_normal(shape) / math.sqrt(math.prod(shape[:-1]))
        return drawn.astype(np.float32)

    def transformer_layer(self, width: int) -> Parameters:
        """Of `_transformer_layer`."""
        return {
            "qkv": self.matrix(width, 3 * width),
            "out": self.matrix(width, width),
            "up": self.matrix(width, 4 * width),
            "down": self.matrix(4 * width, width),
            "scale": np.ones((2, width), np.float32),
        }


def _transformer_layer(
    p: Parameters,
    x: jax.Array,
    *,
    heads: int,
    bias: jax.Array | np.ndarray,
    key: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """Pre-norm attention and a feed-forward part, of x [batch, length, width]."""
    batch, length, _ = x.shape
    keys = [None] * 3 if key is None else list(jax.random.split(key, 3))
    y = (layer_norm(x) * p["scale"][0]) @ p["qkv"]
    q, k, v = jnp.split(y.reshape(batch, length, 3 * heads, -1), 3, axis=2)
    y = attention(q, k, v, jnp.asarray(bias), keys[0], rate).reshape(x.shape) @ p["out"]
    x = x + _dropped(keys[1], y, rate)
    y = jax.nn.gelu((layer_norm(x) * p["scale"][1]) @ p["up"]) @ p["down"]
    return x + _dropped(keys[2], y, rate)


def _dropped(key: jax.Array | None, x: jax.Array, rate: float) -> jax.Array:
    return x if key is None else dropout(key, x, rate)


def scanned_gpt(
    remat: Remat = "none",
    layers: int = 24,
    width: int = 64,
    heads: int = 4,
    batch: int = 8,
    length: int = 64,
    vocabulary: int = 256,
) -> TrainingProgram:
    """A GPT whose layers are a scan over stacked parameters and keys of dropout.

    With checkpoints "sqrt" the scan is one over segments, each a scan over its layers.
    """
    draw = _Drawn()
    stacked = [draw.transformer_layer(width) for _ in range(layers)]
    params = {
        "layers": jax.tree.map(lambda *xs: np.stack(xs), *stacked),
        "tokens": draw.matrix(vocabulary, width),
        "places": draw.matrix(length, width),
    }
    bias = np.triu(np.full((length, length), _MASKED, np.float32), 1)

    def layer(x: jax.Array, each: Any) -> tuple[jax.Array, None]:
        p, key = each
        return _transformer_layer(p, x, heads=heads, bias=bias, key=key, rate=0.1), None

    # In a scan nothing is common to the two passes: no barrier is needed to keep them apart.
    checkpoint = functools.partial(jax.checkpoint, prevent_cse=False)

    def scanned(x: jax.Array, each: Any) -> jax.Array:
        span = segment_length(remat, layers)
        if span <= 1:
            return jax.lax.scan(checkpoint(layer) if span else layer, x, each)[0]
        while layers % span:
            span -= 1
        segments = jax.tree.map(lambda w: w.reshape(-1, span, *w.shape[1:]), each)
        segment = checkpoint(lambda x, each: jax.lax.scan(layer, x, each))
        return jax.lax.scan(lambda x, each: (segment(x, each)[0], None), x, segments)[0]

    def loss(params: Parameters, tokens: jax.Array, seed: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(seed), layers)
        x = params["tokens"][tokens[:, :-1]] + params["places"]
        x = layer_norm(scanned(x, (params["layers"], keys)))
        return cross_entropy(x @ params["tokens"].T, tokens[:, 1:])

    tokens = np.random.default_rng(1).integers(0, vocabulary, (batch, length + 1), np.int32)
    return trained(loss, params, ((tokens, np.uint32(0)),))


def vit(
    remat: Remat = "none",
    layers: int = 8,
    width: int = 96,
    heads: int = 4,
    batch: int = 16,
    pixels: int = 64,
    patch: int = 8,
    classes: int = 10,
) -> TrainingProgram:
    """A vision transformer (Dosovitskiy et al., ICLR 2021) with a token for the class."""
    draw = _Drawn()
    places = (pixels // patch) ** 2 + 1
    params = {
        "layers": [draw.transformer_layer(width) for _ in range(layers)],
        "patches": draw.matrix(3 * patch**2, width),
        "class": draw.matrix(1, width),
        "places": draw.matrix(places, width),
        "head": draw.matrix(width, classes),
    }

    def layer(p: Parameters, x: jax.Array) -> jax.Array:
        return _transformer_layer(p, x, heads=heads, bias=np.zeros((), np.float32))

    def loss(params: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
        side = pixels // patch
        x = images.reshape(batch, side, patch, side, patch, 3).swapaxes(2, 3)
        x = x.reshape(batch, side**2, -1) @ params["patches"]
        first = jnp.broadcast_to(params["class"], (batch, 1, width))
        x = jnp.concatenate([first, x], axis=1) + params["places"]
        x = _chained([(layer, p) for p in params["layers"]], x, remat)
        return cross_entropy(layer_norm(x[:, 0]) @ params["head"], labels)

    rng = np.random.default_rng(1)
    images = rng.standard_normal((batch, pixels, pixels, 3)).astype(np.float32)
    return trained(loss, params, ((images, rng.integers(0, classes, batch, np.int32)),))


def _group_norm(x: jax.Array, scale: jax.Array | float, groups: int = 4) -> jax.Array:
    """Of images [batch, height, width, channels]."""
    split = x.reshape(*x.shape[:-1], groups, -1)
    mean = split.mean((1, 2, 4), keepdims=True)
    variance = ((split - mean) ** 2).mean((1, 2, 4), keepdims=True)
    return ((split - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale


def _residual_block(draw: _Drawn, before: int, after: int, embedding: int) -> Parameters:
    """Parameters of `_residual`."""
    return {
        "scales": (np.ones(before, np.float32), np.ones(after, np.float32)),
        "kernels": (draw.matrix(3, 3, before, after), draw.matrix(3, 3, after, after)),
        "time": draw.matrix(embedding, 2 * after),
        "skip": draw.matrix(before, after),
    }


def _residual(p: Parameters, x: jax.Array, time: jax.Array) -> jax.Array:
    """Two convolutions of x [batch, height, width, channels], shifted and scaled by the time."""
    scales, kernels = p["scales"], p["kernels"]
    y = convolved(jax.nn.silu(_group_norm(x, scales[0])), kernels[0])
    shift, scale = jnp.split((time @ p["time"])[:, None, None], 2, axis=-1)
    y = _group_norm(y, scales[1]) * (1 + scale) + shift
    return x @ p["skip"] + convolved(jax.nn.silu(y), kernels[1])


def diffusion(
    remat: Remat = "none",
    channels: int = 16,
    depth: int = 3,
    batch: int = 8,
    pixels: int = 32,
    embedding: int = 64,
) -> TrainingProgram:
    """Denoising diffusion by a U-Net (Ho et al., NeurIPS 2020), a residual block a level.

    Times and noise are drawn in the step.
    """
    draw = _Drawn()
    widths = [channels << level for level in range(depth)]
    above = [*widths[1:], widths[-1]]

    def block(before: int, after: int) -> Parameters:
        return _residual_block(draw, before, after, embedding)

    params = {
        "time": draw.matrix(embedding, embedding),
        "first": draw.matrix(3, 3, 3, channels),
        "down": [block(widths[max(0, n - 1)], w) for n, w in enumerate(widths)],
        "bottom": block(widths[-1], widths[-1]),
        "up": [block(above[n] + w, w) for n, w in enumerate(widths)],
        "last": draw.matrix(3, 3, channels, 3),
    }

    # What the stages hand on: the activation, the time, then those that wait for the way up.
    def down(p: Parameters, carry: Any) -> Any:
        x, time, *skips = carry
        x = _residual(p, x, time)
        rows, height, width, features = x.shape
        halved = x.reshape(rows, height // 2, 2, width // 2, 2, features).mean((2, 4))
        return halved, time, *skips, x

    def bottom(p: Parameters, carry: Any) -> Any:
        x, time, *skips = carry
        return _residual(p, x, time), time, *skips

    def up(p: Parameters, carry: Any) -> Any:
        x, time, *skips, skip = carry
        doubled = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        return bottom(p, (jnp.concatenate([doubled, skip], -1), time, *skips))

    def denoised(params: Parameters, x: jax.Array, time: jax.Array) -> jax.Array:
        frequencies = np.exp(np.linspace(0, -8, embedding // 2, dtype=np.float32))
        angles = time[:, None] * frequencies * 1e3
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        stages = [
            *[(down, p) for p in params["down"]],
            (bottom, params["bottom"]),
            *[(up, p) for p in reversed(params["up"])],
        ]
        carry = convolved(x, params["first"]), jax.nn.silu(waves @ params["time"])
        x, _ = _chained(stages, carry, remat)
        return convolved(jax.nn.silu(_group_norm(x, 1.0)), params["last"])

    def loss(params: Parameters, images: jax.Array, seed: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(seed))
        time = jax.random.uniform(keys[0], (batch,))
        noise = jax.random.normal(keys[1], images.shape)
        angle = (time * np.pi / 2)[:, None, None, None]
        noisy = jnp.cos(angle) * images + jnp.sin(angle) * noise
        return jnp.mean((denoised(params, noisy, time) - noise) ** 2)

    rng = np.random.default_rng(1)
    images = rng.standard_normal((batch, pixels, pixels, 3)).astype(np.float32)
    return trained(loss, params, ((images, np.uint32(0)),))


def _selective_scan(p: Parameters, u: jax.Array) -> jax.Array:
    """The recurrence of Mamba over time, of u [batch, length, inner]."""
    rate = jax.nn.softplus(u @ p["rate"] + p["rate_bias"])
    into, out = jnp.split(u @ p["into_out"], 2, axis=-1)
    decay = -jnp.exp(p["decay"])

    def step(state: jax.Array, each: Any) -> tuple[jax.Array, jax.Array]:
        u, rate, into, out = each
        state = state * jnp.exp(rate[..., None] * decay) + (rate * u)[..., None] * into[:, None]
        return state, jnp.einsum("bcn,bn->bc", state, out)

    by_time = jax.tree.map(lambda x: x.swapaxes(0, 1), (u, rate, into, out))
    start = jnp.zeros((u.shape[0], *p["decay"].shape))
    return jax.lax.scan(step, start, by_time)[1].swapaxes(0, 1) + u * p["through"]


def _mamba_layer(p: Parameters, x: jax.Array) -> jax.Array:
    u, gate = jnp.split((layer_norm(x) * p["scale"]) @ p["into"], 2, axis=-1)
    taps = p["taps"]
    before = jnp.pad(u, ((0, 0), (len(taps) - 1, 0), (0, 0)))
    u = sum(before[:, n : n + u.shape[1]] * taps[n] for n in range(len(taps)))
    y = _selective_scan(p, jax.nn.silu(u)) * jax.nn.silu(gate)
    return x + y @ p["out"]


def mamba(
    remat: Remat = "none",
    layers: int = 6,
    width: int = 64,
    states: int = 8,
    batch: int = 8,
    length: int = 64,
    vocabulary: int = 256,
) -> TrainingProgram:
    """Selective state spaces (Gu and Dao, Mamba, 2023): a scan over time inside each layer."""
    draw = _Drawn()
    inner = 2 * width

    def layer() -> Parameters:
        return {
            "scale": np.ones(width, np.float32),
            "into": draw.matrix(width, 2 * inner),
            "taps": draw.matrix(4, inner),
            "rate": draw.matrix(inner, inner) / 4,
            "rate_bias": np.full(inner, -3, np.float32),
            "into_out": draw.matrix(inner, 2 * states),
            "decay": np.tile(np.log(np.arange(1, states + 1, dtype=np.float32)), (inner, 1)),
            "through": np.ones(inner, np.float32),
            "out": draw.matrix(inner, width),
        }

    params = {"layers": [layer() for _ in range(layers)], "tokens": draw.matrix(vocabulary, width)}

    def loss(params: Parameters, tokens: jax.Array) -> jax.Array:
        x = params["tokens"][tokens[:, :-1]]
        x = _chained([(_mamba_layer, p) for p in params["layers"]], x, remat)
        return cross_entropy(layer_norm(x) @ params["tokens"].T, tokens[:, 1:])

    tokens = np.random.default_rng(1).integers(0, vocabulary, (batch, length + 1), np.int32)
    return trained(loss, params, ((tokens,),))


NETWORKS: Mapping[str, Callable[[Remat], TrainingProgram]] = {
    "scanned_gpt": scanned_gpt,
    "vit": vit,
    "diffusion": diffusion,
    "mamba": mamba,
}
