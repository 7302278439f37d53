"""What the transformers share: attention, with its internals in a checkpoint if asked, and dropout.

Selective activation recomputation (Korthikanti et al., Reducing Activation Recomputation in Large
Transformer Models, 2022) keeps queries, keys and values, and recomputes scores, softmax, dropout
and their product with the values: large to keep, cheap to compute.

Dropout takes its key as an argument, so that the masks do not depend on where checkpoints are.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from examples.paper.networks.base import Remat


def dropout(key: jax.Array, x: jax.Array, rate: float) -> jax.Array:
    """Zeroes a share of `rate`, and scales the others so that the mean stays."""
    if rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return _keep(kept, x, 1 - rate)


@functools.partial(jax.jit, static_argnums=2)
def _keep(kept: jax.Array, x: jax.Array, share: float) -> jax.Array:
    return jnp.where(kept, x / share, 0)


@jax.jit
def biased_softmax(scores: jax.Array, bias: jax.Array) -> jax.Array:
    """Softmax over the last axis of scores plus a bias (a mask, say).

    One jitted call, as the fused kernels of the frameworks: only its result is kept for the
    backward pass.
    """
    return jax.nn.softmax(scores + bias)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array,
    key: jax.Array | None = None,
    rate: float = 0.0,
    remat: Remat = "none",
) -> jax.Array:
    """Scaled dot-product attention.

    Args:
      q, k, v: [..., length, heads, features].
      bias: added to the scores, of a shape that broadcasts to [..., heads, length, length].
      key, rate: of the dropout of attention weights; no key, no dropout.
      remat: "selective" recomputes everything between q, k, v and the result.

    Returns:
      [..., length, heads, features].
    """

    def core(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
        scores = jnp.einsum("...qhd,...khd->...hqk", q / math.sqrt(q.shape[-1]), k)
        weights = biased_softmax(scores, bias)
        if key is not None:
            weights = dropout(key, weights, rate)
        return jnp.einsum("...hqk,...khd->...qhd", weights, v)

    if remat == "selective":
        core = jax.checkpoint(core)
    return core(q, k, v, bias)
