"""What XLA keeps in its temporary memory while an executable runs.

XLA hands its buffer assignment out as a serialised `BufferAssignmentProto`
(`xla/service/hlo.proto`): allocations, and which buffers lie where in each. When a buffer lives is
not said; but two of them that share no address were kept apart because they live at the same time.

Thread rule: functions of their arguments. Cost: what XLA assigned times what lives at one time.
"""

from __future__ import annotations

import jax

from coop_jax._src.compat.protobuf import fields

_ALLOCATIONS = 3  # of BufferAssignmentProto
# BufferAllocationProto. What is one of those is no temporary memory.
_ASSIGNED = 9
_THREAD_LOCAL, _PARAMETER, _LIVES_OUT, _TUPLE, _CONSTANT = 3, 5, 7, 11, 12
_OTHERS = (_THREAD_LOCAL, _PARAMETER, _LIVES_OUT, _TUPLE, _CONSTANT)
_OFFSET, _SIZE = 2, 3  # of BufferAllocationProto.Assigned


def at_once(compiled: jax.stages.Compiled) -> list[int]:
    """Bytes of temporary buffers of a `jax.stages.Compiled` that live at one time, about.

    Of the largest at each address. If XLA does not say: all of its temporary memory as one.
    """
    memory = compiled.memory_analysis()
    total = int(getattr(memory, "temp_size_in_bytes", 0))
    serialized = getattr(memory, "serialized_buffer_assignment_proto", b"")
    found = _temporaries(serialized) if serialized else []
    return found or [total] * (total > 0)


def _temporaries(serialized: bytes) -> list[int]:
    found = []
    for field, allocation in fields(serialized):
        if field != _ALLOCATIONS:
            continue
        said = [(number, value) for number, value in fields(allocation)]
        if any(number in _OTHERS and value for number, value in said):
            continue
        assigned = [dict(fields(value)) for number, value in said if number == _ASSIGNED]
        places = [(part.get(_SIZE, 0), part.get(_OFFSET, 0)) for part in assigned]
        chosen: list[tuple[int, int]] = []
        for size, begin in sorted(places, reverse=True):
            if all(begin + size <= other or other + n <= begin for n, other in chosen):
                chosen.append((size, begin))
        found += [size for size, _ in chosen]
    return found
