"""Programs that compute the same in different memory, and plans of them.

What a program's scans stack for the scans that differentiate them is one decision (`residuals`),
what the body of any other loop keeps during an iteration is another: where an iteration needs more
than there is room for beside what lives around the loop, its body is planned like a program.

Thread rule: a `Family` belongs to one thread. Cost: plans; JAX's of tracing bodies that change.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math

from coop_jax import _core
from coop_jax._src.compat import jaxprs
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.jit.constants import TUNED
from coop_jax._src.jit.emission import emitted
from coop_jax._src.jit.local_sizes import share_of, work_share
from coop_jax._src.jit.loops import Lowering, ScanOperation, scan_of, with_body, workspace_bytes
from coop_jax._src.jit.residual_rewrite import with_choices
from coop_jax._src.jit.residuals import Choices, pairs_of
from coop_jax._src.planning import planner, policies
from coop_jax._src.planning.planner import PlanSettings, WorkspacePlanner
from coop_jax._src.planning.rematerialized import room_before, unrolled


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A plan of one of the programs, feasible or not.

    Attributes:
      program: which.
      plan: of it.
      again_seconds: the estimated time of what is computed again, in loops, too.
      seconds: the estimated time of everything.
      workspace_bytes: the most that an operation has alive beside its operands and results.
    """

    program: Program
    plan: _core.Plan
    again_seconds: float
    seconds: float
    workspace_bytes: int

    @property
    def overhead(self) -> float:
        """Recompute seconds / compute seconds."""
        return self.again_seconds / max(self.seconds - self.again_seconds, 1e-30)


class Family:
    """A program with more or less stacked by its scans; made as far as asked for."""

    def __init__(self, program: Program, lowering: Lowering):
        self._lowering = lowering
        self._program = program
        choices = [Choices(pair, lowering) for pair in pairs_of(program, lowering)]
        self._pairs = [c.pair for c in choices]
        paired = {n for pair in self._pairs for n in (pair.forward, pair.backward)}
        self._loops = {
            number: _Loop(op, scan, lowering)
            for number, op in enumerate(program.operations)
            if number not in paired and (scan := scan_of(op, lowering)) is not None
        }
        steps = TUNED.stacking_candidates
        shares = [1 - k / steps for k in range(steps + 1)]
        stacked = [c.cheapest([int(share * c.most_bytes) for share in shares]) for c in choices]
        # The most stacked first; nothing is chosen for the program as it is.
        self._chosen = list(dict.fromkeys([(), *zip(*stacked, strict=True)]))
        self._made: dict[int, _Variant] = {}

    def plan(self, settings: PlanSettings, capacity_bytes: int) -> Planned | None:
        """The plan that computes least again; None if none fits."""
        found = self.best(settings, capacity_bytes)
        return found if found.plan.feasible else None

    def best(self, settings: PlanSettings, capacity_bytes: int) -> Planned:
        """The plan that computes least again; if none fits, how far one goes that stacks least.

        The more is stacked, the less fits; where hardly all fits, other values have to go instead,
        so what stacks a little less is looked at, too.
        """
        number = 0
        if len(self._chosen) > 1:
            plain = _without_search(settings)

            @functools.cache
            def seconds(k: int) -> float:
                found = self._variant(k).plan(plain, capacity_bytes)
                return found.again_seconds if found.plan.feasible else math.inf

            fits = range(len(self._chosen))
            first = bisect.bisect_left(fits, True, key=lambda k: seconds(k) < math.inf)
            tried = range(first, min(first + TUNED.compared_candidates, len(self._chosen)))
            if not tried:
                return self._variant(len(self._chosen) - 1).plan(plain, capacity_bytes)
            number = min(tried, key=seconds)
        return self._variant(number).plan(settings, capacity_bytes)

    def as_it_is(self, settings: PlanSettings) -> Planned:
        """The plan of the program as it is, in any memory."""
        return self._variant(0).plan(_without_search(settings), planner.UNLIMITED_BYTES)

    def least_capacity(self, settings: PlanSettings) -> int:
        """The least capacity with a plan."""
        smallest, plain = self._variant(len(self._chosen) - 1), _without_search(settings)
        high = planner.peak_bytes(smallest.plan(plain, planner.UNLIMITED_BYTES).plan.stats)
        low, resolution = 0, max(1, int(high * TUNED.least_capacity_fraction))
        while high - low > resolution:
            middle = (low + high) // 2
            if smallest.plan(plain, middle).plan.feasible:
                high = middle
            else:
                low = middle
        return high

    def _variant(self, number: int) -> _Variant:
        if number not in self._made:
            chosen = self._chosen[number]
            program, seconds = self._program, sum(choice.seconds for choice in chosen)
            if chosen:
                pairs = list(zip(self._pairs, chosen, strict=True))
                program = with_choices(self._program, pairs, self._lowering)
            self._made[number] = _Variant(program, seconds, self._loops, self._lowering)
        return self._made[number]


