"""The messages in which XLA hands out a module: its computations, and their instructions.

Numbers of fields of `HloModuleProto` and what is in it (`xla/service/hlo.proto`), which never
change. What is read of an instruction differs: see `hlo` and `hlo_instructions`.

Thread rule: functions of their arguments. Cost: linear in the module's bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

from coop_jax._src.compat.protobuf import fields

T = TypeVar("T")

# HloModuleProto, HloComputationProto.
_COMPUTATIONS, _ENTRY = 3, 6
_INSTRUCTIONS, _ID, _ROOT = 2, 5, 6

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
