"""From the engine's actions to instructions: everything looked up and compiled.

Invariant: a fused operation whose result may take an operand's memory always runs in place, over a
copy of the operand where the plan wants both: XLA makes other code of the same loops, with other
last bits, where a result lies over an operand, and plans differ in what they overwrite.
Thread rule: under the runtime's lock. Cost: linear in the actions, once for each plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from coop_jax import _core
from coop_jax._src.execution import executable_cache, executables
from coop_jax._src.execution.compilation import compile_together
from coop_jax._src.execution.fitting import modes_of, wanted_by
from coop_jax._src.execution.instructions import CompiledPlan, Forget, Instruction, Run, View
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.execution.recomputations import Tally
from coop_jax._src.execution.stats import CallCounts
from coop_jax._src.execution.value_numbers import Places
from coop_jax._src.ir import cost_model
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.planning import planner, settling
from coop_jax._src.planning.pool_state import ADOPT, Residency
from coop_jax._src.planning.workspace import Provision, refill_seconds

_NOWHERE: settling.InputPlace = {}


def compile_plan(
    plan: _core.Plan,
    program: Program,
    residency: Residency,
    memory: PoolMemory,
    cache: KernelCache,
    *,
    provision: Provision,
    earlier: settling.InputPlace = _NOWHERE,
) -> tuple[CompiledPlan, list[tuple[int, int]]]:
    """Looks everything up; compiles what is not compiled yet.

    `earlier` is where the inputs of an earlier call lay; see `settling`.

    Returns:
      The plan, and (operation, bytes of workspace) of each launch.
    """
    compile_together(wanted_by(plan, program, memory.device), memory.device, cache)
    translator = _Translator(plan, program, residency, memory, cache, provision, earlier)
    instructions = translator.translate()
    outputs, kept = tuple(map(translator.place_of, program.outputs)), translator.kept_outputs()
    held = {position for position, _ in kept}
    places = Places()
    inputs, constants = places.of(program.inputs), places.of(v for v, _ in program.constants)
    numbered = tuple(map(places.within, instructions))
    outputs = tuple((places[value], offset, spec) for value, offset, spec in outputs)
    stats = plan.stats
    compiled = CompiledPlan(
        instructions=numbered,
        values=len(places),
        inputs=inputs,
        constants=constants,
        adopt=translator.adopt,
        reserved=tuple(plan.reserved),
        counts=CallCounts.of(
            stats,
            peak_bytes=planner.peak_bytes(stats),
            external_bytes=stats.peak_outside_bytes,
            workspace_bytes=max([provision.reserved_bytes, *(n for _, n in translator.workspaces)]),
        ),
        recompute_share=stats.recompute_seconds
        / ((stats.compute_seconds + stats.recompute_seconds) or 1.0),
        reserved_workspace_bytes=provision.reserved_bytes,
        outputs=outputs,
        kept=kept,
        lent=tuple(n for n, (*_, spec) in enumerate(outputs) if spec is not None and n not in held),
        plan=plan,
        residency=residency,
        provision=provision,
        refill_seconds=refill_seconds(provision, [number for number, _ in translator.workspaces]),
        tally=Tally.of(x.operation for x in instructions if type(x) is Run and x.recompute),
    )
    return compiled, translator.workspaces


class _Translator:
    def __init__(
        self,
        plan: _core.Plan,
        program: Program,
        residency: Residency,
        memory: PoolMemory,
        cache: KernelCache,
        provision: Provision,
        earlier: settling.InputPlace,
    ):
        self.program = program
        self.provision = provision
        self.earlier = earlier
        self.memory = memory
        self.cache = cache
        self.workspaces: list[tuple[int, int]] = []
        self.offset_of: dict[int, int] = {}  # storage -> offset while it is in the pool
        self.present: set[int] = set()
        self.actions = plan.actions
        self.plan, self.residency = plan, residency
        self.outputs = dict.fromkeys(program.outputs)
        adopt = []
        self.donated_storages = set()
        for number, (value, offset) in enumerate(
            zip(program.inputs, plan.input_offsets, strict=False)
        ):
            storage = program.values[value].storage
            self.present.add(value)
            if offset >= 0:
                self.offset_of[storage] = offset
            if residency.donated[number]:
                self.donated_storages.add(storage)
            if residency.where[number] == ADOPT:
                adopt.append((number, memory.spec(program.values[value].aval), offset))
        self.adopt = tuple(adopt)
        self.present.update(v for v, _ in program.constants)
        self.out: list[Instruction] = []
        self.kept: dict[int, tuple[int, int]] = {}  # value -> (number of its launch, offset)

    def kept_outputs(self) -> tuple[tuple[int, int], ...]:
        """Of `CompiledPlan.kept`."""
        positions = {value: n for n, value in reversed(list(enumerate(self.program.outputs)))}
        return tuple((positions[value], offset) for value, (_, offset) in self.kept.items())

    def translate(self) -> list[Instruction]:
        for action in self.actions:
            if isinstance(action, _core.Run):
                self._run(action.operation, action.recompute, action.placements)
            elif action.storage < len(self.program.storages):  # else an own block of workspace
                self._forget(action.storage)
        self._settle()
        for value in self.outputs:
            self._need(value)
        self.kept = {
            value: at
            for value, at in self.kept.items()
            if value in self.outputs and self.place_of(value)[1] == at[1]
        }
        for number, offset in self.kept.values():
            run = self.out[number]
            assert type(run) is Run
            left = tuple(o for o in run.reclaimed if o != offset)
            self.out[number] = dataclasses.replace(run, reclaimed=left)
        return self.out

    def _settle(self) -> None:
        """Moves results to the places of the inputs that they replace."""
        program, residency = self.program, self.residency
        homes = settling.homes(program, residency.donated, self.plan.input_offsets, self.earlier)
        wanted = {program.values[v].storage for v in self.outputs}
        if all(self.offset_of.get(s, home) == home for s, home in homes.items()):
            return
        for storage in sorted(self.donated_storages - wanted):
            if storage in self.offset_of:  # nothing reads it
                self._forget(storage)
        inputs = {program.values[v].storage for v in program.inputs}
        lying = {s: (at, program.storages[s].nbytes) for s, at in self.offset_of.items()}
        results = {s: lying[s] for s in self._whole_outputs() if s in lying and s not in inputs}
        walls = [place for s, place in lying.items() if s not in results]
        walls += [*residency.others, *self.plan.reserved]
        for move in settling.moves(homes, results, walls, self.memory.pool.capacity_bytes):
            self._move(move)

    def _whole_outputs(self) -> dict[int, int]:
        """Storages of which one result is all that is returned, and all there is: that result."""
        of: dict[int, list[int]] = {}
        for value in self.outputs:
            of.setdefault(self.program.values[value].storage, []).append(value)
        return {
            s: values[0]
            for s, values in of.items()
            if len(values) == 1
            and cost_model.nbytes(self.program.values[values[0]].aval)
            == self.program.storages[s].nbytes
        }

    def _move(self, move: settling.Move) -> None:
        value = self._whole_outputs()[move.storage]
        aval = self.program.values[value].aval
        self._need(value)
        kernel = self.cache.from_function(jnp.copy, [aval])
        executable = executable_cache.executable(
            kernel, (executables.SLOT,), self.memory.device, self.cache
        )
        slot = move.offset, self.memory.spec(aval)
        operation = Operation(kernel, (value,), (value,), (-1,), "", "")
        self.kept.pop(value, None)
        self.offset_of[move.storage] = move.offset
        self.out.append(
            Run(
                executable,
                slots=(slot,),
                operands=(value,),
                results=(value,),
                overwritten=(),
                copied=(),
                forget=(),
                recompute=False,
                consumes_input=False,
                emptied=(),
                reclaimed=(),
                operation=operation,
                settles=True,
            )
        )

    def _values_of(self, storage: int) -> list[int]:
        return [v for v in self.program.storages[storage].values if v in self.present]

    def _leave(self, storage: int) -> list[int]:
        """A storage loses its memory; returns the values that were there."""
        gone = self._values_of(storage)
        self.present.difference_update(gone)
        self.offset_of.pop(storage, None)
        for value in gone:
            self.kept.pop(value, None)
        return gone

    def _forget(self, storage: int) -> None:
        consumes = storage in self.donated_storages
        gone = self._leave(storage)
        if gone:
            self.out.append(Forget(tuple(gone), consumes))

    def _need(self, value: int) -> None:
        if value in self.present:
            return
        record = self.program.values[value]
        offset = self.offset_of[record.storage] + record.at_bytes
        self.out.append(View(value, offset, self.memory.spec(record.aval)))
        self.present.add(value)

    def place_of(self, value: int) -> tuple[int, int, _core.SlotSpec | None]:
        """Where a result lies once all is translated."""
        record = self.program.values[value]
        offset = self.offset_of.get(record.storage, -1)
        if offset < 0:
            return value, -1, None
        return value, offset + record.at_bytes, self.memory.spec(record.aval)

    def _run(self, index: int, recompute: bool, placements: Sequence[_core.Placement]) -> None:
        op = self.program.operations[index]
        own = self.provision.blocks(index)
        emptied = tuple(
            (placement.offset, nbytes)
            for placement, nbytes in zip(placements[len(op.results) :], own, strict=True)
        )
        placements = placements[: len(op.results)]
        for value in op.operands:
            self._need(value)
        modes = modes_of(op, placements, self.memory.device)
        executable = executable_cache.executable(op.kernel, modes, self.memory.device, self.cache)
        self.workspaces.append((index, executable.workspace_bytes))
        slots = []
        for k in executable.slot_results:
            slots.append((placements[k].offset, self.memory.spec(op.kernel.out_avals[k])))
        overwritten, copied, forget = [], [], []
        consumed = []  # offsets of donated inputs that are overwritten
        for placement, mode in zip(placements, modes, strict=True):
            offset, in_place = placement.offset, placement.in_place_input
            if mode >= 0 > in_place:
                overwritten.append((mode, offset))
                spec = self.memory.spec(op.kernel.in_avals[mode])
                copied.append((mode, spec))
            elif in_place >= 0:
                overwritten.append((in_place, offset))
                storage = self.program.values[op.operands[in_place]].storage
                forget += self._leave(storage)
                if storage in self.donated_storages:
                    consumed.append(offset)
        results = []
        for k in executable.order:
            storage, offset = placements[k].storage, placements[k].offset
            known = storage >= 0 and not (offset < 0 and op.results[k] in self.present)
            results.append(op.results[k] if known else -1)
            if known:
                self.present.add(op.results[k])
                if offset >= 0:
                    self.offset_of[storage] = offset
                if offset in consumed:
                    self.kept[op.results[k]] = len(self.out), offset
        self.out.append(
            Run(
                executable,
                tuple(slots),
                op.operands,
                tuple(results),
                tuple(overwritten),
                tuple(copied),
                tuple(forget),
                recompute,
                bool(consumed),
                emptied,
                tuple(consumed),
                op,
            )
        )
