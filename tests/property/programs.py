"""Random JAX programs, each from a seed.

Model. A program is a Python function of arrays that draws what it does next from a generator of its
own, seeded anew at each call: it makes the same choices whenever and however it is traced, because
choices depend on the seed, on shapes and on dtypes, never on values. It keeps a list of values; a
step reads some of them and appends what it makes. `steps` holds operations and what belongs to
them, `blocks` what builds smaller programs (control flow, derivatives, nested functions).

What decides (branches, trip counts, indices) is computed from integers alone, so that plain JAX
decides alike though its floats differ in the last bits; `wild` programs decide on floats too, and
are compared with themselves only.
Cost: tens of steps, each a handful of equations.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blocks import BLOCKS
from building import CONSTANT, SHAPE, Builder
from steps import STEPS


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    """A function, example arguments, and what may be done with it.

    Attributes:
      fn: of arrays, to a list of arrays.
      args: NumPy arrays.
      donate: positions that the function may take the memory of.
      wild: whether floats decide, so that only the same front end gives comparable values.
      online: whether it may branch on values.
    """

    fn: Callable[..., list[Any]]
    args: tuple[np.ndarray, ...]
    donate: tuple[int, ...]
    wild: bool
    online: bool


def random_program(seed: int) -> RandomProgram:
    """The program of a seed."""
    draw = random.Random(seed)
    wild, online = draw.random() < 0.25, draw.random() < 0.5
    count = draw.randint(8, 18)
    values = np.random.default_rng(seed)
    args = [values.uniform(-1, 1, SHAPE).astype(np.float32) for _ in range(draw.randint(2, 4))]
    args.append(values.integers(-50, 50, SHAPE).astype(np.int32))
    if draw.random() < 0.2:
        args[1] = args[0]  # the same array twice
    donate = tuple(i for i in range(len(args)) if draw.random() < 0.4)
    inside = draw.getrandbits(32)

    def fn(*given: jax.Array) -> list[Any]:
        b = Builder(random.Random(inside), [jnp.asarray(x) for x in given], wild, online)
        for _ in range(count):
            table = BLOCKS if b.draw.random() < 0.3 else STEPS
            b.values += b.draw.choice(table)(b)
        made = b.values[len(given) :]
        out = [b.draw.choice(made) for _ in range(b.draw.randint(1, 4))] + made[-1:]
        if b.draw.random() < 0.2:
            out.append(b.draw.choice(given))  # an argument
        if b.draw.random() < 0.2:
            out += [out[0], jnp.asarray(CONSTANT)]  # a value twice, a constant
        return out

    return RandomProgram(fn, tuple(args), donate, wild, online)
