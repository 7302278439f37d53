"""Which results are written over which operands, by what the program says alone.

Invariant: an in-place result has the shape and dtype of the operand it overwrites, whose storage no
later operation uses.
Thread rule: functions of their arguments. Cost: linear in operations and operands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from coop_jax._src.ir.raw_operations import RawOperation
from coop_jax._src.ir.replaced_inputs import replaced_inputs
from coop_jax._src.lowering.builder import Builder


@dataclasses.dataclass(slots=True)
class InPlace:
    pairs: dict[tuple[int, int], int]  # (operation, result number) -> operand number
    origin: dict[int, int]  # storage -> donated input whose memory it takes over


def choose_in_place(
    flattener: Builder,
    operations: Sequence[RawOperation],
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Sequence[bool],
) -> InPlace:
    """Pairs results with operands that die there.

    Where an operand descends from a donated input, it is preferred, and before all from the one
    that the result replaces: so an updated parameter ends up at the address of the old one. Where
    they changed places, every step would find another pool, and be planned anew.
    """
    storage_of, avals = flattener.storages, flattener.avals
    last_use: dict[int, int] = {}
    for index, op in enumerate(operations):
        last_use.update((storage_of[v], index) for v in op.operands)
    kept = {storage_of[v] for v in outputs}
    kept.update(storage_of[v] for v, d in zip(inputs, donated, strict=True) if not d)
    kept.update(storage_of[v] for v, _ in flattener.constants)
    chosen = InPlace(
        {}, {storage_of[v]: k for k, (v, d) in enumerate(zip(inputs, donated, strict=True)) if d}
    )

    def kind(value: int) -> tuple[int, Any]:
        return storage_of[value], (avals[value].shape, avals[value].dtype)

    replaced = replaced_inputs([kind(v) for v in inputs], donated, [kind(v) for v in outputs])
    for op in reversed(operations):
        # What is written over part by part ends up where its first form lies.
        if op.kernel.touches_part and op.kernel.in_place_operands:
            end = replaced.get(storage_of[op.results[0]])
            if end is not None:
                replaced.setdefault(storage_of[op.operands[op.kernel.in_place_operands[0]]], end)

    def is_own(op: RawOperation, result: int, number: int) -> bool:
        """Whether a result replaces the donated input that an operand descends from."""
        origin = chosen.origin.get(storage_of[op.operands[number]])
        return origin is not None and origin == replaced.get(storage_of[op.results[result]])

    def dies(op: RawOperation, index: int, number: int) -> bool:
        """Whether nobody else reads an operand, so that a result may take its memory."""
        storage = storage_of[op.operands[number]]
        return (
            last_use[storage] == index
            and storage not in kept
            and sum(storage_of[v] == storage for v in op.operands) == 1
            and not flattener.is_part(op.operands[number])
            and storage not in flattener.fixed_outside
        )

    def stays(result: int) -> bool:
        """Whether a result is one of the program, or becomes one where it lies."""
        return storage_of[result] in kept or storage_of[result] in replaced

    def pair(op: RawOperation, index: int, result: int, number: int) -> None:
        storage = storage_of[op.operands[number]]
        chosen.pairs[index, result] = number
        if storage in chosen.origin:
            chosen.origin[storage_of[op.results[result]]] = chosen.origin[storage]

    for index, op in enumerate(operations):
        candidates = [
            (not is_own(op, 0, n), chosen.origin.get(storage_of[op.operands[n]], len(inputs)), n)
            for n in op.kernel.in_place_operands
            if dies(op, index, n)
        ]
        taken = -1
        if candidates and flattener.can_lie_in_pool(avals[op.results[0]]):
            taken = min(candidates)[2]
            pair(op, index, 0, taken)
        if not op.kernel.is_group:
            continue
        # A group (an optimizer's update, say): what it replaces of the donated inputs, in order.
        free = [
            n
            for n, v in enumerate(op.operands)
            if n != taken and storage_of[v] in chosen.origin and dies(op, index, n)
        ]
        free.sort(key=lambda n: chosen.origin[storage_of[op.operands[n]]])
        for own in (True, False):
            for k, result in enumerate(op.results):
                wanted = avals[result]
                if (index, k) in chosen.pairs or not stays(result):
                    continue
                for n in free:
                    aval = avals[op.operands[n]]
                    if (aval.shape, aval.dtype) == (wanted.shape, wanted.dtype) and (
                        not own or is_own(op, k, n)
                    ):
                        if flattener.can_lie_in_pool(wanted):
                            pair(op, index, k, n)
                            free.remove(n)
                        break
    return chosen


def completed_origins(
    origin: dict[int, int], storage_of: Sequence[int], outputs: Sequence[int]
) -> set[int]:
    """Donated inputs whose memory an output ends up in."""
    return {origin[storage_of[v]] for v in outputs if storage_of[v] in origin}
