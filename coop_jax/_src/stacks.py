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
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax._src import costs, primitives
from coop_jax._src.compat import equation_keys, jaxprs
from coop_jax._src.equations import LiteralValue, MadeEquation, Typed
from coop_jax._src.kernels import Kernel, KernelCache

if TYPE_CHECKING:
    from coop_jax._src.flattening import Flattener

# A view inside a block begins at a multiple of this: what XLA asks of parameters, on CPU the most.
VIEW_ALIGNMENT_BYTES = 64

# Where operations are fused, a stack that takes so small a part of what the program is given is put
# together once it is computed with: the update of biases would be an operation for each layer.
SMALL_SHARE = 1 / 512

_FAN = 8  # of the tree that puts a stack together

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
    nbytes = costs.nbytes(part_aval(aval))
    return nbytes > 0 and nbytes % VIEW_ALIGNMENT_BYTES == 0


def index_kernel(cache: KernelCache, aval: Any) -> Kernel:
    """Of an array and a position (int32): the slice there, without the leading axis."""
    moved = 2 * costs.nbytes(part_aval(aval))
    return cache.from_function(index, [aval, _POSITION], moved_bytes=moved)


def put_together(parts: Sequence[Any], run: Callable[[Callable[..., Any], list[Any]], Any]) -> Any:
    """The whole of the parts, by a tree of operations.

    Each holds few values at a time: many parts that may not be evicted lie in the way of each
    other's place and of that of the whole.

    Args:
      parts: at least one.
      run: runs a function of arrays on some of them as one operation.
    """
    level, function = list(parts), stack
    while len(level) > 1 or function is stack:
        width = len(level) if len(level) <= 2 * _FAN else _FAN
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


def update_kernel(
    cache: KernelCache,
    eqn: Any,
    operands: Sequence[str | LiteralValue],
    in_avals: Sequence[Any],
    out_aval: Any,
) -> Kernel:
    """Of the array so far, other operands and a position: that with one part computed anew.

    Args:
      cache: where kernels live.
      eqn: an element by element equation.
      operands: for each operand of it how the kernel gets it: the array that is written over
        ("over"), an array of the whole shape ("whole"), a part ("part"), a scalar ("scalar"), or a
        literal. The kernel takes "over" first, then the others but for literals, then the position.
      in_avals: of what the kernel takes, without the position.
      out_aval: of the equation's result.
    """
    part = part_aval(out_aval)

    def function(*given: Any) -> Any:
        over, *others, at = given
        rest = iter(others)
        ins = []
        for kind in operands:
            if isinstance(kind, LiteralValue):
                ins.append(kind.value)
            elif kind == "over":
                ins.append(index(over, at))
            else:
                x = next(rest)
                ins.append(index(x, at) if kind == "whole" else x)
        (new,) = jaxprs.bind(eqn.primitive, eqn.params, eqn.ctx, ins)
        return jax.lax.dynamic_update_index_in_dim(over, jaxprs.strong(new), at, 0)

    kinds = ["over", *(k for k in operands if isinstance(k, str) and k != "over")]
    read = sum(
        costs.nbytes(part_aval(a) if k in ("over", "whole") else a)
        for k, a in zip(kinds, in_avals, strict=True)
    )
    return cache.from_function(
        function,
        [*in_avals, _POSITION],
        moved_bytes=read + costs.nbytes(part),
        in_place_operands=(0,),
    )


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


def part_by_part(
    program: Flattener, eqn: Any, operands: Sequence[Any], in_avals: Sequence[Any], out_aval: Any
) -> Any:
    """An element by element equation of which at least one operand is a stack, in a program."""
    whole = [
        k
        for k, (x, a) in enumerate(zip(operands, in_avals, strict=True))
        if a.shape and not isinstance(x, Stack)
    ]
    over = next((k for k in whole if in_avals[k].dtype == out_aval.dtype), None)
    if over is None or not program.can_lie_in_pool(out_aval):
        part_eqn = MadeEquation(
            eqn.primitive,
            eqn.params,
            eqn.ctx,
            eqn.source_info,
            tuple(Typed(part_aval(a) if a.shape else a) for a in in_avals),
            (Typed(part_aval(out_aval)),),
        )
        parts = [
            program.equation(
                part_eqn,
                [
                    program.part(x, i) if a.shape else x
                    for x, a in zip(operands, in_avals, strict=True)
                ],
            )[0]
            for i in range(out_aval.shape[0])
        ]
        return Stack(parts, out_aval)
    return _written_over(program, eqn, operands, over, out_aval)


def _written_over(
    program: Flattener, eqn: Any, operands: Sequence[Any], over: int, out_aval: Any
) -> int:
    kinds: list[str | LiteralValue] = []
    given: list[Any] = []  # by position in the kernel, after the first
    for k, x in enumerate(operands):
        if isinstance(x, LiteralValue):
            kinds.append(x)
        elif x is operands[over] or (k != over and x == operands[over]):
            kinds.append("over")
        else:
            kinds.append(
                "part" if isinstance(x, Stack) else "whole" if program.avals[x].shape else "scalar"
            )
            given.append(x)
    result: int = operands[over]
    kernels: dict[Any, Kernel] = {}  # traced once: parts are alike
    for i in range(out_aval.shape[0]):
        others = [program.number(program.part(x, i) if isinstance(x, Stack) else x) for x in given]
        in_avals = [program.avals[n] for n in (result, *others)]
        key = tuple(map(equation_keys.aval_key, in_avals))
        if key not in kernels:
            kernels[key] = update_kernel(program.cache, eqn, kinds, in_avals, out_aval)
        (result,) = program.emit(
            kernels[key],
            [result, *others, program.position(i)],
            jaxprs.source_of(eqn.source_info),
            jaxprs.name_stack_of(eqn.source_info),
        )
    return result


_POSITION = jaxprs.ShapedArray((), np.dtype(np.int32))
