"""The messages in which XLA hands out a module: its computations, and their instructions.

Numbers of fields of `HloModuleProto` and what is in it (`xla/service/hlo.proto`), which never
change. What is read of an instruction differs: see `hlo` and `hlo_instructions`.

Thread rule: functions of their arguments. Cost: linear in the module's bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

from coop_jax._src.compat.protobuf import fields, numbers

T = TypeVar("T")

# HloModuleProto, HloScheduleProto and an entry of its map, HloComputationProto.
_COMPUTATIONS, _ENTRY, _SCHEDULE, _STACK_FRAMES = 3, 6, 7, 17
_SEQUENCES, _OF_COMPUTATION, _SEQUENCE, _IN_ORDER = 1, 1, 2, 1
_INSTRUCTIONS, _ID, _ROOT = 2, 5, 6

# StackFrameIndexProto, its FileLocation and StackFrame. Numbers of what it lists begin with 1.
_FILES, _FUNCTIONS, _LOCATIONS, _FRAMES = 1, 2, 3, 4
_FILE, _FUNCTION, _LINE = 1, 2, 3
_LOCATION, _PARENT = 1, 2

# HloInstructionProto: the graph.
OPCODE, SHAPE, NUMBER, OPERANDS, CONTROL, CALLED = 2, 3, 35, 36, 37, 38
# ShapeProto.
DIMENSIONS, TUPLE_SHAPES = 3, 4


@dataclasses.dataclass(frozen=True, slots=True)
class Computation(Generic[T]):
    """A computation: its instructions, operands before their users, and the number of its root."""

    instructions: list[T]
    root: int


def computations_of(
    serialized: bytes, read: Callable[[bytes], T]
) -> tuple[dict[int, Computation[T]], int]:
    """The computations of a module by number, and the number of the one where it begins.

    Args:
      serialized: the module.
      read: makes an instruction of its message.
    """
    computations: dict[int, Computation[T]] = {}
    entry = -1
    for field, value in fields(serialized):
        if field == _ENTRY:
            entry = value
        elif field == _COMPUTATIONS:
            instructions: list[T] = []
            number, root = -1, -1
            for part, content in fields(value):
                if part == _INSTRUCTIONS:
                    instructions.append(read(content))
                elif part == _ID:
                    number = content
                elif part == _ROOT:
                    root = content
            computations[number] = Computation(instructions, root)
    return computations, entry


def schedule_of(serialized: bytes) -> dict[int, list[int]]:
    """The order in which XLA runs instructions: their numbers, by the number of the computation."""
    found: dict[int, list[int]] = {}
    for field, schedule in fields(serialized):
        if field != _SCHEDULE:
            continue
        for part, entry in fields(schedule):
            if part != _SEQUENCES:
                continue
            said = dict(fields(entry))
            sequence: list[int] = []
            for one, value in fields(said.get(_SEQUENCE, b"")):
                if one == _IN_ORDER:
                    sequence += numbers(value)
            found[said.get(_OF_COMPUTATION, 0)] = sequence
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A call in a Python traceback. `parent` is the number of its caller's, 0 for none."""

    file: str
    line: int
    function: str
    parent: int


def stack_frames_of(serialized: bytes) -> dict[int, Frame]:
    """The calls that instructions come from, by number; none in modules without call stacks."""
    listed: dict[int, list[bytes]] = {}
    for field, value in fields(serialized):
        if field == _STACK_FRAMES:
            for part, content in fields(value):
                listed.setdefault(part, []).append(content)
    files = [content.decode() for content in listed.get(_FILES, ())]
    functions = [content.decode() for content in listed.get(_FUNCTIONS, ())]
    locations = [dict(fields(content)) for content in listed.get(_LOCATIONS, ())]

    def frame(said: dict[int, int]) -> Frame:
        where = locations[said[_LOCATION] - 1]
        function = functions[where[_FUNCTION] - 1] if where.get(_FUNCTION) else ""
        file = files[where[_FILE] - 1] if where.get(_FILE) else ""
        return Frame(file, where.get(_LINE, 0), function, said.get(_PARENT, 0))

    return {
        number: frame(said)
        for number, content in enumerate(listed.get(_FRAMES, ()), 1)
        if (said := dict(fields(content))).get(_LOCATION)
    }
