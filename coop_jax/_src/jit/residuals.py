"""What a scan keeps for the scan that differentiates it: a decision, the same for all iterations.

Model: after differentiation a forward scan stacks values of its iterations (residuals), and a
backward scan reads them row by row. Any value of the forward body may be stacked instead, and the
residuals computed from those, from the carry that entered the iteration (stacked if needed), and
from what the forward scan reads anyway, in the body of the backward scan: the forward body cut down
to that, behind a barrier that joins it with what the backward scan carries. Both scans stay scans.

Which values to stack for a number of bytes a row is a minimum cut: `_core.cheapest_to_keep` of the
forward body, followed by an operation that reads the residuals. A carry that changes is made by an
operation that cannot run again, so it costs its bytes; what the forward scan reads costs nothing.

Invariants: values of the program are as before; what has effects runs once.
Thread rule: functions of their arguments.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from coop_jax import _core
from coop_jax._src.ir.program import Program
from coop_jax._src.jit.loops import Lowering, ScanOperation, scan_of
from coop_jax._src.planning.pool_state import OUTSIDE

# Of the moment between both scans: larger than all that can lie beside it.
_BETWEEN_BYTES = 1 << 50


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A forward scan and the scan that reads residuals of it.

    Attributes:
      forward, backward: numbers of operations.
      scan: the forward scan.
      reader: the backward scan.
      residuals: which stacked results only the backward scan reads, as stacked operands: the number
        of the result -> the numbers of the operands.
    """

    forward: int
    backward: int
    scan: ScanOperation
    reader: ScanOperation
    residuals: dict[int, tuple[int, ...]]


def pairs_of(program: Program, lowering: Lowering) -> list[Pair]:
    """The pairs of a program; a scan is in one at most."""
    scans = {
        number: scan
        for number, op in enumerate(program.operations)
        if (scan := scan_of(op, lowering)) is not None
    }
    if len(scans) < 2:
        return []
    readers: dict[int, list[int]] = collections.defaultdict(list)  # of a storage
    for number, op in enumerate(program.operations):
        for value in op.operands:
            readers[program.values[value].storage].append(number)
    outputs = {program.values[v].storage for v in program.outputs}
    found: list[Pair] = []
    taken = set[int]()
    for number, scan in scans.items():
        if number in taken:
            continue
        by_reader: dict[int, dict[int, tuple[int, ...]]] = collections.defaultdict(dict)
        for k, value in enumerate(scan.stacked_results):
            storage = program.values[value].storage
            reading = set(readers[storage])
            if storage in outputs or len(reading) != 1:
                continue
            (by,) = reading
            places = _rows_read(scans.get(by), value)
            if places and scans[by].parts.length == scan.parts.length and by not in taken:
                by_reader[by][k] = places
        if not by_reader:
            continue
        backward, residuals = max(by_reader.items(), key=lambda item: len(item[1]))
        found.append(Pair(number, backward, scan, scans[backward], residuals))
        taken.update((number, backward))
    return found


def _rows_read(scan: ScanOperation | None, value: int) -> tuple[int, ...]:
    """Where a scan reads rows of a value; () if it reads it otherwise, too."""
    if scan is None:
        return ()
    whole = scan.operands[: scan.parts.num_consts + scan.parts.num_carry]
    places = tuple(k for k, x in enumerate(scan.stacked_operands) if x == value)
    return () if value in whole else places


