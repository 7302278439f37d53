"""Several neighbouring operations of a program as one (see `segment`).

What goes into it and comes out of it, what is written over what, and where in the pool it works:
in the memory of results until they are made, in that of operands from their last use on, in blocks
of its own for the rest (see `scratch_blocks`).

Invariants: the same operations of the same values in the same order. New values are scratch, behind
the program's own; nobody reads them.
Thread rule: a `Composer` belongs to one thread; segments live in the kernel cache. Cost: linear in
operations and their operands, but for what `scratch_blocks` takes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coop_jax._src.compat import arrays
from coop_jax._src.ir import cost_model
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Operation, Program, Storage, Value
from coop_jax._src.segments import constants as tuning
from coop_jax._src.segments import scratch_blocks
from coop_jax._src.segments.segment import (
    Member,
    Segment,
    Source,
    library_bytes,
    temporaries,
    workspace_bytes,
)


class Composer:
    """Makes operations of a program one.

    Attributes:
      values, storages: the program's, and scratch.
      last_use: for each storage the last operation that uses it; of results the number of
        operations.
      given_up_at: for each storage that may be scratch after its last use: the operation with that.
    """

    def __init__(
        self,
        program: Program,
        cache: KernelCache,
        *,
        in_pool: bool,
        in_order: bool,
        reserved_bytes: int = 0,
    ):
        """Looks at the program as a whole.

        Args:
          program: with an operation for each launch.
          cache: where kernels live.
          in_pool: whether what members hand on lies in the pool.
          in_order: whether XLA has to keep their order, see `Segment`, also where they are small.
          reserved_bytes: what is free for libraries anyhow.
        """
        self._program = program
        self._reserved_bytes = reserved_bytes
        self._cache = cache
        self._in_pool = in_pool
        self._in_order = in_order
        self.values = list(program.values)
        self.storages = list(program.storages)
        self.last_use = _last_uses(program)
        self.given_up_at = _given_up_at(program) if in_pool else {}
        # The value that a storage was made as: all others are views of it.
        self._made_as = {program.values[v].storage: v for v, _ in program.constants}
        self._made_as.update((program.values[v].storage, v) for v in program.inputs)
        for op in program.operations:
            self._made_as.update((program.values[v].storage, v) for v in op.results)

    def made_by(self, op: Operation) -> dict[int, int]:
        """Bytes of storages that an operation adds: what it writes over another adds nothing."""
        return {
            self.values[v].storage: self.storages[self.values[v].storage].nbytes
            for v, operand in zip(op.results, op.in_place, strict=True)
            if operand < 0
        }

    def stays_alone(self, op: Operation) -> bool:
        """Whether an operation with nobody beside it is left as it is."""
        large = workspace_bytes(op.kernel) >= tuning.TUNED.large_workspace_bytes
        return not (self._in_pool and large)

    def composed(self, numbers: Sequence[int], temporary_bytes: int) -> Operation:
        """These operations as one, without results for its scratch: see `with_scratch`.

        Args:
          numbers: the operations, in order.
          temporary_bytes: what members hand on to each other, at most at once.
        """
        program, values = self._program, self.values
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
        results = self._left(numbers)
        outputs = tuple(number_of[values[v].storage] for v in results)
        in_place = self._in_place(results, operands, over)
        gone = self._gone(numbers)
        given_up = [
            k
            for k, v in enumerate(operands)
            if k not in in_place and values[v].storage in gone and self._is_whole(v)
        ]
        kernel = self._kernel(
            members,
            outputs,
            [values[v].aval for v in operands],
            [values[v].aval for v in results],
            given_up,
            scratch_blocks.block_bytes(self._buffers(numbers)) if self._in_pool else [],
            # XLA goes breadth first where it may, so that more lives at one time than in our order.
            0 if self._in_pool else temporary_bytes,
            in_order=self._in_order or temporary_bytes >= tuning.TUNED.in_order_min_bytes,
        )
        return Operation(
            kernel, tuple(operands), tuple(results), tuple(in_place), ops[0].source, ""
        )

    def _in_place(
        self, results: Sequence[int], operands: Sequence[int], over: Mapping[int, int]
    ) -> list[int]:
        """For each result the operand that it is written over, or -1; each operand once."""
        in_place: list[int] = []
        for v in results:
            operand = over.get(self.values[v].storage, -1)
            if operand >= 0:
                a, b = self.values[operands[operand]].aval, self.values[v].aval
                if operand in in_place or (a.shape, a.dtype) != (b.shape, b.dtype):
                    operand = -1
            in_place.append(operand)
        return in_place

    def with_scratch(self, made: Operation) -> Operation:
        """An operation that was composed, with new values for its scratch."""
        kernel = made.kernel
        assert isinstance(kernel, Segment)
        added = [self._scratch(aval) for aval in kernel.out_avals[len(made.results) :]]
        over = (*kernel.given_up, *[-1] * len(kernel.block_bytes))
        return dataclasses.replace(
            made, results=(*made.results, *added), in_place=(*made.in_place, *over)
        )

    def adds(self, numbers: Sequence[int]) -> int:
        """Bytes that a segment of these operations adds, by what is known before it is compiled.

        In the pool, and in libraries while it runs.
        """
        ops = [self._program.operations[n] for n in numbers]
        left = {self.values[v].storage for v in self._left(numbers)}
        made = {s: n for op in ops for s, n in self.made_by(op).items() if s in left}
        inside = sum(made.values()) + sum(scratch_blocks.block_bytes(self._buffers(numbers)))
        return inside + self.beside(max(library_bytes(op.kernel) for op in ops))

    def added_by(self, made: Operation) -> int:
        """The same for an operation that was composed."""
        assert isinstance(made.kernel, Segment)
        inside = sum(self.made_by(made).values()) + sum(made.kernel.block_bytes)
        return inside + self.beside(library_bytes(made.kernel))

    def beside(self, in_libraries: int) -> int:
        """What libraries need beside what is free for them anyhow."""
        return max(0, in_libraries - self._reserved_bytes)

    def _left(self, numbers: Sequence[int]) -> list[int]:
        """What a segment makes that others read."""
        last = numbers[-1]
        return [
            v
            for n in numbers
            for v in self._program.operations[n].results
            if self.last_use.get(self.values[v].storage, -1) > last
        ]

    def _kernel(
        self,
        members: Sequence[Member],
        outputs: Sequence[int],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        given_up: Sequence[int],
        block_bytes: Sequence[int],
        temporary_bytes: int,
        *,
        in_order: bool,
    ) -> Segment:
        """The segment of these members; with more blocks where XLA is known to need them."""
        key = (
            tuple((id(m.kernel), m.sources) for m in members),  # alive with the segment
            tuple(outputs),
            tuple((a.shape, a.dtype) for a in in_avals),
            tuple(given_up),
            in_order,
            temporary_bytes,  # where it lies in the pool there may be no block, and no estimate
        )
        scratched = [arrays.stored_aval(in_avals[k]) for k in given_up]

        def made(block_bytes: Sequence[int]) -> Segment:
            blocks = [arrays.aval_like((n,), np.dtype(np.uint8)) for n in block_bytes]
            return Segment(
                (*key, tuple(block_bytes)),
                members,
                outputs,
                in_avals,
                (*out_avals, *scratched, *blocks),
                self._cache.profile,
                temporary_bytes,
                given_up,
                block_bytes,
                in_order=in_order,
            )

        while True:
            known = (*key, tuple(block_bytes))
            segment = self._cache.remembered(known, functools.partial(made, block_bytes))
            assert isinstance(segment, Segment)
            lacking = [n for n in temporaries(segment) if n >= tuning.TUNED.min_block_bytes]
            if not self._in_pool or sum(lacking) < tuning.TUNED.large_workspace_bytes:
                return segment
            # It was compiled before: XLA told what it placed elsewhere.
            block_bytes = sorted((*block_bytes, *lacking), reverse=True)

    def _gone(self, numbers: Sequence[int]) -> set[int]:
        """Storages made before these operations that nothing reads after them."""
        ops = [self._program.operations[n] for n in numbers]
        made = {self.values[v].storage for op in ops for v in op.results}
        read = {self.values[v].storage for op in ops for v in op.operands}
        first, last = numbers[0], numbers[-1]
        return {s for s in read - made if first <= self.given_up_at.get(s, -1) <= last}

    def _buffers(self, numbers: Sequence[int]) -> Iterable[scratch_blocks.Buffer]:
        """Where members may work, what they make, and their workspace; steps are members."""
        program, values = self._program, self.values
        ops = [program.operations[n] for n in numbers]
        left = {values[v].storage for v in self._left(numbers)}
        begin = dict.fromkeys(self._gone(numbers), -1)
        end: dict[int, float] = {}
        under: dict[int, int] = {}  # what is written over another lies where that lay
        for n, op in enumerate(ops):
            begin.update((s, n) for s in self.made_by(op))
            for v, operand in zip(op.results, op.in_place, strict=True):
                if operand >= 0:
                    replaced = values[op.operands[operand]].storage
                    under[values[v].storage] = under.get(replaced, replaced)
            for v in (*op.operands, *op.results):
                storage = values[v].storage
                place = under.get(storage, storage)
                end[place] = max(
                    end.get(place, n), scratch_blocks.FOREVER if storage in left else n
                )
            yield from (scratch_blocks.Buffer(nbytes, n, n) for nbytes in temporaries(op.kernel))
        for storage, at in begin.items():
            if at >= 0 or end[storage] != scratch_blocks.FOREVER:
                yield scratch_blocks.Buffer(program.storages[storage].nbytes, at, end[storage])

    def _scratch(self, aval: Any) -> int:
        """A new value that nobody reads."""
        self.storages.append(Storage(cost_model.nbytes(aval), False, (len(self.values),)))
        self.values.append(Value(len(self.storages) - 1, aval))
        return len(self.values) - 1

    def _source(self, value: int, number_of: dict[int, int]) -> Source:
        record = self.values[value]
        made_as = self.values[self._made_as[record.storage]]
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
        record = self.values[value]
        made_as = self.values[self._made_as[record.storage]]
        return bool(record.aval.size == made_as.aval.size)


def _last_uses(program: Program) -> dict[int, int]:
    """For each storage the number of the last operation that uses it; results are used at last."""
    last: dict[int, int] = {}
    for number, op in enumerate(program.operations):
        last.update((program.values[v].storage, number) for v in (*op.operands, *op.results))
    last.update((program.values[v].storage, len(program.operations)) for v in program.outputs)
    return last


def _given_up_at(program: Program) -> dict[int, int]:
    """Storages whose memory may be scratch after their last use: the operation with that.

    What is small, or not the program's own, stays as it is.
    """
    kept = {program.values[v].storage for v in program.inputs}
    kept.update(program.values[v].storage for v, _ in program.constants)
    return {
        storage: number
        for number, released in enumerate(program.releases)
        for storage in released
        if storage not in kept
        and not program.storages[storage].outside
        and program.storages[storage].nbytes >= tuning.TUNED.min_block_bytes
    }
