"""The error for a program that has no plan: what lay where when planning came to an end, by name.

Model: the engine lists the blocks that it held then (`_core.Failure.held`). What lies outside the
pool has its room there as a reservation, which is taken apart here: arguments, constants,
workspace, and the rest.

Invariant: what is listed sums up to what the engine says is in use, and is pinned.
Thread rule: functions of their arguments. Cost: linear in the program.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from coop_jax import _core
from coop_jax._src.compat import jaxprs
from coop_jax._src.execution.fitting import Fitted
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir.program import Program
from coop_jax._src.planning import planner
from coop_jax._src.planning.pool_state import OUTSIDE, Residency
from coop_jax._src.run.specialization import Signature, engine_program_of, is_donatable
from coop_jax._src.simulate.simulation import FailedPlan, PlanBasis
from coop_jax._src.util import held_memory
from coop_jax._src.util.errors import BudgetExceededError
from coop_jax._src.util.held_memory import HeldStorage, Why, typed


def exceeded(
    runtime: Runtime,
    signature: Signature,
    program: Program,
    made: Fitted,
    residency: Residency,
    smallest_budget_bytes: int | None,
    *,
    fused: bool,
) -> BudgetExceededError:
    """The error for a plan that is not feasible."""
    plan = made.plan
    failure = plan.failure
    assert failure is not None
    alignment = runtime.settings.alignment_bytes
    names = jaxprs.argument_names(signature.jaxpr)
    named = _Named(program, made, residency, names, alignment)
    operation, source = named.operation()
    first = planner.first_residency(program)
    peak = planner.unbudgeted_peak(
        program,
        engine_program_of(signature, program, first.donated),
        runtime.settings,
        max(signature.workspaces or (0,)),
    )
    costs = [op.kernel.cost_seconds for op in program.operations]
    basis = PlanBasis(
        "up to where the budget does not suffice",
        program,
        residency,
        made.provision,
        alignment,
        costs,
    )
    return runtime.exceeded(
        failure,
        operation,
        source,
        smallest_budget_bytes,
        fused=fused,
        unbudgeted_peak_bytes=peak,
        held=named.held(),
        requested=named.requested(),
        donatable=is_donatable(signature),
        evidence=FailedPlan(plan, basis),
    )


class _Named:
    """What a plan held when it failed, in the program's words."""

    def __init__(
        self,
        program: Program,
        made: Fitted,
        residency: Residency,
        names: Sequence[str],
        alignment_bytes: int,
    ):
        self._program, self._plan, self._provision = program, made.plan, made.provision
        failure = made.plan.failure
        assert failure is not None
        self._failure = failure
        self._residency, self._names = residency, names
        self._alignment_bytes = alignment_bytes
        self._own_blocks: collections.Counter[int] = collections.Counter()  # still to be named
        self._inputs: dict[int, int] = {}  # numbers, by storage
        for number, value in enumerate(program.inputs):
            self._inputs.setdefault(program.values[value].storage, number)
        self._results = {program.values[v].storage for v in program.outputs}
        reserved = [n for why, _, _, n in self._failure.held if why == "reservation"]
        self._reserved_bytes = sum(reserved)
        # Without room for what lies outside the pool nothing else is placed.
        self._lacks_room = (
            self._plan.failed_operation < 0
            and not self._plan.reserved
            and self._failure.requested_bytes > 0
            and bool(list(self._outside()))
        )

    def operation(self) -> tuple[str, str]:
        """What made the request, and its source line."""
        number, program = self._plan.failed_operation, self._program
        if 0 <= number < len(program.operations):
            op = program.operations[number]
            return f"operation '{op.kernel.label}'", op.source
        if number >= 0:
            return "bringing back the results", ""
        placed = len(self._plan.input_offsets)
        if self._lacks_room or placed >= len(program.inputs):
            return "placing the arguments", ""
        return f"placing the {self._argument(placed)}", ""

    def held(self) -> list[HeldStorage]:
        """What was in memory."""
        number, aligned = self._failure.operation, self._alignment_bytes
        blocks = self._provision.blocks(number) if number >= 0 else ()
        self._own_blocks = collections.Counter(-(-n // aligned) * aligned for n in blocks)
        found = [self._block(*block) for block in self._failure.held if block[0] != "reservation"]
        return found + self._beside()[0]

    def requested(self) -> list[HeldStorage]:
        """What the request consists of, where that is not one block."""
        return self._beside()[1]

    def _beside(self) -> tuple[list[HeldStorage], ...]:
        """What lies outside the pool: what there is room for, and what there is none for."""
        missing = self._failure.requested_bytes if self._lacks_room else 0
        parts = held_memory.of_total(self._outside(), self._reserved_bytes + missing)
        return held_memory.split(parts, self._reserved_bytes)

    def _argument(self, number: int) -> str:
        named = number < len(self._names)
        return f"argument {self._names[number] if named else number}"

    def _block(self, why: _core.HoldReason, storage: int, _: int, nbytes: int) -> HeldStorage:
        program = self._program
        if why == "output":
            op = program.operations[self._failure.operation]
            if self._own_blocks[nbytes]:  # a result of that size would be as much
                self._own_blocks[nbytes] -= 1
                what = f"XLA's temporary memory of {op.kernel.label}"
                return HeldStorage(nbytes, "workspace", what, source=op.source, why="workspace")
            return HeldStorage(nbytes, "values", op.kernel.label, (), "", op.source, "output")
        if storage < 0:
            return HeldStorage(nbytes, "other arrays", "array in the pool", why="other array")
        if storage >= len(program.storages):
            return HeldStorage(nbytes, "workspace", "workspace of an operation", why="operand")
        if storage in self._inputs:
            return self._input(self._inputs[storage], nbytes)
        return self._made(storage, why, nbytes)

    def _input(self, number: int, nbytes: int) -> HeldStorage:
        kept = not self._residency.donated[number]
        aval = self._program.values[self._program.inputs[number]].aval
        return HeldStorage(
            nbytes,
            "arguments" if kept else "donated arguments",
            self._argument(number),
            why="argument" if kept else "donated argument",
            **typed(aval),
        )

    def _made(self, storage: int, why: _core.HoldReason, nbytes: int) -> HeldStorage:
        program = self._program
        is_result = storage in self._results
        reason: Why = ""
        if why == "read":
            running = self._failure.operation
            ops = program.operations[running : running + 1] if running >= 0 else ()
            read = {program.values[v].storage for op in ops for v in op.operands}
            reason = "operand" if storage in read else "waiting operand"
        elif why == "permanent":
            reason = "result" if is_result else "overwritten"
        elif why == "no_recipe":
            reason = "never repeated"
        kind: held_memory.HeldKind = "results" if is_result else "values"
        for op in program.operations:
            for v in op.results:
                if program.values[v].storage == storage:
                    aval, label = program.values[v].aval, op.kernel.label
                    return HeldStorage(
                        nbytes, kind, label, source=op.source, why=reason, **typed(aval)
                    )
        return HeldStorage(nbytes, kind, "a value", why=reason)

    def _outside(self) -> Iterator[HeldStorage]:
        """What lies outside the pool at that moment, small values left out."""
        program, residency = self._program, self._residency
        gone: set[int] = set()
        for released in program.releases[: max(0, self._plan.failed_operation)]:
            gone.update(released)
        for storage, number in self._inputs.items():
            nbytes = program.storages[storage].nbytes
            if residency.where[number] == OUTSIDE and storage not in gone and nbytes:
                yield self._input(number, nbytes)
        for value, _ in program.constants:
            given = program.values[value]
            nbytes = program.storages[given.storage].nbytes
            if program.storages[given.storage].outside and nbytes:
                what = "array that the function closes over"
                yield HeldStorage(nbytes, "constants", what, why="constant", **typed(given.aval))
        if residency.beside_bytes:
            what = "arguments that others read, beside copies of them"
            yield HeldStorage(residency.beside_bytes, "arguments", what, why="argument")
        if self._provision.reserved_bytes:
            nbytes = self._provision.reserved_bytes
            yield HeldStorage(nbytes, "workspace", "XLA's temporary memory", why="workspace")