class _Variant:
    """One of the programs."""

    def __init__(
        self,
        program: Program,
        again_seconds: float,
        loops: dict[int, _Loop],
        lowering: Lowering,
    ):
        # Scans that are as the user has them, too, have their stacks made when they begin.
        program = dataclasses.replace(
            program, operations=tuple(_beginning_late(op, lowering) for op in program.operations)
        )
        self._program = program
        self._again_seconds = again_seconds  # in loops, whatever is planned
        self._loops = loops
        whole = planner.work_seconds(program, lowering.settings.profile)
        self._work = [
            seconds * work_share(program, op)
            for seconds, op in zip(whole, program.operations, strict=True)
        ]
        self._residency = planner.first_residency(program)
        self._needed = [_workspace_bytes(program, op, lowering) for op in program.operations]

    def plan(self, settings: PlanSettings, capacity_bytes: int) -> Planned:
        """Its plan."""
        operations, needed = list(self._program.operations), list(self._needed)
        again = self._again_seconds
        room = room_before(self._program, capacity_bytes)
        for number, loop in self._loops.items():
            op = operations[number]
            beside = room[number] - _made_bytes(self._program, op)
            if needed[number] <= beside:
                continue
            storages = {self._program.values[v].storage for v in (*op.operands, *op.results)}
            share = share_of(self._program, storages)
            operations[number], nbytes, seconds = loop.within(settings, int(beside / share))
            needed[number] = int(nbytes * share)
            again += seconds * work_share(self._program, op)
        program = dataclasses.replace(self._program, operations=tuple(operations))
        workspaces = WorkspacePlanner(
            program,
            lambda way: planner.core_program(program, self._residency.donated, self._work, way),
            self._residency,
            capacity_bytes,
            0,
        )
        plan, _ = workspaces.plan(settings, needed)
        again += plan.stats.recompute_seconds
        seconds = sum(self._work) + again - self._again_seconds
        return Planned(program, plan, again, seconds, max(needed, default=0))


class _Loop:
    """A loop whose body can be planned."""

    def __init__(self, op: Operation, scan: ScanOperation, lowering: Lowering):
        self._op, self._scan, self._lowering = op, scan, lowering
        self._within: dict[int, tuple[Operation, int, float]] = {}

    @functools.cached_property
    def _body(self) -> Program:
        parts = self._scan.parts
        carried = range(parts.num_consts, parts.num_consts + parts.num_carry)
        donated = tuple(k in carried for k in range(len(self._scan.operands)))
        return self._lowering.program(self._scan.params["jaxpr"], donated)

    @functools.cached_property
    def _family(self) -> Family:
        return Family(self._body, self._lowering)

    @functools.cached_property
    def _around_bytes(self) -> int:
        """What an iteration reads that is there anyway."""
        body, parts = self._body, self._scan.parts
        values = body.inputs[: parts.num_consts + parts.num_carry]
        return sum(body.storages[s].nbytes for s in {body.values[v].storage for v in values})

    @functools.cached_property
    def _least_bytes(self) -> int:
        return self._family.least_capacity(self._lowering.settings)

    def within(self, settings: PlanSettings, room_bytes: int) -> tuple[Operation, int, float]:
        """The loop with a body that has so much beside what is there anyway, or as little as does.

        Returns:
          The operation, the bytes it needs beside its operands and results, the seconds of what all
          iterations compute again.
        """
        capacity = max(room_bytes + self._around_bytes, self._least_bytes)
        if capacity not in self._within:
            found = self._family.plan(_without_search(settings), capacity)
            assert found is not None
            body = emitted(unrolled(found.program, found.plan).program)
            self._within[capacity] = (
                with_body(self._scan, body, self._lowering),
                max(0, planner.peak_bytes(found.plan.stats) - self._around_bytes),
                found.again_seconds * self._scan.parts.length,
            )
        return self._within[capacity]


def _beginning_late(op: Operation, lowering: Lowering) -> Operation:
    scan = scan_of(op, lowering)
    if scan is None:
        return op
    body = scan.params["jaxpr"]
    return with_body(scan, lambda *given: jaxprs.called(body, given), lowering)


def _without_search(settings: PlanSettings) -> PlanSettings:
    return dataclasses.replace(settings, policy=policies.without_search(settings.policy))


def _made_bytes(program: Program, op: Operation) -> int:
    storages = {program.values[v].storage for v in op.results}
    return sum(program.storages[s].nbytes for s in storages)


def _workspace_bytes(program: Program, op: Operation, lowering: Lowering) -> int:
    """On one device."""
    nbytes = workspace_bytes(op.kernel, lowering)
    storages = {program.values[v].storage for v in (*op.operands, *op.results)}
    return int(nbytes * share_of(program, storages)) if nbytes else 0
