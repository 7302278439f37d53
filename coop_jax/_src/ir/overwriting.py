"""Which operands an operation may write its result over, by what it computes.

Invariant: only single equations that read each element of the operand before they write it, or that
write a part of it and leave the rest as it is. Cost: O(operands).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coop_jax._src.ir import primitives
from coop_jax._src.ir.equations import Equation


def operands_of_result(
    equations: Sequence[Equation], in_avals: Sequence[Any], out_avals: Sequence[Any]
) -> tuple[int, ...]:
    """Operands of the one result's shape and dtype that it may take the memory of."""
    if len(equations) != 1 or len(out_avals) != 1:
        return ()
    name, operands = equations[0].primitive.name, equations[0].operands
    if name in primitives.ELEMENTWISE:
        candidates = [x for x in operands if isinstance(x, int)]
    elif name in primitives.UPDATES and isinstance(operands[0], int):
        candidates = [operands[0]] if list(operands).count(operands[0]) == 1 else []
    else:
        return ()
    out = out_avals[0]
    same = [
        x for x in candidates if in_avals[x].shape == out.shape and in_avals[x].dtype == out.dtype
    ]
    return tuple(dict.fromkeys(same))


def rewritten(
    equations: Sequence[Equation], in_place_operands: Sequence[int], *, touches_part: bool
) -> int:
    """The operand of which the result is a copy but for a part that is written; -1 for none."""
    writes_part = touches_part or (
        len(equations) == 1 and equations[0].primitive.name in primitives.UPDATES
    )
    return in_place_operands[0] if writes_part and in_place_operands else -1
