"""A program with neighbouring operations as segments (see `segments`).

Operations are taken in order, for as long as what they hand on fits where it is to lie.

Invariants: the same operations of the same values in the same order; what has effects or is not
recomputable stays by itself. New values are blocks of scratch, behind the program's own.
Thread rule: functions of their arguments; segments live in the kernel cache. Cost: linear in
operations and their operands, but for what `scratch` takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from coop_jax._src import costs, scratch
from coop_jax._src.compat import arrays
from coop_jax._src.kernels import KernelCache
from coop_jax._src.program import Operation, Program, Storage, Value, releases_of
from coop_jax._src.segments import (
    Member,
    Segment,
    Source,
    may_be_member,
    temporaries,
    workspace_bytes,
)

# Members of one executable: XLA's passes are not all linear.
_MEMBERS = 4096

# An operation that needs so much workspace gets blocks for it also where it stays alone, and a
# segment more blocks than were expected.
_LARGE_BYTES = 1 << 18


def segmented(
    program: Program,
    cache: KernelCache,
    most_bytes: float,
    room: Sequence[float] = (),
    *,
    in_pool: bool = False,
) -> Program:
    """The program with neighbouring operations as segments.

    Args:
      program: with an operation for each launch.
      cache: where kernels live.
      most_bytes: what the members of a segment may hand on to each other, at most at once.
      room: what is free before each operation: all that a segment that begins there adds has to
        fit into it. Empty: that is not looked at.
      in_pool: whether what members hand on lies in blocks of the pool; else it is part of the
        segment's workspace.
    """
    return _Segmenter(program, cache, most_bytes, room, in_pool).segmented()


class _Segmenter:
    def __init__(
        self,
        program: Program,
        cache: KernelCache,
        most_bytes: float,
        room: Sequence[float],
        in_pool: bool,
    ):
        self._program = program
        self._room = room
        self._in_pool = in_pool
        self._values = list(program.values)  # and blocks of scratch
        self._storages = list(program.storages)
        self._cache = cache
        self._most_bytes = most_bytes
        self._last_use = _last_uses(program)
        # The value that a storage was made as: all others are views of it.
        self._made_as = {program.values[v].storage: v for v, _ in program.constants}
        self._made_as.update((program.values[v].storage, v) for v in program.inputs)
        for op in program.operations:
            self._made_as.update((program.values[v].storage, v) for v in op.results)
        self._open: list[int] = []
        self._alive: dict[int, int] = {}  # made in the open segment: bytes
        self._at_once = 0
        self._most_at_once = 0
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
        return dataclasses.replace(
            program,
            values=tuple(self._values),
            storages=tuple(self._storages),
            operations=tuple(self.operations),
            releases=releases_of(
                self.operations, self._values, program.inputs, program.outputs, program.donated
            ),
        )

    def _made_by(self, op: Operation) -> dict[int, int]:
        """Storages that an operation adds: what it writes over another adds nothing."""
        values, storages = self._program.values, self._program.storages
        return {
            values[v].storage: storages[values[v].storage].nbytes
            for v, operand in zip(op.results, op.in_place, strict=True)
            if operand < 0
        }

    def _fits(self, op: Operation) -> bool:
        """Whether the open segment may take one more."""
        if self._with(op) > self._most_bytes or len(self._open) >= _MEMBERS:
            return False
        if not self._room:
            return True
        # What it hands on, and beside that what it leaves: that has its place from the beginning.
        at_once = max(self._most_at_once, self._with(op))
        return at_once + sum(self._alive.values()) <= self._room[self._open[0]]

    def _with(self, op: Operation) -> int:
        return self._at_once + sum(self._made_by(op).values()) + workspace_bytes(op.kernel)

    def _take(self, number: int, op: Operation) -> None:
        self._most_at_once = max(self._most_at_once, self._with(op))
        made = self._made_by(op)
        self._alive.update(made)
        self._at_once += sum(made.values())
        self._open.append(number)
        for v in (*op.operands, *op.results):
            storage = self._program.values[v].storage
            if self._last_use.get(storage, -1) <= number:
                self._at_once -= self._alive.pop(storage, 0)

    def _close(self) -> None:
        if self._open:
            self._emit(self._open)
        self._open, self._alive, self._at_once, self._most_at_once = [], {}, 0, 0

    def _emit(self, numbers: list[int]) -> None:
        """Adds operations as a segment, as several if XLA is known to need more than there is."""
        first = self._program.operations[numbers[0]]
        if len(numbers) == 1 and not (
            self._in_pool and workspace_bytes(first.kernel) >= _LARGE_BYTES
        ):
            self.operations.append(first)
            return
        made = self._segment(numbers)
        if len(numbers) > 1 and self._exceeds_room(numbers[0], made):
            half = len(numbers) // 2
            self._emit(numbers[:half])
            self._emit(numbers[half:])
            return
        kernel = made.kernel
        blocks = [self._block(aval) for aval in kernel.out_avals[len(made.results) :]]
        self.operations.append(
            dataclasses.replace(
                made,
                results=(*made.results, *blocks),
                in_place=(*made.in_place, *[-1] * len(blocks)),
            )
        )

    def _exceeds_room(self, number: int, made: Operation) -> bool:
        if not (self._room and self._in_pool and isinstance(made.kernel, Segment)):
            return False
        adds = sum(self._made_by(made).values()) + sum(made.kernel.block_bytes)
        return adds > self._room[number]

    def _segment(self, numbers: Sequence[int]) -> Operation:
        """Operations as one, without results for its blocks of scratch."""
        program = self._program
        values = program.values
        ops = [program.operations[n] for n in numbers]
        inside = {values[v].storage for op in ops for v in op.results}
        operands = list(
            dict.fromkeys(
                self._made_as[values[v].storage]
                for op in ops
                for v in op.operands
                if values[v].storage not in inside
            )
        )
        number_of = {values[v].storage: k for k, v in enumerate(operands)}
        over: dict[int, int] = {}  # storage -> the operand whose memory it takes over
        members: list[Member] = []
        first_result = len(operands)
        for op in ops:
            members.append(
                Member(op.kernel, tuple(self._source(v, number_of) for v in op.operands))
            )
            for k, v in enumerate(op.results):
                if op.in_place[k] >= 0:
                    replaced = op.operands[op.in_place[k]]
                    first = over.get(values[replaced].storage, number_of[values[replaced].storage])
                    if first < len(operands):
                        over[values[v].storage] = first
                        if self._is_whole(replaced) and values[replaced].storage not in inside:
                            operands[first] = replaced  # in the shape of what is written there
                number_of[values[v].storage] = first_result + k
            first_result += len(op.results)
        last = numbers[-1]
        results = [
            v for op in ops for v in op.results if self._last_use.get(values[v].storage, -1) > last
        ]
        outputs = tuple(number_of[values[v].storage] for v in results)
        in_place, taken = [], set[int]()
        for v in results:
            operand = over.get(values[v].storage, -1)
            if operand >= 0:
                a, b = values[operands[operand]].aval, values[v].aval
                if operand in taken or (a.shape, a.dtype) != (b.shape, b.dtype):
                    operand = -1
            taken.add(operand)
            in_place.append(operand)
        in_avals = [values[v].aval for v in operands]
        kernel = self._kernel(ops, members, outputs, in_avals, results)
        return Operation(
            kernel, tuple(operands), tuple(results), tuple(in_place), ops[0].source, ""
        )

    def _kernel(
        self,
        ops: Sequence[Operation],
        members: Sequence[Member],
        outputs: Sequence[int],
        in_avals: Sequence[Any],
        results: Sequence[int],
    ) -> Segment:
        """The segment of these members, with the blocks of scratch that XLA is known to need."""
        out_avals = [self._program.values[v].aval for v in results]
        # XLA goes breadth first where it may, so that more lives at one time than in our order.
        temporary_bytes = 0 if self._in_pool else self._most_at_once
        blocks = scratch.block_bytes(self._buffers(ops, results)) if self._in_pool else []
        while True:
            segment = self._segment_of(
                members, outputs, in_avals, out_avals, blocks, temporary_bytes
            )
            lacking = [n for n in temporaries(segment) if n >= scratch.LEAST_BYTES]
            if not self._in_pool or sum(lacking) < _LARGE_BYTES:
                return segment
            # It was compiled before: XLA told what it placed elsewhere.
            blocks = sorted((*blocks, *lacking), reverse=True)

    def _segment_of(
        self,
        members: Sequence[Member],
        outputs: Sequence[int],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        block_bytes: Sequence[int],
        temporary_bytes: int,
    ) -> Segment:
        key = (
            tuple((id(m.kernel), m.sources) for m in members),  # the cache keeps kernels for ever
            tuple(outputs),
            tuple((a.shape, a.dtype) for a in in_avals),
            tuple(block_bytes),
            temporary_bytes,  # where it lies in the pool there may be no block, and no estimate
        )
        made = (*out_avals, *map(_aval_of_block, block_bytes))
        segment = self._cache.remembered(
            key,
            lambda: Segment(
                key,
                members,
                outputs,
                in_avals,
                made,
                self._cache.profile,
                temporary_bytes,
                block_bytes,
            ),
        )
        assert isinstance(segment, Segment)
        return segment

    def _buffers(self, ops: Sequence[Operation], results: Sequence[int]) -> list[scratch.Buffer]:
        """What the members make in memory of its own, and their workspace; steps are members."""
        values, storages = self._program.values, self._program.storages
        last = {
            values[v].storage: n for n, op in enumerate(ops) for v in (*op.operands, *op.results)
        }
        left = {values[v].storage for v in results}
        found = []
        for n, op in enumerate(ops):
            for storage in self._made_by(op):
                end = scratch.FOREVER if storage in left else last[storage]
                found.append(scratch.Buffer(storages[storage].nbytes, n, end))
            found += [scratch.Buffer(nbytes, n, n) for nbytes in temporaries(op.kernel)]
        return found

    def _block(self, aval: Any) -> int:
        """A new value that nobody reads."""
        self._storages.append(Storage(costs.nbytes(aval), False, (len(self._values),)))
        self._values.append(Value(len(self._storages) - 1, aval))
        return len(self._values) - 1

    def _source(self, value: int, number_of: dict[int, int]) -> Source:
        program = self._program
        record = program.values[value]
        made_as = program.values[self._made_as[record.storage]]
        aval = arrays.stored_aval(record.aval)
        return Source(
            number_of[record.storage],
            tuple(aval.shape),
            aval.dtype,
            -1
            if self._is_whole(value)
            else (record.at_bytes - made_as.at_bytes) // aval.dtype.itemsize,
        )

    def _is_whole(self, value: int) -> bool:
        """Whether a value is all of its storage, in whatever shape."""
        record = self._program.values[value]
        made_as = self._program.values[self._made_as[record.storage]]
        return bool(record.aval.size == made_as.aval.size)


def _last_uses(program: Program) -> dict[int, int]:
    """For each storage the number of the last operation that uses it; results are used at last."""
    last: dict[int, int] = {}
    for number, op in enumerate(program.operations):
        last.update((program.values[v].storage, number) for v in (*op.operands, *op.results))
    last.update((program.values[v].storage, len(program.operations)) for v in program.outputs)
    return last


def _aval_of_block(nbytes: int) -> Any:
    return arrays.aval_like((nbytes,), np.dtype(np.uint8))
