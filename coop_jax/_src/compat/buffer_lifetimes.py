"""When each value of a buffer assignment lives, and which instruction makes it.

Model: a moment is an instruction of the schedule; those of a loop's or a branch's computation come
before the instruction that runs it. A value is made at one place and handed on by instructions that
make nothing (tuples, bitcasts, calls): `_Flow` finds all its places. It lives from the moment that
makes it to the last one that reads it, to the end of a computation whose result it is, to the end
of the program if it is a result of that. XLA counts the same, but for asynchronous operations,
which may end earlier here than there.

Thread rule: functions of their arguments. Cost: linear in instructions and places.
"""

from __future__ import annotations

import collections
import dataclasses

from coop_jax._src.compat import buffer_assignment, hlo_instructions, hlo_messages
from coop_jax._src.compat.buffer_assignment import Allocation, Place
from coop_jax._src.compat.hlo_instructions import Instruction
from coop_jax._src.compat.hlo_messages import Computation, Frame

_RUNS_OTHERS = ("while", "call", "conditional", "async-start")
_SAME = ("bitcast", "opt-barrier", "domain", "add-dependency", "async-update")


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value in memory.

    Attributes:
      number: XLA's.
      allocation: the allocation that it lies in.
      offset, nbytes: where in there.
      place: the instruction that makes it, and which part of its result it is.
      first, last: moments between which it lives, both included.
      readers: numbers of the instructions that read it.
      result: the number of the program's result that it is; None: it is none.
      shared: places of other values that lie at its address for sure: it is one of them later on,
        or was.
    """

    number: int
    allocation: Allocation
    offset: int
    nbytes: int
    place: Place
    first: int
    last: int
    readers: tuple[int, ...]
    result: int | None
    shared: tuple[Place, ...]


class ScheduledProgram:
    """An optimised module in its order, and its buffer assignment.

    Args:
      module: its `HloModuleProto`.
      assignment: its `BufferAssignmentProto`.

    Attributes:
      instructions: by number.
      computations: by number; `entry` is the number of the one where the program begins.
      frames: calls that instructions come from.
      moments: numbers of instructions, in order.
      values: all that is in memory, in XLA's order.
      allocations: all of them.
    """

    def __init__(self, module: bytes, assignment: bytes):
        self.computations, self.entry = hlo_messages.computations_of(module, hlo_instructions.read)
        self.instructions = {
            i.number: i for c in self.computations.values() for i in c.instructions
        }
        self.frames: dict[int, Frame] = hlo_messages.stack_frames_of(module)
        self.moments, spans = _flattened(
            self.computations, self.entry, hlo_messages.schedule_of(module)
        )
        read = buffer_assignment.read(assignment)
        self.allocations = read.allocations
        flow = _Flow(self.computations, set(read.places.values()))
        times = {number: moment for moment, number in enumerate(self.moments)}
        self.values = tuple(
            self._value(read, allocation, part, flow, times, spans)
            for allocation in read.allocations
            for part in allocation.assigned
            if part.value in read.places
        )

    def _value(
        self,
        read: buffer_assignment.Assignment,
        allocation: Allocation,
        part: buffer_assignment.Assigned,
        flow: _Flow,
        times: dict[int, int],
        spans: dict[int, tuple[int, int]],
    ) -> Value:
        place = read.places[part.value]
        places, readers = flow.places_and_readers(place)
        home = flow.computation_of(place[0])
        begin, _ = spans.get(home, (0, 0))
        is_parameter = self.instructions[place[0]].opcode == "parameter"
        first = begin if is_parameter else times.get(place[0], begin)
        last = max([first, *(times[number] for number, _ in places if number in times)])
        for number in readers:
            called = [spans[c][0] for c in self.instructions[number].called if c in spans]
            last = max(last, min(called, default=times.get(number, begin)))
        result = None
        for number, index in places:
            inside = flow.computation_of(number)
            if self.computations[inside].root != number:
                continue
            last = max(last, spans.get(inside, (0, 0))[1])
            if inside == self.entry and (index or self.instructions[number].opcode != "tuple"):
                result = index[0] if index else 0
        return Value(
            number=part.value,
            allocation=allocation,
            offset=part.offset,
            nbytes=part.nbytes,
            place=place,
            first=first,
            last=last,
            readers=tuple(readers),
            result=result,
            shared=tuple(read.shared.get(part.value, ())),
        )


def _flattened(
    computations: dict[int, Computation[Instruction]], entry: int, schedule: dict[int, list[int]]
) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """Instructions in the order in which they run, and the first and last moment of computations.

    A computation that runs in several places counts in the first one.
    """
    moments: list[int] = []
    spans: dict[int, tuple[int, int]] = {}

    def run(number: int) -> None:
        if number in spans:
            return
        begin = len(moments)
        spans[number] = begin, begin
        by_number = {i.number: i for i in computations[number].instructions}
        for one in schedule.get(number) or by_number:
            instruction = by_number[one]
            if instruction.opcode in _RUNS_OTHERS:
                for called in instruction.called:
                    run(called)
            moments.append(one)
        spans[number] = begin, max(begin, len(moments) - 1)

    run(entry)
    return moments, spans


class _Flow:
    """Where values go without being made again."""

    def __init__(self, computations: dict[int, Computation[Instruction]], made: set[Place]):
        self._computations = computations
        self._made = made
        self._home: dict[int, int] = {}
        self._users: dict[int, list[Instruction]] = collections.defaultdict(list)
        self._callers: dict[int, list[Instruction]] = collections.defaultdict(list)
        self._parameters: dict[tuple[int, int], int] = {}
        for number, computation in computations.items():
            for i in computation.instructions:
                self._home[i.number] = number
                for operand in dict.fromkeys(i.operands):
                    self._users[operand].append(i)
                if i.opcode in _RUNS_OTHERS:
                    for called in i.called:
                        self._callers[called].append(i)
                if i.opcode == "parameter":
                    self._parameters[number, i.parameter] = i.number

    def computation_of(self, instruction: int) -> int:
        """The computation that an instruction is in."""
        return self._home[instruction]

    def places_and_readers(self, made: Place) -> tuple[list[Place], list[int]]:
        """Where a value is, where it is made included, and the instructions that read it there."""
        places, readers = {made: None}, dict[int, None]()
        waiting = [made]
        while waiting:
            number, index = waiting.pop()
            onward = [(place, place[0]) for place in self._from_root(number, index)]
            for user in self._users[number]:
                found = self._handed_on(user, number, index)
                onward += [(place, user.number) for place in found]
                if not found and user.opcode != "get-tuple-element":
                    readers[user.number] = None
            for place, reader in onward:
                # Where another value is made, as by a loop that changes it, this one is read only.
                if place in self._made:
                    readers[reader] = None
                elif place not in places:
                    places[place] = None
                    waiting.append(place)
        return list(places), list(readers)

    def _handed_on(self, user: Instruction, number: int, index: tuple[int, ...]) -> list[Place]:
        if user.opcode == "get-tuple-element":
            return [(user.number, index[1:])] if index and index[0] == user.tuple_index else []
        if user.opcode == "tuple":
            at = [n for n, operand in enumerate(user.operands) if operand == number]
            return [(user.number, (n, *index)) for n in at]
        if user.opcode in _SAME:
            return [(user.number, index)]
        if user.opcode == "while":
            inside = [(self._parameters[c, 0], index) for c in user.called]
            return [(user.number, index), *inside]
        if user.opcode == "call":
            (called,) = user.called[:1]
            at = [n for n, operand in enumerate(user.operands) if operand == number]
            return [(self._parameters[called, n], index) for n in at]
        if user.opcode == "conditional":
            at = [n - 1 for n, operand in enumerate(user.operands) if operand == number and n > 0]
            return [(self._parameters[user.called[n], 0], index) for n in at]
        if user.opcode.endswith("-done"):  # what started it has its result among other things
            return [(user.number, index[1:])] if index else []
        return []

    def _from_root(self, number: int, index: tuple[int, ...]) -> list[Place]:
        """Where the result of a computation is outside of it."""
        home = self._home[number]
        if self._computations[home].root != number:
            return []
        return [
            (caller.number, index)
            for caller in self._callers[home]
            if caller.opcode in ("call", "conditional")
        ]
