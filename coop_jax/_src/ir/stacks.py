"""Stacks: what a scan stacks, kept as separate values until something needs the whole.

A `Stack` holds one part per iteration. A later scan over it reads the parts, which are the
originals; element by element operations on it are done part by part, so that a gradient that is
only scaled and subtracted never exists as a whole (a small one does, where operations are fused).
Where such an operation also reads a whole array (the parameters), its result is written part by
part over that array, which is in place if the array dies there. Parts may be stacks (nested scans).
An operation that needs the whole puts it together, once.

Front ends differ in what a part is (a value number here, a session's value there); this module only
knows that parts of kind `Stack` are stacks.
Invariants: parts have the stack's shape without its leading axis; `whole`, once made, has the same
contents. Thread rule: a stack belongs to the walk or session that made it.
Cost: as many operations as there are parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir import constants, cost_model, primitives
from coop_jax._src.ir.kernels import Kernel, KernelCache

# A view inside a block begins at a multiple of this: what XLA asks of parameters, on CPU the most.
VIEW_ALIGNMENT_BYTES = 64

_PART_BY_PART = primitives.ELEMENTWISE | {"convert_element_type", "reduce_precision", "copy"}


@dataclasses.dataclass(slots=True)
class Stack:
    """Stacked outputs of a scan, one value per iteration, not put together yet.

    Attributes:
      parts: one for each position.
      aval: of the whole.
      whole: the value of the whole, once something needed it.
      last_use: whether the scan that reads it next is most likely the last one to do so.
    """

    parts: list[Any]
    aval: Any
    whole: Any = None
    last_use: bool = False

    def release(self, hint: Callable[[Any], None]) -> None:
        """Calls `hint` for each value that is not read again, once."""
        if self.whole is not None:
            hint(self.whole)
        elif not self.last_use:
            self.last_use = True
            for part in self.parts:
                if isinstance(part, Stack):
                    part.release(hint)
                elif hasattr(part, "storage"):
                    hint(part)


def parts_of(x: Any) -> list[Any]:
    """The values that a value or a stack consists of, as far as there are any."""
    if not isinstance(x, Stack):
        return [x] if hasattr(x, "storage") else []
    return parts_of(x.whole) if x.whole is not None else [v for y in x.parts for v in parts_of(y)]


def part_aval(aval: Any) -> Any:
    """The abstract value of a part."""
    return jaxprs.ShapedArray(aval.shape[1:], aval.dtype, weak_type=False)


def is_part_by_part(primitive: Any, out_avals: Sequence[Any], in_avals: Sequence[Any]) -> bool:
    """Whether each element of the one result depends on the same element of the operands only."""
    if primitive.name not in _PART_BY_PART or len(out_avals) != 1:
        return False
    shape = out_avals[0].shape
    return bool(shape) and all(a.shape in ((), shape) for a in in_avals)


def may_view_part(aval: Any) -> bool:
    """Whether a slice along the leading axis can be read where it lies."""
    nbytes = cost_model.nbytes(part_aval(aval))
    return nbytes > 0 and nbytes % VIEW_ALIGNMENT_BYTES == 0


def index_kernel(cache: KernelCache, aval: Any) -> Kernel:
    """Of an array and a position (int32): the slice there, without the leading axis."""
    moved = 2 * cost_model.nbytes(part_aval(aval))
    return cache.from_function(index, [aval, POSITION], moved_bytes=moved)


def put_together(parts: Sequence[Any], run: Callable[[Callable[..., Any], list[Any]], Any]) -> Any:
    """The whole of the parts, by a tree of operations.

    Each holds few values at a time: many parts that may not be evicted lie in the way of each
    other's place and of that of the whole.

    Args:
      parts: at least one.
      run: runs a function of arrays on some of them as one operation.
    """
    level, function, fan_in = list(parts), stack, constants.TUNED.stack_fan_in
    while len(level) > 1 or function is stack:
        width = len(level) if len(level) <= 2 * fan_in else fan_in
        groups = [level[k : k + width] for k in range(0, len(level), width)]
        level = [
            run(function, group) if function is stack or len(group) > 1 else group[0]
            for group in groups
        ]
        function = _concatenate
    return level[0]


def index(x: Any, at: Any) -> Any:
    """The slice of an array at a position along its leading axis."""
    return jax.lax.dynamic_index_in_dim(x, at, keepdims=False)


def stack(*xs: Any) -> Any:
    """Arrays along a new leading axis."""
    return jnp.stack(xs)


def _concatenate(*xs: Any) -> Any:
    return jnp.concatenate(xs)


def selected(
    primitive: Any, params: dict[str, Any], stack: Stack, starts: Sequence[Any], out_aval: Any
) -> Any:
    """The parts that a slice along the leading axis names, as a stack or as the one part.

    None for anything else. `starts` are the values of further operands that are known.
    """
    shape, name = stack.aval.shape, primitive.name
    if name == "slice":
        strides = params["strides"] or (1,) * len(shape)
        begin, end = params["start_indices"], params["limit_indices"]
        others = list(zip(begin, end, strides, shape, strict=True))[1:]
        if begin[0] == end[0] or any((a, b, c) != (0, n, 1) for a, b, c, n in others):
            return None
        return Stack(stack.parts[begin[0] : end[0] : strides[0]], out_aval)
    if name == "dynamic_slice":
        sizes = params["slice_sizes"]
        if starts[0] is None or tuple(sizes[1:]) != tuple(shape[1:]) or sizes[0] == 0:
            return None
        begin = min(max(int(starts[0]), 0), shape[0] - sizes[0])
        return Stack(stack.parts[begin : begin + sizes[0]], out_aval)
    if name == "squeeze" and tuple(params["dimensions"]) == (0,):
        return stack.parts[0]
    if name == "rev" and tuple(params["dimensions"]) == (0,):
        return Stack(stack.parts[::-1], out_aval)
    return None


# The abstract value of a position along an axis.
POSITION = jaxprs.ShapedArray((), np.dtype(np.int32))