class Choices:
    """What may be stacked of a pair.

    Attributes:
      pair: which.
      most_bytes: of a row of the residuals, as the program has it.
    """

    def __init__(self, pair: Pair, lowering: Lowering):
        self.pair = pair
        body = self._body = pair.scan.body
        parts = pair.scan.parts
        self._wanted = {
            body.values[body.outputs[parts.num_carry + k]].storage for k in pair.residuals
        }
        carry = range(parts.num_consts, parts.num_consts + parts.num_carry)
        changed = [
            body.inputs[n]
            for n in carry
            if body.values[body.inputs[n]].storage
            != body.values[body.outputs[n - parts.num_consts]].storage
        ]
        self._carried = {body.values[v].storage: v for v in changed}
        pinned = [
            body.outputs[parts.num_carry + k]
            for k in range(len(pair.scan.stacked_results))
            if k not in pair.residuals
        ]
        # What the backward scan may read without more being stacked: value of the body by storage.
        self._free = {body.values[v].storage: v for v in pinned}
        self._made_by = {
            body.values[v].storage: n for n, op in enumerate(body.operations) for v in op.results
        }
        given = (v for v in body.inputs if body.values[v].storage not in self._carried)
        self._given = {body.values[v].storage for v in given}
        self._given |= {body.values[v].storage for v, _ in body.constants}
        launch = lowering.settings.profile.launch_seconds
        self._seconds = [max(op.kernel.cost_seconds - launch, 1e-9) for op in body.operations]
        # What the scan is estimated to take is less than its operations one by one.
        together = max(pair.scan.op.kernel.cost_seconds - launch, 0.0)
        apart = sum(self._seconds) * parts.length
        self._together_share = min(1.0, together / apart) if apart else 1.0
        self.most_bytes = sum(
            body.storages[s].nbytes for s in self._wanted - self._given - self._free.keys()
        )

    def cheapest(self, row_bytes: Sequence[int]) -> list[Choice]:
        """What to stack if a row may have so many bytes; for each."""
        body = self._body
        storages = len(body.storages)
        begin, between = [*self._carried], storages
        ins: list[list[int]] = [[]]
        outs: list[list[int]] = [begin]
        for op in body.operations:
            ins.append(_storages(body, op.operands))
            outs.append(_storages(body, op.results))
        ins += [[], sorted(self._wanted)]
        outs += [[between], []]
        releases = _releases(ins, outs, self._given, between)
        free_of_charge = self._free.keys()
        program = _core.Program(
            storage_bytes=[
                0 if s in free_of_charge else record.nbytes
                for s, record in enumerate(body.storages)
            ]
            + [_BETWEEN_BYTES],
            storage_outside=[False] * (storages + 1),
            input_storages=sorted(self._given),
            input_donated=[False] * len(self._given),
            op_input_begin=_begins(ins),
            op_inputs=[s for row in ins for s in row],
            op_output_begin=_begins(outs),
            op_outputs=[s for row in outs for s in row],
            op_in_place=[-1 for row in outs for _ in row],
            op_cost_seconds=[1.0, *self._seconds, 1e-9, 1e-9],
            op_recomputable=[
                False,
                *(op.kernel.recomputable for op in body.operations),
                False,
                False,
            ],
            release_begin=_begins(releases),
            releases=[s for row in releases for s in row],
            outputs=[],
        )
        found = _core.cheapest_to_keep(
            program,
            input_where=[OUTSIDE] * len(self._given),
            pool_bytes=[_BETWEEN_BYTES + n for n in row_bytes],
        )
        return [self._choice(set(kept) - {between}) for kept, _, _ in found]

    def _choice(self, kept: set[int]) -> Choice:
        """What has to run again, and what is really read, if these storages are kept."""
        body = self._body
        again = set[int]()
        read = set[int]()
        todo = list(self._wanted)
        while todo:
            storage = todo.pop()
            if storage in read:
                continue
            read.add(storage)
            if storage in self._given or storage in kept or storage in self._free:
                continue
            if storage in self._carried:
                continue
            number = self._made_by[storage]
            if number not in again:
                again.add(number)
                todo += _storages(body, body.operations[number].operands)
        stacked = sorted(
            s for s in read - self._given - self._free.keys() if s in kept or s in self._carried
        )
        return Choice(
            tuple(stacked),
            tuple(sorted(again)),
            tuple(sorted(read & self._free.keys())),
            sum(body.storages[s].nbytes for s in stacked),
            sum(self._seconds[n] for n in again)
            * self.pair.scan.parts.length
            * self._together_share,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What a pair stacks.

    Attributes:
      stacked: storages of the forward body.
      again: operations of it that run in the backward scan.
      pinned: storages that are stacked anyway and are read there.
      row_bytes: of what is stacked.
      seconds: of what runs again, in all iterations.
    """

    stacked: tuple[int, ...]
    again: tuple[int, ...]
    pinned: tuple[int, ...]
    row_bytes: int
    seconds: float


def _storages(program: Program, values: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(program.values[v].storage for v in values))


def _begins(rows: Sequence[Sequence[int]]) -> list[int]:
    begins = [0]
    for row in rows:
        begins.append(begins[-1] + len(row))
    return begins


def _releases(
    ins: Sequence[Sequence[int]],
    outs: Sequence[Sequence[int]],
    given: set[int],
    between: int,
) -> list[list[int]]:
    last: dict[int, int] = {}
    for number, (read, made) in enumerate(zip(ins, outs, strict=True)):
        last.update((s, number) for s in (*read, *made))
    last[between] = len(ins) - 2
    rows: list[list[int]] = [[] for _ in ins]
    for storage, number in last.items():
        if storage not in given:
            rows[number].append(storage)
    return rows
