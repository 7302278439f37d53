"""A program with neighbouring operations as segments (see `segment`).

Operations are taken in order, for as long as what they hand on fits where it is to lie; how they
become one is told in `compose`.

Invariants: the same operations of the same values in the same order; what has effects or is not
recomputable stays by itself. New values are scratch, behind the program's own.
Thread rule: functions of their arguments; segments live in the kernel cache. Cost: linear in
operations and their operands, but for what `scratch_blocks` takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Operation, Program, releases_of
from coop_jax._src.segments import constants
from coop_jax._src.segments.compose import Composer
from coop_jax._src.segments.segment import handed_on_bytes, library_bytes, may_be_member


def segmented(
    program: Program,
    cache: KernelCache,
    most_bytes: float,
    room: Sequence[float] = (),
    *,
    in_pool: bool = False,
    reserved_bytes: int = 0,
) -> Program:
    """The program with neighbouring operations as segments.

    Args:
      program: with an operation for each launch.
      cache: where kernels live.
      most_bytes: what the members of a segment may hand on to each other, at most at once.
      room: what is free before each operation: all that a segment that begins there adds has to
        fit into it. Empty: that is not looked at.
      in_pool: whether what members hand on lies in the pool; else it is part of the segment's
        workspace. Where room is given it does.
      reserved_bytes: what is free for XLA's libraries, beside the room.
    """
    in_pool = in_pool or bool(room)
    return _Segmenter(program, cache, most_bytes, room, in_pool, reserved_bytes).segmented()


class _Segmenter:
    def __init__(
        self,
        program: Program,
        cache: KernelCache,
        most_bytes: float,
        room: Sequence[float],
        in_pool: bool,
        reserved_bytes: int,
    ):
        self._program = program
        self._room = room
        self._most_bytes = most_bytes
        # Where room is known more may live at one time in another order than there is.
        self._composer = Composer(
            program, cache, in_pool=in_pool, in_order=bool(room), reserved_bytes=reserved_bytes
        )
        self._open: list[int] = []
        self._alive: dict[int, int] = {}  # made in the open segment: bytes
        self._at_once = 0
        self._most_at_once = 0
        self._gone_bytes = 0  # of operands that the open segment was the last to read
        self.operations: list[Operation] = []

    def segmented(self) -> Program:
        program = self._program
        for number, op in enumerate(program.operations):
            if not may_be_member(op.kernel):
                self._close()
                self.operations.append(op)
                continue
            if self._open and not self._fits(op):
                self._close()
            self._take(number, op)
        self._close()
        values = self._composer.values
        return dataclasses.replace(
            program,
            values=tuple(values),
            storages=tuple(self._composer.storages),
            operations=tuple(self.operations),
            releases=releases_of(
                self.operations, values, program.inputs, program.outputs, program.donated
            ),
        )

    def _fits(self, op: Operation) -> bool:
        """Whether the open segment may take one more."""
        if self._with(op) > self._most_bytes or len(self._open) >= constants.TUNED.max_members:
            return False
        if not self._room:
            return True
        # At least this; more is known once it is complete.
        beside = self._composer.beside(library_bytes(op.kernel))
        return self._with(op) + beside - self._gone_bytes <= self._room[self._open[0]]

    def _with(self, op: Operation) -> int:
        made = sum(self._composer.made_by(op).values())
        return self._at_once + made + handed_on_bytes(op.kernel)

    def _take(self, number: int, op: Operation) -> None:
        self._most_at_once = max(self._most_at_once, self._with(op))
        made = self._composer.made_by(op)
        self._alive.update(made)
        self._at_once += sum(made.values())
        self._open.append(number)
        for v in (*op.operands, *op.results):
            storage = self._program.values[v].storage
            if self._composer.last_use.get(storage, -1) <= number:
                made_before = storage not in self._alive
                if made_before and self._composer.given_up_at.get(storage) == number:
                    self._gone_bytes += self._program.storages[storage].nbytes
                self._at_once -= self._alive.pop(storage, 0)

    def _close(self) -> None:
        if self._open:
            self._emit(self._open)
        self._open, self._alive = [], {}
        self._at_once = self._most_at_once = self._gone_bytes = 0

    def _emit(self, numbers: list[int]) -> None:
        """Adds operations as a segment, as several where it needs more than there is."""
        while numbers:
            first = self._program.operations[numbers[0]]
            if len(numbers) == 1 and self._composer.stays_alone(first):
                self.operations.append(first)
                return
            count = len(numbers)
            made = self._composer.composed(numbers, self._most_at_once)
            if len(numbers) > 1 and self._exceeds_room(numbers[0], made):
                count = self._fitting(numbers, made)
                self._emit(numbers[:count])
            else:
                self.operations.append(self._composer.with_scratch(made))
            numbers = numbers[count:]

    def _fitting(self, numbers: Sequence[int], made: Operation) -> int:
        """How many of these operations a segment may have, of which all are too many.

        What XLA needs beyond what was expected of all it is expected to need of fewer, too.
        """
        beyond = max(0, self._composer.added_by(made) - self._composer.adds(numbers))
        few, many = 1, len(numbers)
        while many - few > max(1, few // constants.TUNED.fitting_resolution):
            middle = (few + many) // 2
            if self._composer.adds(numbers[:middle]) + beyond <= self._room[numbers[0]]:
                few = middle
            else:
                many = middle
        return few

    def _exceeds_room(self, first: int, made: Operation) -> bool:
        return bool(self._room) and self._composer.added_by(made) > self._room[first]
