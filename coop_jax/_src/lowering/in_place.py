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
    chooser = _Chooser(flattener, operations, inputs, outputs, donated)
    for index, op in enumerate(operations):
        chooser.pair_first_result(index, op)
        if op.kernel.is_group:
            chooser.pair_results_of_group(index, op)
    return chooser.chosen


class _Chooser:
    """Looks at operations in order; `chosen` is what was decided so far."""

    def __init__(
        self,
        flattener: Builder,
        operations: Sequence[RawOperation],
        inputs: Sequence[int],
        outputs: Sequence[int],
        donated: Sequence[bool],
    ):
        storage_of, avals = flattener.storages, flattener.avals
        self._flattener, self._storage_of, self._avals = flattener, storage_of, avals
        self._last_use: dict[int, int] = {}
        for index, op in enumerate(operations):
            self._last_use.update((storage_of[v], index) for v in op.operands)
        given = list(enumerate(zip(inputs, donated, strict=True)))
        self._kept = {storage_of[v] for v in outputs}
        self._kept.update(storage_of[v] for _, (v, d) in given if not d)
        self._kept.update(storage_of[v] for v, _ in flattener.constants)
        self.chosen = InPlace({}, {storage_of[v]: k for k, (v, d) in given if d})

        def kind(value: int) -> tuple[int, Any]:
            return storage_of[value], (avals[value].shape, avals[value].dtype)

        replaced = replaced_inputs([kind(v) for v in inputs], donated, [kind(v) for v in outputs])
        for op in reversed(operations):
            # What is written over part by part ends up where its first form lies.
            if op.kernel.touches_part and op.kernel.in_place_operands:
                end = replaced.get(storage_of[op.results[0]])
                if end is not None:
                    first = op.operands[op.kernel.in_place_operands[0]]
                    replaced.setdefault(storage_of[first], end)
        self._replaced = replaced  # storage -> the donated input whose place it takes

    def _origin(self, value: int) -> int | None:
        """The donated input that a value's memory descends from."""
        return self.chosen.origin.get(self._storage_of[value])

    def _is_own(self, op: RawOperation, result: int, number: int) -> bool:
        """Whether a result replaces the donated input that an operand descends from."""
        origin = self._origin(op.operands[number])
        return origin is not None and origin == self._replaced.get(
            self._storage_of[op.results[result]]
        )

    def _dies(self, op: RawOperation, index: int, number: int) -> bool:
        """Whether nobody else reads an operand, so that a result may take its memory."""
        storage = self._storage_of[op.operands[number]]
        return (
            self._last_use[storage] == index
            and storage not in self._kept
            and sum(self._storage_of[v] == storage for v in op.operands) == 1
            and not self._flattener.is_part(op.operands[number])
            and storage not in self._flattener.fixed_outside
        )

    def _stays(self, result: int) -> bool:
        """Whether a result is one of the program, or becomes one where it lies."""
        storage = self._storage_of[result]
        return storage in self._kept or storage in self._replaced

    def _pair(self, op: RawOperation, index: int, result: int, number: int) -> None:
        self.chosen.pairs[index, result] = number
        origin = self._origin(op.operands[number])
        if origin is not None:
            self.chosen.origin[self._storage_of[op.results[result]]] = origin

    def pair_first_result(self, index: int, op: RawOperation) -> None:
        """Pairs an operation's first result with the best of the operands that it may overwrite."""
        last = len(self._avals)  # behind every input
        candidates = [
            (
                not self._is_own(op, 0, n),
                self.chosen.origin.get(self._storage_of[op.operands[n]], last),
                n,
            )
            for n in op.kernel.in_place_operands
            if self._dies(op, index, n)
        ]
        if candidates and self._flattener.can_lie_in_pool(self._avals[op.results[0]]):
            self._pair(op, index, 0, min(candidates)[2])

    def pair_results_of_group(self, index: int, op: RawOperation) -> None:
        """Pairs what a group (an optimizer's update, say) replaces of donated inputs, in order."""
        taken = self.chosen.pairs.get((index, 0), -1)
        origins = {
            n: origin
            for n, v in enumerate(op.operands)
            if n != taken and (origin := self._origin(v)) is not None and self._dies(op, index, n)
        }
        free = sorted(origins, key=origins.__getitem__)
        for own in (True, False):
            for k, result in enumerate(op.results):
                wanted = self._avals[result]
                if (index, k) in self.chosen.pairs or not self._stays(result):
                    continue
                for n in free:
                    aval = self._avals[op.operands[n]]
                    if (aval.shape, aval.dtype) == (wanted.shape, wanted.dtype) and (
                        not own or self._is_own(op, k, n)
                    ):
                        if self._flattener.can_lie_in_pool(wanted):
                            self._pair(op, index, k, n)
                            free.remove(n)
                        break


def completed_origins(
    origin: dict[int, int], storage_of: Sequence[int], outputs: Sequence[int]
) -> set[int]:
    """Donated inputs whose memory an output ends up in."""
    return {origin[storage_of[v]] for v in outputs if storage_of[v] in origin}
