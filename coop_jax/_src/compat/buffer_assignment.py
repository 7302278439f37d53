"""What XLA keeps in memory while an executable runs, and where in it.

XLA hands its buffer assignment out as a serialised `BufferAssignmentProto`
(`xla/service/hlo.proto`): the values that need memory, which of them share it, allocations, and
which values lie where in each. When a value lives is not said: see `buffer_lifetimes`. Two that
share no address were kept apart because they live at the same time.

Thread rule: functions of their arguments. Cost: what XLA assigned; of `at_once` times what lives at
one time.
"""

from __future__ import annotations

import dataclasses

import jax

from coop_jax._src.compat.protobuf import fields, numbers

# BufferAssignmentProto.
_VALUES, _SHARED, _ALLOCATIONS = 1, 2, 3
# LogicalBufferProto, its Location, BufferAlias.
_ID, _DEFINED_AT = 1, 3
_SHAPE_INDEX, _INSTRUCTION = 3, 4
_SOURCE, _LOCATION = 1, 2
# BufferAllocationProto.
_INDEX, _BYTES, _THREAD_LOCAL, _PARAMETER, _PARAMETER_NUMBER, _LIVES_OUT = 1, 2, 3, 5, 6, 7
_ASSIGNED, _PARAMETER_INDEX, _TUPLE, _CONSTANT = 9, 10, 11, 12
_VALUE, _OFFSET, _SIZE = 1, 2, 3  # of BufferAllocationProto.Assigned

# Where a value is: the number of an instruction, and which part of its result.
Place = tuple[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Assigned:
    """A value's place in an allocation, in bytes."""

    value: int
    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """A block of memory.

    Attributes:
      number: its number.
      nbytes: its size.
      parameter: the number of the argument that it holds; None: it holds none.
      lives_out: whether it holds a result.
      is_tuple: whether it holds a table of pointers, among other things.
      is_constant, is_thread_local: held elsewhere.
      assigned: values in it.
    """

    number: int
    nbytes: int
    parameter: int | None
    lives_out: bool
    is_tuple: bool
    is_constant: bool
    is_thread_local: bool
    assigned: tuple[Assigned, ...]

    @property
    def is_temporary(self) -> bool:
        """Whether it is XLA's own, from the program's first instruction to its last."""
        return self.parameter is None and not (
            self.lives_out or self.is_constant or self.is_thread_local
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """A buffer assignment.

    Attributes:
      places: where each value is made.
      shared: of some values, where others are made that lie at the same address for sure.
      allocations: all of them.
    """

    places: dict[int, Place]
    shared: dict[int, list[Place]]
    allocations: tuple[Allocation, ...]


def serialized(compiled: jax.stages.Compiled) -> bytes:
    """The `BufferAssignmentProto` of a `jax.stages.Compiled`; b"" if XLA does not say."""
    memory = compiled.memory_analysis()
    return bytes(getattr(memory, "serialized_buffer_assignment_proto", b""))


def read(content: bytes) -> Assignment:
    """An assignment of its `BufferAssignmentProto`."""
    places: dict[int, Place] = {}
    shared: dict[int, list[Place]] = {}
    allocations = []
    for field, value in fields(content):
        if field == _VALUES:
            said = dict(fields(value))
            places[said.get(_ID, 0)] = _place(said.get(_DEFINED_AT, b""))
        elif field == _SHARED:
            said = dict(fields(value))
            shared.setdefault(said.get(_SOURCE, 0), []).append(_place(said.get(_LOCATION, b"")))
        elif field == _ALLOCATIONS:
            allocations.append(_allocation(value))
    return Assignment(places, shared, tuple(allocations))


def _place(content: bytes) -> Place:
    number, index = 0, []
    for field, value in fields(content):
        if field == _INSTRUCTION:
            number = value
        elif field == _SHAPE_INDEX:
            index += numbers(value)
    return number, tuple(index)


def _allocation(content: bytes) -> Allocation:
    said: dict[int, int] = {}
    assigned = []
    for field, value in fields(content):
        if field == _ASSIGNED:
            part = dict(fields(value))
            assigned.append(Assigned(part.get(_VALUE, 0), part.get(_OFFSET, 0), part.get(_SIZE, 0)))
        elif isinstance(value, int):
            said[field] = value
    return Allocation(
        number=said.get(_INDEX, 0),
        nbytes=said.get(_BYTES, 0),
        parameter=said.get(_PARAMETER_NUMBER, 0) if said.get(_PARAMETER) else None,
        lives_out=bool(said.get(_LIVES_OUT)),
        is_tuple=bool(said.get(_TUPLE)),
        is_constant=bool(said.get(_CONSTANT)),
        is_thread_local=bool(said.get(_THREAD_LOCAL)),
        assigned=tuple(assigned),
    )


def at_once(compiled: jax.stages.Compiled) -> list[int]:
    """Bytes of temporary buffers of a `jax.stages.Compiled` that live at one time, about.

    Of the largest at each address. If XLA does not say: all of its temporary memory as one.
    """
    total = int(getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0))
    content = serialized(compiled)
    found = _temporaries(content) if content else []
    return found or [total] * (total > 0)


def _temporaries(content: bytes) -> list[int]:
    found = []
    for allocation in read(content).allocations:
        if not allocation.is_temporary or allocation.is_tuple:
            continue
        places = [(part.nbytes, part.offset) for part in allocation.assigned]
        chosen: list[tuple[int, int]] = []
        for size, begin in sorted(places, reverse=True):
            if all(begin + size <= other or other + n <= begin for n, other in chosen):
                chosen.append((size, begin))
        found += [size for size, _ in chosen]
    return found
