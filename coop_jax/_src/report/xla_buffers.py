"""The buffers of a compiled program, as XLA has assigned them.

Model: `compat.buffer_lifetimes` says what lies where and when, `compat.provenance` what it comes
from, `report.arguments` what the arguments are. Arguments and results are in memory from the first
moment to the last, and so are XLA's temporary allocations; what is in these comes and goes.

Thread rule: functions of their arguments. Cost: linear in the program and its buffers, but for the
fullest moment; see `live_set`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from coop_jax._src.compat import hlo_instructions
from coop_jax._src.compat.buffer_assignment import Allocation
from coop_jax._src.compat.buffer_lifetimes import ScheduledProgram, Value
from coop_jax._src.compat.program_memory import ProgramMemory
from coop_jax._src.compat.provenance import Provenance
from coop_jax._src.report import live_set
from coop_jax._src.report.arguments import Argument, kind_of
from coop_jax._src.report.buffers import Buffer, Kind


@dataclasses.dataclass(frozen=True, slots=True)
class Peak:
    """Where a program needs most.

    Attributes:
      operation: JAX's primitive.
      source: "file:line (function)"; "" where it is not known.
      module: names of modules and scopes joined by "/"; "" where there are none.
      phase: "forward", "backward" or "other": which part of a differentiation it is in.
      position: how much of the program comes before it, as a share of the instructions.
    """

    operation: str
    source: str
    module: str
    phase: str
    position: float


@dataclasses.dataclass(frozen=True, slots=True)
class XlaBuffers:
    """The memory of a compiled program.

    Attributes:
      buffers: every value in memory, constants included.
      moments: how many instructions run.
      peak: where most of it is in use; None where XLA does not say.
      at_peak: what is in use then, largest first. Arguments, results and temporary allocations
        count as a whole.
    """

    buffers: tuple[Buffer, ...]
    moments: int
    peak: Peak | None
    at_peak: tuple[Buffer, ...]


def xla_buffers(
    memory: ProgramMemory, arguments: Sequence[Argument], results: Sequence[str]
) -> XlaBuffers:
    """What a program keeps in memory, and when.

    Args:
      memory: what XLA says of it.
      arguments: all of its arguments, also those that it does not use; not looked at if nobody
        knows which of them it has.
      results: names of its results.
    """
    sizes = memory.sizes
    if not memory.assignment:
        rows = [
            Buffer(sizes.arguments, "inputs"),
            Buffer(sizes.results - sizes.aliases, "results"),
            Buffer(sizes.temporaries, "temporaries"),
        ]
        return XlaBuffers((), 0, None, tuple(r for r in rows if r.nbytes))
    program = ScheduledProgram(memory.module, memory.assignment)
    passed = None
    if memory.kept is not None:
        passed = [arguments[n] if 0 <= n < len(arguments) else None for n in memory.kept]
    return _Reader(program, passed, results).read(sizes.needed)


class _Reader:
    """Makes buffers of one program."""

    def __init__(
        self,
        program: ScheduledProgram,
        arguments: Sequence[Argument | None] | None,
        results: Sequence[str],
    ):
        self._program = program
        self._provenance = Provenance(program)
        self._arguments = arguments
        self._results = results
        self._names = {  # as JAX calls them
            i.parameter: i.op_name
            for i in program.computations[program.entry].instructions
            if i.opcode == "parameter"
        }

    def read(self, needed_bytes: int) -> XlaBuffers:
        """All of it; what is in use at the peak sums up to what XLA needs."""
        program = self._program
        values = [v for v in program.values if not v.allocation.is_thread_local]
        buffers = [self._buffer(v) for v in values]
        temporary = [b for b, v in zip(buffers, values, strict=True) if v.allocation.is_temporary]
        moments = len(program.moments)
        moment = live_set.fullest_moment(temporary, moments)
        held = [
            self._held(a)
            for a in program.allocations
            if not (a.is_temporary or a.is_constant or a.is_thread_local)
        ]
        listed = [*held, *live_set.live_at(temporary, moment)]
        unused = needed_bytes - sum(b.nbytes for b in listed)
        if unused:
            listed.append(Buffer(unused, "unused", last=max(0, moments - 1)))
        listed.sort(key=lambda b: (-b.nbytes, b.path, b.first))
        made = self._provenance.of_instruction(program.moments[moment])
        peak = Peak(made.operation, made.source, made.modules, made.phase, moment / max(1, moments))
        return XlaBuffers(tuple(buffers), moments, peak, tuple(listed))

    def _buffer(self, value: Value) -> Buffer:
        allocation = value.allocation
        number, index = value.place
        shape, dtype = hlo_instructions.array_at(
            self._program.instructions[number].shape_message, index
        )
        origin = self._provenance.of_value(value)
        kind: Kind = "temporaries"
        of_argument, path = kind, ""
        if origin.parameter is not None:  # or a copy of an argument
            of_argument, path = self._argument(origin.parameter)
        if self._is_parameter(value):
            kind = of_argument
        elif allocation.is_constant:
            kind = "constants"
        elif value.result is not None:
            kind, path = "results", self._result(value.result)
        elif origin.phase != "backward" and self._provenance.is_read_backward(value):
            kind = "residuals"
        return Buffer(
            nbytes=value.nbytes,
            kind=kind,
            shape=shape,
            dtype=dtype,
            allocation=allocation.number,
            offset=value.offset,
            first=value.first,
            last=value.last,
            instruction=origin.instruction,
            operation=origin.operation,
            source=origin.source,
            module=origin.modules,
            path=path,
            phase=origin.phase,
        )

    def _held(self, allocation: Allocation) -> Buffer:
        """An argument or a result, as a whole, as long as the program runs."""
        end = max(0, len(self._program.moments) - 1)
        values = [v for v in self._program.values if v.allocation is allocation]
        if allocation.parameter is not None:
            values = [v for v in values if self._is_parameter(v)] or values
        else:
            values = [v for v in values if v.result is not None] or values
        if not values:
            return Buffer(allocation.nbytes, "results", allocation=allocation.number, last=end)
        buffer = self._buffer(values[0])
        if allocation.parameter is None:
            buffer = dataclasses.replace(buffer, kind="results")
        return dataclasses.replace(buffer, nbytes=allocation.nbytes, offset=0, first=0, last=end)

    def _is_parameter(self, value: Value) -> bool:
        instruction = self._program.instructions[value.place[0]]
        return value.allocation.parameter is not None and instruction.opcode == "parameter"

    def _argument(self, number: int) -> tuple[Kind, str]:
        name = self._names.get(number, "")
        if self._arguments is None:
            return kind_of(name), name
        argument = self._arguments[number] if number < len(self._arguments) else None
        return ("constants", "") if argument is None else (argument.kind, argument.path or name)

    def _result(self, number: int) -> str:
        return self._results[number] if number < len(self._results) else "result"
