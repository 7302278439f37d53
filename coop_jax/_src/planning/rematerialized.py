"""A plan as a program: what it computes again is an operation of its own, nothing has to go.

Where memory is short, segments (see `segments`) of the program that was written do not fit: what a
segment makes has to lie there at once, and if a part of it goes, all of it is computed again. A
plan says when each value is there. Written down as a program, each time a value comes back is
another value, and what the plan has resident at one time is what lives then; neighbours among those
operations, first runs and recomputations alike, may run as one where there is room left.

Invariants: the same kernels of the same values in the plan's order, so the same bits. Inputs,
constants and outputs are those of the program, in its order.
Thread rule: functions of their arguments. Cost: linear in the plan.
"""

from __future__ import annotations

import dataclasses

from coop_jax import _core
from coop_jax._src.ir.program import Operation, Program, Storage, Value, releases_of


@dataclasses.dataclass(frozen=True, slots=True)
class Unrolled:
    """A plan as a program.

    Attributes:
      program: what it does.
      origins: for each of its operations which one of the planned program it is.
      again: for each of its operations whether that has run before.
      evictions: how many values it drops that come back.
      recompute_share: the estimated part of the time that recomputations take.
    """

    program: Program
    origins: tuple[int, ...]
    again: tuple[bool, ...]
    evictions: int
    recompute_share: float

    @property
    def recomputations(self) -> int:
        """How many of its operations have run before."""
        return sum(self.again)


def unrolled(program: Program, plan: _core.Plan) -> Unrolled:
    """The plan of a program as a program."""
    return _Unroller(program).unroll(plan)


class _Unroller:
    def __init__(self, program: Program):
        self._program = program
        self._values: list[Value] = []
        self._storages: list[Storage] = []
        self._operations: list[Operation] = []
        self._now: dict[int, int] = {}  # values of the program that are there -> ours

    def unroll(self, plan: _core.Plan) -> Unrolled:
        program = self._program
        for value in (*program.inputs, *(v for v, _ in program.constants)):
            if value not in self._now:
                self._appear(program.values[value].storage)
        inputs = tuple(self._now[v] for v in program.inputs)
        constants = tuple((self._now[v], array) for v, array in program.constants)
        seconds = [0.0, 0.0]
        origins: list[int] = []
        again: list[bool] = []
        for action in plan.actions:
            if isinstance(action, _core.Run):
                op = program.operations[action.operation]
                self._run(op, [placement.storage for placement in action.placements])
                seconds[action.recompute] += op.kernel.cost_seconds
                origins.append(action.operation)
                again.append(action.recompute)
            elif action.storage < len(program.storages):  # else an own block of workspace
                for value in program.storages[action.storage].values:
                    self._now.pop(value, None)
        outputs = tuple(self._now[v] for v in program.outputs)
        made = Program(
            values=tuple(self._values),
            storages=tuple(self._storages),
            operations=tuple(self._operations),
            inputs=inputs,
            donated=program.donated,
            constants=constants,
            outputs=outputs,
            releases=releases_of(self._operations, self._values, inputs, outputs, program.donated),
        )
        share = seconds[1] / max(sum(seconds), 1e-30)
        return Unrolled(made, tuple(origins), tuple(again), plan.stats.evictions, share)

    def _appear(self, storage: int) -> None:
        """The values of a storage are there, anew."""
        record = self._program.storages[storage]
        values = tuple(range(len(self._values), len(self._values) + len(record.values)))
        for value, ours in zip(record.values, values, strict=True):
            known = self._program.values[value]
            self._values.append(Value(len(self._storages), known.aval, known.at_bytes))
            self._now[value] = ours
        self._storages.append(Storage(record.nbytes, record.outside, values))

    def _run(self, op: Operation, placed: list[int]) -> None:
        operands = tuple(self._now[v] for v in op.operands)
        results = []
        for value, storage in zip(op.results, placed, strict=False):
            record = self._program.storages[self._program.values[value].storage]
            if storage >= 0 and not (record.outside and value in self._now):
                self._appear(storage)
                results.append(self._now[value])
                continue
            # A recomputation makes all that the operation makes; this is there, or not wanted.
            aval = self._program.values[value].aval
            results.append(len(self._values))
            self._storages.append(Storage(record.nbytes, record.outside, (len(self._values),)))
            self._values.append(Value(len(self._storages) - 1, aval))
        self._operations.append(dataclasses.replace(op, operands=operands, results=tuple(results)))


def room_before(program: Program, capacity_bytes: int) -> list[int]:
    """What is free before each operation if everything goes after its last use."""
    storages = program.storages
    alive = sum(
        storages[s].nbytes
        for s in {program.values[v].storage for v in program.inputs}
        | {program.values[v].storage for v, _ in program.constants}
    )
    room = []
    for op, released in zip(program.operations, program.releases, strict=True):
        room.append(capacity_bytes - alive)
        # What is written over another adds nothing where that goes.
        gone = set(released)
        alive += sum(storages[s].nbytes for s in {program.values[v].storage for v in op.results})
        alive -= sum(storages[s].nbytes for s in gone)
    return room
