"""GPT-2 (Radford et al., 2019) in plain JAX, trained with Optax's AdamW.

Parameters and optimizer state are float32. In bfloat16 the step casts the parameters, computes in
bfloat16, and takes layer norms and the loss in float32.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = dict[str, Any]
State = tuple[Params, Any]  # parameters, state of the optimizer
Step = Callable[[State, Any], tuple[State, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network and of its batch."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int


SHAPES = {
    # 124 million parameters. 50257 tokens, padded to a multiple of 128 as is usual.
    "paper": Shape(layers=12, width=768, heads=12, vocabulary=50304, length=1024, batch=8),
    "tiny": Shape(layers=4, width=64, heads=4, vocabulary=256, length=64, batch=16),
}


def initial_params(shape: Shape) -> Params:
    """Parameters as NumPy arrays, the same in each process."""
    rng = np.random.default_rng(0)
    width, depth_scale = shape.width, (2 * shape.layers) ** -0.5

    def normal(*dims: int, scale: float = 1.0) -> Any:
        return np.float32(0.02 * scale) * rng.standard_normal(dims, dtype=np.float32)

    def dense(rows: int, columns: int, scale: float = 1.0) -> Params:
        return {"w": normal(rows, columns, scale=scale), "b": np.zeros(columns, np.float32)}

    def norm() -> Params:
        return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

    layers = [
        {
            "norm_attention": norm(),
            "qkv": dense(width, 3 * width),
            "out": dense(width, width, depth_scale),
            "norm_mlp": norm(),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width, depth_scale),
        }
        for _ in range(shape.layers)
    ]
    return {
        "tokens": normal(shape.vocabulary, width),
        "positions": normal(shape.length, width),
        "layers": layers,
        "norm": norm(),
    }


def batch_of(shape: Shape, number: int) -> Any:
    """Tokens int32[batch, length + 1]."""
    rng = np.random.default_rng(number)
    return rng.integers(0, shape.vocabulary, (shape.batch, shape.length + 1), dtype=np.int32)


def _norm(params: Params, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (scaled * params["scale"] + params["bias"]).astype(x.dtype)


def _dense(params: Params, x: Any) -> Any:
    return x @ params["w"] + params["b"]


def _layer(params: Params, x: Any, *, heads: int) -> Any:
    batch, length, width = x.shape
    qkv = _dense(params["qkv"], _norm(params["norm_attention"], x))
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, heads, width // heads), 2, 0)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    x = x + _dense(params["out"], mixed)
    hidden = jax.nn.gelu(_dense(params["up"], _norm(params["norm_mlp"], x)))
    return x + _dense(params["down"], hidden)


def make_step(shape: Shape, dtype: str, *, checkpoints: bool = False) -> tuple[Step, Any]:
    """A train step `step(state, tokens) -> (state, loss)`, and the optimizer of its state.

    Args:
      shape: of the network.
      dtype: in which it computes, "float32" or "bfloat16".
      checkpoints: whether a `jax.checkpoint` is around each layer.
    """
    optimizer = optax.adamw(3e-4)
    layer: Any = functools.partial(_layer, heads=shape.heads)
    if checkpoints:
        layer = jax.checkpoint(layer)

    def loss(params: Params, tokens: Any) -> Any:
        params = jax.tree.map(lambda p: p.astype(dtype), params)
        x = params["tokens"][tokens[:, :-1]] + params["positions"]
        for layer_params in params["layers"]:
            x = layer(layer_params, x)
        logits = (_norm(params["norm"], x) @ params["tokens"].T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(state: State, tokens: Any) -> tuple[State, Any]:
        params, optimizer_state = state
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), value

    return step, optimizer
