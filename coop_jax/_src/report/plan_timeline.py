"""From a plan's actions to a timeline: of a simulated call, or of a recorded one.

Model: each `Run` is a moment. Its placements begin residences; an `Evict` or `Drop` ends one, and
so does a result that takes the block. Where an evicted storage comes back to, the next placement of
it says, one recomputation later.

Thread rule: functions of their arguments. Complexity: linear in the actions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coop_jax import _core
from coop_jax._src.ir.program import Program
from coop_jax._src.planning.pool_state import OUTSIDE
from coop_jax._src.report.timeline_data import (
    Ending,
    Ints,
    Kind,
    Label,
    Labels,
    Launches,
    Residences,
    TimelineData,
)
from coop_jax._src.simulate.simulation import PlanBasis

_MADE = (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE)


def timeline_of(
    plan: _core.Plan, basis: PlanBasis, budget_bytes: int | None, title: str
) -> TimelineData:
    """The timeline of a plan, with the seconds that its operations are expected to take.

    Of one that is not feasible it is that of the operations before.
    """
    return _Reader(plan, basis).read(title, budget_bytes)


def timeline_of_failed(
    plan: _core.Plan, basis: PlanBasis, budget_bytes: int | None, title: str
) -> TimelineData:
    """The timeline of a plan that is not feasible, with one moment more: that at which it failed.

    It has what the engine held then: what had been evicted to make room is gone.
    """
    return _Reader(plan, basis).read(title, budget_bytes, with_failure=True)


def _with_seconds(costs: Sequence[float]) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(np.asarray(costs, np.float64))])


class Passes:
    """Tells by the name stacks of operations, in order, of which pass each is."""

    def __init__(self) -> None:
        self._backward = False

    def kind_of(self, name_stack: str) -> Kind:
        """FORWARD, BACKWARD or UPDATE."""
        if "transpose(" in name_stack:
            self._backward = True
            return Kind.BACKWARD
        return Kind.UPDATE if self._backward and "jvp(" not in name_stack else Kind.FORWARD


class _Reader:
    def __init__(self, plan: _core.Plan, basis: PlanBasis):
        self._plan = plan
        self._basis = basis
        self._program = basis.program
        self._labels = Labels()
        self._rows: list[list[int]] = []
        self._open: dict[int, list[int]] = {}  # by storage
        self._times_made: dict[int, int] = {}
        self._launches: list[tuple[int, bool]] = []
        self._costs: list[float] = []
        self._results = {self._program.values[v].storage for v in self._program.outputs}
        self._passes = Passes()
        self._moment = 0

    def read(
        self, title: str, budget_bytes: int | None, *, with_failure: bool = False
    ) -> TimelineData:
        plan, others = self._plan, self._basis.residency.others
        self._open_inputs()
        actions = plan.actions
        evictions = _evictions(actions, self._program, plan.stats.evictions)
        for number, action in enumerate(actions):
            if isinstance(action, _core.Run):
                self._run(action)
            else:
                ending = Ending.EVICTED if number in evictions else Ending.DROPPED
                self._close(action.storage, ending)
        if with_failure:
            self._fail()
        last = self._moment
        for storage in list(self._open):
            self._close(storage, Ending.KEPT)
        for offset, nbytes in (*plan.reserved, *others):
            reserved = (offset, nbytes) in plan.reserved
            kind, name = (Kind.RESERVED, "reserved") if reserved else (Kind.OTHER, "other arrays")
            number = self._labels.number(Label(name))
            row = [0, last, offset, nbytes, nbytes, kind, Ending.KEPT, number, -1, 0]
            self._rows.append(row)
        rows = Residences.of_rows([row for row in self._rows if row[1] > row[0]])
        address, pool_bytes = folded(rows, budget_bytes)
        label, recompute = zip(*self._launches, strict=True) if self._launches else ((), ())
        return TimelineData(
            title,
            pool_bytes,
            dataclasses.replace(rows, address=address),
            Launches(
                np.array(label, np.int32), np.array(recompute, bool), _with_seconds(self._costs)
            ),
            self._labels.all(),
            budget_bytes,
        )

    def _open_inputs(self) -> None:
        program, residency = self._program, self._basis.residency
        offsets = self._plan.input_offsets
        rows = zip(program.inputs, residency.where, residency.donated, strict=True)
        for number, (value, where, donated) in enumerate(rows):
            kind = Kind.STATE if donated else Kind.INPUT
            offset = offsets[number] if number < len(offsets) and where != OUTSIDE else -1
            self._begin(program.values[value].storage, value, offset, kind, Label("argument"))
        for value, _ in program.constants:
            storage = program.values[value].storage
            self._begin(storage, value, -1, Kind.CONSTANT, Label("constant"))

    def _run(self, action: _core.Run) -> None:
        op = self._program.operations[action.operation]
        said = Label(op.kernel.label, op.source, (), "", op.name_stack)
        self._launches.append((self._labels.number(said), action.recompute))
        self._costs.append(self._basis.cost_seconds[action.operation])
        placements = action.placements
        for value, placed in zip(op.results, placements, strict=False):
            if placed.in_place_input >= 0:
                operand = op.operands[placed.in_place_input]
                self._close(self._program.values[operand].storage, Ending.OVERWRITTEN)
            if placed.storage < 0:
                self._scratch(value, placed.offset, said)
            elif placed.storage not in self._open:
                kind = self._passes.kind_of(op.name_stack)
                self._begin(placed.storage, value, placed.offset, kind, said)
        own = self._basis.provision.blocks(action.operation)
        for placed, nbytes in zip(placements[len(op.results) :], own, strict=True):
            self._add(-1, Label("workspace", op.source), placed.offset, nbytes, Kind.SCRATCH)
        self._moment += 1

    def _fail(self) -> None:
        failure, number = self._plan.failure, self._plan.failed_operation
        assert failure is not None
        operations, said = self._program.operations, Label("bringing back the results")
        if number < 0:
            said = Label("placing the arguments")
        elif number < len(operations):
            op = operations[number]
            said = Label(op.kernel.label, op.source, (), "", op.name_stack)
        self._launches.append((self._labels.number(said), False))
        self._costs.append(0.0)
        held = {storage: offset for _, storage, offset, _ in failure.held if storage >= 0}
        for storage, row in list(self._open.items()):
            if row[2] >= 0 and held.get(storage) != row[2]:
                self._close(storage, Ending.EVICTED)
        for why, storage, offset, nbytes in failure.held:
            if why == "output":
                self._add(-1, said, offset, nbytes, Kind.SCRATCH)
            elif why == "reservation" and not self._plan.reserved:
                self._add(-1, Label("reserved"), offset, nbytes, Kind.RESERVED)
            elif len(self._program.storages) > storage >= 0 and storage not in self._open:
                value = self._program.storages[storage].values[0]
                self._begin(storage, value, offset, Kind.FORWARD, Label("computed again"))
        self._moment += 1

    def _begin(self, storage: int, value: int, offset: int, kind: Kind, said: Label) -> None:
        if storage in self._open:  # given twice
            return
        if storage in self._results:
            kind = Kind.RESULT if kind in _MADE else kind
        times = self._times_made[storage] = self._times_made.get(storage, -1) + 1
        nbytes = self._program.storages[storage].nbytes
        row = self._add(storage, self._typed(value, said), offset, nbytes, kind)
        row[-1] = min(times, 65535)
        self._open[storage] = row

    def _scratch(self, value: int, offset: int, said: Label) -> None:
        nbytes = self._program.storages[self._program.values[value].storage].nbytes
        self._add(-1, self._typed(value, said), offset, nbytes, Kind.SCRATCH)

    def _typed(self, value: int, said: Label) -> Label:
        aval = self._program.values[value].aval
        return dataclasses.replace(
            said, shape=tuple(map(int, aval.shape)), dtype=str(getattr(aval, "dtype", ""))
        )

    def _add(self, storage: int, label: Label, offset: int, asked: int, kind: Kind) -> list[int]:
        aligned = self._basis.alignment_bytes if offset >= 0 else 1
        nbytes = -(-asked // aligned) * aligned
        number, moment = self._labels.number(label), self._moment
        row = [moment, moment + 1, offset, nbytes, asked, kind, Ending.DROPPED, number, storage, 0]
        self._rows.append(row)
        return row

    def _close(self, storage: int, ending: Ending) -> None:
        row = self._open.pop(storage, None)
        if row is not None:  # a block of workspace has one moment, and is closed already
            row[1], row[6] = self._moment, ending


def _evictions(actions: Sequence[_core.Action], program: Program, counted: int) -> set[int]:
    """Which actions let go of memory to make room.

    An `Evict` may also be of a storage that its last reader has read, and that a recomputation may
    need. In the engine's own plans these follow the reader. In plans that are made of checkpoints,
    whose releases are others, evictions are what comes back. How many there are, the plan says.
    """
    by_reader, coming_back = set(), set()
    released: Sequence[int] = ()
    for number, action in enumerate(actions):
        if isinstance(action, _core.Run):
            released = () if action.recompute else program.releases[action.operation]
        elif isinstance(action, _core.Evict) and action.storage not in released:
            by_reader.add(number)
    placed: set[int] = set()
    for number in range(len(actions) - 1, -1, -1):
        action = actions[number]
        if isinstance(action, _core.Run):
            placed.update(placement.storage for placement in action.placements)
        elif action.storage in placed:
            coming_back.add(number)
    return coming_back if len(coming_back) == counted else by_reader


def folded(rows: Residences, budget_bytes: int | None) -> tuple[Ints, int]:
    """Addresses and the size of the pool.

    Without a budget the pool is as large as can be and filled from both ends: if more than half of
    it is one gap that nothing ever lies in, that is left out.
    """
    pooled = np.flatnonzero(rows.address >= 0)
    pooled = pooled[np.argsort(rows.address[pooled], kind="stable")]
    begins = rows.address[pooled]
    ends = np.maximum.accumulate(begins + rows.nbytes[pooled])
    last = int(ends[-1]) if len(ends) else 0
    if budget_bytes is not None or len(pooled) < 2:
        return rows.address, max(budget_bytes or 0, last)
    gaps = begins[1:] - ends[:-1]
    widest = int(gaps.argmax())
    gap = int(gaps[widest])
    if 2 * gap < last:
        return rows.address, last
    above = rows.address >= begins[widest + 1]
    return np.where(above, rows.address - gap, rows.address), last - gap
