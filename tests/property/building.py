"""What steps of random programs draw from: the choices still to come, the values so far.

Shapes are few, so that compiled operations are shared between programs, and large enough for the
pool. Floats stay in a bounded range.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SHAPE = (16, 32)
CONSTANT = np.linspace(-1, 1, 512, dtype=np.float32).reshape(SHAPE)


@dataclasses.dataclass
class Builder:
    """A program while it runs: what was drawn, the values so far."""

    draw: random.Random
    values: list[Any]
    wild: bool
    online: bool  # may branch on values
    depth: int = 0
    forward: bool = False  # under forward-mode derivatives, where JAX refuses `custom_vjp`

    def any(self) -> Any:
        """One of the values, recent ones more often."""
        back = min(int(self.draw.expovariate(0.35)), len(self.values) - 1)
        return self.values[-1 - back]

    def one(self, accept: Callable[[Any], bool]) -> Any:
        """A recent value that is accepted, or None."""
        found = [x for x in self.values if accept(x)]
        return self.draw.choice(found[-6:]) if found else None

    def floats(self) -> jax.Array:
        """A float32 array of SHAPE."""
        x = self.one(lambda x: x.dtype == jnp.float32 and x.shape == SHAPE)
        return as_floats(self.any()) if x is None or self.draw.random() < 0.4 else x

    def ints(self) -> jax.Array:
        """An int32 array of SHAPE that no float had a part in, unless the program is wild."""
        x = self.one(lambda x: x.dtype == jnp.int32 and x.shape == SHAPE)
        if self.wild and self.draw.random() < 0.3:
            return (self.floats() * 8).astype(jnp.int32)
        return jnp.asarray(np.arange(512, dtype=np.int32).reshape(SHAPE) % 37) if x is None else x

    def small(self, x: jax.Array, below: int) -> jax.Array:
        """A scalar in [0, below) from integers."""
        return jnp.abs(jnp.sum(x) % below)

    def inner(self, seed: int) -> Builder:
        """For a function that JAX calls, maybe often (a body, a branch)."""
        draw = random.Random(seed)
        return Builder(draw, [], self.wild, self.online, self.depth + 1, self.forward)


def as_floats(x: jax.Array) -> jax.Array:
    """Any value as bounded float32 of SHAPE."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x) & 0xFF
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = x.real + x.imag
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32) * 0.01
    x = jnp.sin(x.astype(jnp.float32)).reshape(-1)
    repeats = -(-512 // max(x.size, 1))
    return jnp.tile(x, repeats)[:512].reshape(SHAPE) if x.size != 512 else x.reshape(SHAPE)
