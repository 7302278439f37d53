"""The gradient of max pooling, at a fraction of the time and memory that XLA takes for it.

`select_and_scatter_add` adds each element of `source` to the element of `operand` that its window
selects. XLA expands it to a scatter: index arrays of several times the operand, and a loop that
goes element by element. Here each window's selection is a number, and each element of the result
the sum over the windows that selected it: 1.5 to 20 times faster on CPU, most where channels come
last (`python -m tests.benchmarks.pooling`).

Invariant: the same bits as JAX on CPU, also with ties, NaNs, infinities, negative zeros and
padding. So windows compare in XLA's order, and a sum adds from 0 in the order of the windows.
(Where several NaNs are added, whose sign the sum has is the machine code's choice, also there.)
Thread rule: pure functions of arrays or tracers. Cost: equations linear in the window's elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coop_jax._src.ir import constants

# Types whose least and greatest values are infinities, which is what JAX pads with.
_DTYPES = frozenset(map(np.dtype, (jnp.bfloat16, np.float16, np.float32, np.float64)))


def is_known(primitive: Any, params: dict[str, Any], operands: Sequence[Any]) -> bool:
    """Whether `select_and_scatter_add` computes the same as this equation."""
    return (
        primitive.name == "select_and_scatter_add"
        and params["select_prim"] in (lax.ge_p, lax.le_p)
        and np.prod(params["window_dimensions"]) <= constants.TUNED.pooling_max_window_elements
        and all(isinstance(x, jax.Array) for x in operands)  # no numbers
        and operands[0].dtype in _DTYPES
        and operands[0].size > 0
    )


def select_and_scatter_add(
    source: Any,
    operand: Any,
    *,
    select_prim: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> jax.Array:
    """Adds each element of `source` to the element of `operand`'s shape that its window selects.

    Args:
      source: an element for each window, of `operand`'s dtype.
      operand: what is compared: bfloat16, float16, float32 or float64.
      select_prim: `lax.ge_p` or `lax.le_p`: whether what was selected so far stays.
      window_dimensions: of a window, in elements.
      window_strides: from window to window, in elements.
      padding: elements before and after, for each dimension.

    Returns:
      An array of `operand`'s shape and dtype.
    """
    dtype = operand.dtype
    worst = -np.inf if select_prim is lax.ge_p else np.inf
    padded = lax.pad(operand, _scalar(worst, dtype), [(low, high, 0) for low, high in padding])
    places = [
        _Place(at, source.shape, window_strides, padded.shape)
        for at in itertools.product(*map(range, window_dimensions))
    ]
    best = places[0].read(padded)
    chosen = lax.full(source.shape, 0, np.int8)
    for number, place in enumerate(places[1:], 1):
        candidate = place.read(padded)
        stays = select_prim.bind(best, candidate)
        best = lax.select(stays, best, candidate)
        chosen = lax.select(stays, chosen, lax.full_like(chosen, number))
    # Of the windows over an element the first has it at its end.
    nothing = lax.full_like(source, 0)
    total = None
    for number, place in reversed(list(enumerate(places))):
        share = lax.select(lax.eq(chosen, lax.full_like(chosen, number)), source, nothing)
        share = place.spread(share)
        total = share if total is None else lax.add(total, share)
    assert total is not None
    # 0 + -0.0 is 0; XLA takes it for -0.0 where it knows the 0.
    zero = lax.full_like(total, 0)
    total = lax.select(lax.eq(total, zero), zero, total)
    start = [low for low, _ in padding]
    end = [low + n for low, n in zip(start, operand.shape, strict=True)]
    return lax.slice(total, start, end)


class _Place:
    """An element of the window: where it lies in all windows."""

    def __init__(
        self,
        at: Sequence[int],
        counts: Sequence[int],
        strides: Sequence[int],
        shape: Sequence[int],
    ):
        self._at = at
        self._strides = strides
        self._end = [a + (n - 1) * s + 1 for a, n, s in zip(at, counts, strides, strict=True)]
        self._after = [n - end for n, end in zip(shape, self._end, strict=True)]

    def read(self, padded: Any) -> Any:
        """The element in each window."""
        return lax.slice(padded, self._at, self._end, self._strides)

    def spread(self, values: Any) -> Any:
        """A value for each window where it has the element, zeros elsewhere."""
        between = [s - 1 for s in self._strides]
        config = list(zip(self._at, self._after, between, strict=True))
        return lax.pad(values, _scalar(0, values.dtype), config)


def _scalar(value: float, dtype: Any) -> Any:
    return lax.full((), value, dtype)
