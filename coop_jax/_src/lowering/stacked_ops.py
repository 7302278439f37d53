"""Element by element operations on stacks, done part by part.

A gradient that is only scaled and subtracted never exists as a whole. Where such an operation also
reads a whole array (the parameters), its result is written part by part over that array, which is
in place if the array dies there.

Thread rule: that of the program being built. Cost: as many operations as there are parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from coop_jax._src.compat import equation_keys, jaxprs
from coop_jax._src.ir import cost_model, stacks
from coop_jax._src.ir.equations import LiteralValue, MadeEquation, Typed
from coop_jax._src.ir.kernels import Kernel, KernelCache
from coop_jax._src.ir.stacks import Stack
from coop_jax._src.lowering.builder import Walk


def part_by_part(
    program: Walk, eqn: Any, operands: Sequence[Any], in_avals: Sequence[Any], out_aval: Any
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
            tuple(Typed(stacks.part_aval(a) if a.shape else a) for a in in_avals),
            (Typed(stacks.part_aval(out_aval)),),
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
    program: Walk, eqn: Any, operands: Sequence[Any], over: int, out_aval: Any
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
            jaxprs.source_of(eqn.source_info, program.caller.source),
            jaxprs.name_stack_of(eqn.source_info),
        )
    return result


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
    part = stacks.part_aval(out_aval)

    def function(*given: Any) -> Any:
        over, *others, at = given
        rest = iter(others)
        ins = []
        for kind in operands:
            if isinstance(kind, LiteralValue):
                ins.append(kind.value)
            elif kind == "over":
                ins.append(stacks.index(over, at))
            else:
                x = next(rest)
                ins.append(stacks.index(x, at) if kind == "whole" else x)
        (new,) = jaxprs.bind(eqn.primitive, eqn.params, eqn.ctx, ins)
        return jax.lax.dynamic_update_index_in_dim(over, jaxprs.strong(new), at, 0)

    kinds = ["over", *(k for k in operands if isinstance(k, str) and k != "over")]
    read = sum(
        cost_model.nbytes(stacks.part_aval(a) if k in ("over", "whole") else a)
        for k, a in zip(kinds, in_avals, strict=True)
    )
    return cache.from_function(
        function,
        [*in_avals, stacks.POSITION],
        moved_bytes=read + cost_model.nbytes(part),
        in_place_operands=(0,),
    )
