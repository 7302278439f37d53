"""Segments: operations that follow each other, launched as one, each computed as if alone.

To launch an operation takes as long as some operations take themselves: XLA wakes its threads for
each and waits for them. A segment is one executable that calls its operations in order. XLA keeps
each call apart (see `compat.calls`), so an operation gives the same bits in whatever segment; what
only other members read never leaves the executable, whose temporary memory it takes. Unlike bundles
(see `bundling`), segments may therefore be chosen by the budget: the whole program where there is
room, a few operations where values have to go and come back.

That XLA did keep them apart is not taken for granted: `isolation` compares what it made of each
member with what it made of the operation alone. What buffers share is not compared: XLA lets a
kernel write over an operand only where both have one layout and each element is read before it is
written, by the same instructions.

Random keys are handled as their data, here as in executables.

Invariants: a segmented program computes the same values in the same order; what has effects or is
not recomputable is never a member.
Thread rule: functions of their arguments; segments live in the kernel cache. Cost: linear in
operations and their operands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src import costs
from coop_jax._src.compat import arrays, calls
from coop_jax._src.kernels import Kernel, KernelCache
from coop_jax._src.program import Operation, Program, releases_of

# Members of one executable: XLA's passes are not all linear.
_MEMBERS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where a member finds an operand: a value of the segment, or a part of it, in a shape."""

    value: int
    shape: tuple[int, ...]
    dtype: Any
    begin: int  # in elements; -1: the value as it is


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """An operation of a segment, its operands; its results are the values that follow."""

    kernel: Kernel
    sources: tuple[Source, ...]


class Segment(Kernel):
    """Several kernels in order.

    Attributes:
      members: what it calls.
      temporary_bytes: an estimate of what its members hand on to each other, at most at once.
    """

    __slots__ = ("members", "temporary_bytes")

    def __init__(
        self,
        key: Any,
        members: Sequence[Member],
        outputs: Sequence[int],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        profile: costs.DeviceProfile,
        temporary_bytes: int,
    ):
        super().__init__(key, (), outputs, in_avals, out_avals, profile, 0, ())
        kernels = [m.kernel for m in members]
        self.members = tuple(members)
        self.temporary_bytes = temporary_bytes
        self.is_group = True
        self.touches_part = False
        self.flops = sum(k.flops for k in kernels)
        self.moved_bytes = sum(k.moved_bytes for k in kernels)
        self.cost_seconds = sum(k.cost_seconds for k in kernels) - profile.launch_seconds * (
            len(kernels) - 1
        )
        self.label = f"{kernels[0].label}...{kernels[-1].label} ({len(kernels)} operations)"

    def __call__(self, *operands: Any) -> list[Any]:
        values = list(operands)
        for number, member in enumerate(self.members):
            ins = [_read(values[s.value], s) for s in member.sources]
            values += calls.apart(member.kernel.called, ins, str(number))
        return [values[k] for k in self.outputs]

    called = __call__


def _read(value: Any, source: Source) -> Any:
    if source.begin >= 0:
        size = int(np.prod(source.shape))
        value = jax.lax.slice(value.reshape(-1), (source.begin,), (source.begin + size,))
    if value.shape != source.shape:
        value = value.reshape(source.shape)
    if value.dtype != source.dtype:
        value = jax.lax.bitcast_convert_type(value, source.dtype)
    return value


def may_be_member(kernel: Kernel) -> bool:
    """Whether an operation may run in a segment at all."""
    return kernel.recomputable and not kernel.stands_apart


def segmented(
    program: Program,
    cache: KernelCache,
    most_bytes: float,
    room: Sequence[float] = (),
    *,
    exposed: bool = False,
) -> Program:
    """The program with neighbouring operations as segments.

    Args:
      program: with an operation for each launch.
      cache: where kernels live.
      most_bytes: what the members of a segment may hand on to each other, at most at once.
      room: what is free before each operation: all that a segment that begins there adds has to
        fit into it. Empty: that is not looked at.
      exposed: whether what members hand on is a result, too, with a place in the pool; else it is
        part of the segment's workspace.
    """
    return _Segmenter(program, cache, most_bytes, room, exposed).segmented()


class _Segmenter:
    def __init__(
        self,
        program: Program,
        cache: KernelCache,
        most_bytes: float,
        room: Sequence[float],
        exposed: bool,
    ):
        self._program = program
        self._room = room
        self._exposed = exposed
        self._made = 0  # in the open segment, what is gone included
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
            operations=tuple(self.operations),
            releases=releases_of(
                self.operations, program.values, program.inputs, program.outputs, program.donated
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
        if self._exposed:
            made = self._made + sum(self._made_by(op).values())
            return made + _workspace(op.kernel) <= self._room[self._open[0]]
        # What it hands on, and beside that what it leaves: that has its place from the beginning.
        at_once = max(self._most_at_once, self._with(op))
        return at_once + sum(self._alive.values()) <= self._room[self._open[0]]

    def _with(self, op: Operation) -> int:
        return self._at_once + sum(self._made_by(op).values()) + _workspace(op.kernel)

    def _take(self, number: int, op: Operation) -> None:
        self._most_at_once = max(self._most_at_once, self._with(op))
        made = self._made_by(op)
        self._alive.update(made)
        self._at_once += sum(made.values())
        self._made += sum(made.values())
        self._open.append(number)
        for v in (*op.operands, *op.results):
            storage = self._program.values[v].storage
            if self._last_use.get(storage, -1) <= number:
                self._at_once -= self._alive.pop(storage, 0)

    def _close(self) -> None:
        if len(self._open) == 1:
            self.operations.append(self._program.operations[self._open[0]])
        elif self._open:
            self.operations.append(self._segment())
        self._open, self._alive, self._at_once, self._most_at_once = [], {}, 0, 0
        self._made = 0

    def _segment(self) -> Operation:
        program = self._program
        values = program.values
        ops = [program.operations[n] for n in self._open]
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
        last = self._open[-1]
        overwritten = {values[op.operands[k]].storage for op in ops for k in op.in_place if k >= 0}
        results = [
            v
            for op in ops
            for v in op.results
            if self._last_use.get(values[v].storage, -1) > last
            or (
                self._exposed
                and not program.storages[values[v].storage].outside
                and values[v].storage not in overwritten
            )
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
        key = (
            tuple((id(m.kernel), m.sources) for m in members),  # the cache keeps kernels for ever
            outputs,
            tuple((a.shape, a.dtype) for a in in_avals),
        )
        kernel = self._cache.remembered(
            key,
            lambda: Segment(
                key,
                members,
                outputs,
                in_avals,
                [values[v].aval for v in results],
                self._cache.profile,
                self._workspace_bytes(ops),
            ),
        )
        return Operation(
            kernel, tuple(operands), tuple(results), tuple(in_place), ops[0].source, ""
        )

    def _workspace_bytes(self, ops: Sequence[Operation]) -> int:
        if self._exposed:
            return max(_workspace(op.kernel) for op in ops)
        return self._most_at_once

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


def _workspace(kernel: Kernel) -> int:
    return max((e.workspace_bytes for e in kernel.executables()), default=0)


def temporary_bytes(program: Program) -> list[int]:
    """Each operation's workspace in a segmented program, an estimate of what is not compiled."""
    return [
        op.kernel.temporary_bytes
        if isinstance(op.kernel, Segment) and not op.kernel.executables()
        else _workspace(op.kernel)
        for op in program.operations
    ]
