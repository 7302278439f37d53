"""Carrying out a plan: a list of instructions over numbered values, made once, run every step.

`compile_plan` turns the engine's actions into instructions with everything looked up: compiled
functions, slots, which values to read, which to forget. `execute` is then a loop without decisions.

Invariants: a value is present exactly while its storage is resident; every output written into a
slot is checked once per executable to lie there, and copied there from then on if it does not.
Thread rule: under the runtime's lock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src import kernels
from coop_jax._src.compat import arrays
from coop_jax._src.interrupts import DeferredInterrupts
from coop_jax._src.kernels import Executable, KernelCache
from coop_jax._src.memory import PoolMemory
from coop_jax._src.program import Operation, Program
from coop_jax._src.stats import Counters

# Memory that is still held this long after its array was deleted is held by another library.
_PATIENCE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Run an operation.

    Attributes:
      executable: what to call.
      slots: (offset, spec) of each output that is written into a slot.
      operands: values to read.
      results: the values that the call returns, in its order; -1 for scratch.
      overwritten: (operand position, offset) of operands whose memory an output takes over.
      forget: values that are gone afterwards.
      recompute: whether the operation has run before.
      consumes_input: whether a donated input is overwritten.
    """

    executable: Executable
    slots: tuple[tuple[int, _core.SlotSpec], ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    overwritten: tuple[tuple[int, int], ...]
    forget: tuple[int, ...]
    recompute: bool
    consumes_input: bool
    operation: Operation


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """Read a resident storage as another shape."""

    value: int
    offset: int
    spec: _core.SlotSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Forget:
    """Let go of values; `consumes_input` if a donated input is among them."""

    values: tuple[int, ...]
    consumes_input: bool


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan ready to run, for one residency of its inputs.

    Attributes:
      instructions: what to do, in order.
      adopt: (input number, value, offset) of inputs to copy into the pool first.
      reserved: ranges of the pool that stand for memory used elsewhere.
      stats: what the engine counted while it planned.
      workspace_bytes: most temporary memory of one operation.
      outside_bytes: reserved for values outside the pool.
    """

    instructions: tuple[Run | View | Forget, ...]
    adopt: tuple[tuple[int, int, int], ...]
    reserved: tuple[tuple[int, int], ...]
    stats: dict[str, Any]
    workspace_bytes: int
    outside_bytes: int


def modes_of(program: Program, op: Operation, placements: Sequence[Any]) -> tuple[int, ...]:
    """Output modes of an executable from where the engine puts its outputs."""
    return tuple(
        in_place if in_place >= 0 else kernels.OUTSIDE if offset < 0 else kernels.SLOT
        for _, offset, in_place in placements
    )


def compile_plan(
    plan: _core.Plan,
    program: Program,
    where: Sequence[int],
    donated: Sequence[bool],
    memory: PoolMemory,
    cache: KernelCache,
    *,
    workspace_bytes: int,
    outside_bytes: int,
) -> CompiledPlan:
    """Looks everything up; compiles what is not compiled yet."""
    translator = _Translator(plan, program, where, donated, memory, cache)
    instructions = translator.translate()
    return CompiledPlan(
        instructions=tuple(instructions),
        adopt=translator.adopt,
        reserved=tuple(plan.reserved),
        stats=plan.stats,
        workspace_bytes=max([workspace_bytes, *translator.workspaces]),
        outside_bytes=outside_bytes,
    )


class _Translator:
    def __init__(
        self,
        plan: _core.Plan,
        program: Program,
        where: Sequence[int],
        donated: Sequence[bool],
        memory: PoolMemory,
        cache: KernelCache,
    ):
        self.program = program
        self.memory = memory
        self.cache = cache
        self.workspaces: list[int] = []
        self.offset_of: dict[int, int] = {}  # storage -> offset while it is in the pool
        self.present: set[int] = set()
        self.actions = plan.actions
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
            if donated[number]:
                self.donated_storages.add(storage)
            if where[number] == 2:
                adopt.append((number, value, offset))
        self.adopt = tuple(adopt)
        self.present.update(v for v, _ in program.constants)
        self.out: list[Run | View | Forget] = []

    def translate(self) -> list[Run | View | Forget]:
        for action in self.actions:
            if len(action) == 4:
                self._run(action[1], action[2], action[3])
            else:
                self._forget(action[1])
        for value in self.outputs:
            self._need(value)
        return self.out

    def _values_of(self, storage: int) -> list[int]:
        return [v for v in self.program.storages[storage].values if v in self.present]

    def _forget(self, storage: int) -> None:
        gone = self._values_of(storage)
        self.present.difference_update(gone)
        self.offset_of.pop(storage, None)
        consumes = storage in self.donated_storages
        if gone:
            self.out.append(Forget(tuple(gone), consumes))

    def _need(self, value: int) -> None:
        if value in self.present:
            return
        record = self.program.values[value]
        offset = self.offset_of[record.storage]
        self.out.append(View(value, offset, self.memory.spec(record.aval)))
        self.present.add(value)

    def _run(self, index: int, recompute: bool, placements: Sequence[Any]) -> None:
        op = self.program.operations[index]
        for value in op.operands:
            self._need(value)
        executable = op.kernel.executable(
            modes_of(self.program, op, placements), self.memory.device, self.cache
        )
        self.workspaces.append(executable.workspace_bytes)
        slots = []
        for k in executable.slot_results:
            slots.append((placements[k][1], self.memory.spec(op.kernel.out_avals[k])))
        overwritten, forget = [], []
        consumes = False
        for _, offset, in_place in placements:
            if in_place >= 0:
                overwritten.append((in_place, offset))
                storage = self.program.values[op.operands[in_place]].storage
                gone = self._values_of(storage)
                self.present.difference_update(gone)
                self.offset_of.pop(storage, None)
                forget += gone
                consumes = consumes or storage in self.donated_storages
        results = []
        for k in executable.order:
            storage, offset, _ = placements[k]
            known = storage >= 0 and not (offset < 0 and op.results[k] in self.present)
            results.append(op.results[k] if known else -1)
            if known:
                self.present.add(op.results[k])
                if offset >= 0:
                    self.offset_of[storage] = offset
        self.out.append(
            Run(
                executable,
                tuple(slots),
                op.operands,
                tuple(results),
                tuple(overwritten),
                tuple(forget),
                recompute,
                consumes,
                op,
            )
        )


def execute(
    compiled: CompiledPlan,
    program: Program,
    inputs: Sequence[jax.Array],
    constants: Sequence[jax.Array],
    memory: PoolMemory,
    counters: Counters,
    interrupts: DeferredInterrupts,
) -> list[jax.Array]:
    """Carries out a plan.

    Args:
      inputs, constants: arrays for `program.inputs` and `program.constants`.

    Returns:
      The output values, in the pool where they are large enough.

    Raises:
      Whatever an operation raises. The pool is then as before the call; arrays given as inputs are
      intact unless a note on the error says otherwise.
    """
    env: list[Any] = [None] * len(program.values)
    for value, array in zip(program.inputs, inputs, strict=True):
        env[value] = array
    for (value, _), array in zip(program.constants, constants, strict=True):
        env[value] = array
    for offset, nbytes in compiled.reserved:
        memory.pool.discard(offset, nbytes)
    for number, value, offset in compiled.adopt:
        interrupts.check()
        spec = memory.spec(program.values[value].aval)
        moved = kernels.copy_into(memory.slot(offset, spec), inputs[number])
        if arrays.address_of(moved) != memory.pool.base + offset:
            raise RuntimeError("invariant: a copy into a slot lies in the slot")
        arrays.replace_buffer(inputs[number], memory.lend(offset, spec))
        del moved
    consumed = False
    try:
        for instruction in compiled.instructions:
            if interrupts.noted and not consumed:
                interrupts.check()
            if type(instruction) is Run:
                consumed = consumed or instruction.consumes_input
                _run(instruction, env, memory, counters)
            elif type(instruction) is View:
                env[instruction.value] = memory.view(instruction.offset, instruction.spec)
            else:
                assert type(instruction) is Forget
                consumed = consumed or instruction.consumes_input
                for value in instruction.values:
                    if instruction.consumes_input and env[value] is not None:
                        memory.pool.reclaim(memory.offset_of(env[value]))
                        env[value].delete()
                    env[value] = None
        given = {id(x) for x in inputs}
        return [
            env[v] if id(env[v]) in given else memory.lent(env[v], program.values[v].aval)
            for v in program.outputs
        ]
    except BaseException as error:
        if consumed:
            error.add_note(
                "coop_jax: donated arguments of this call were already overwritten or freed;"
                " they cannot be used again."
            )
        raise
    finally:
        env.clear()  # whoever keeps the traceback must not keep the values


def _run(run: Run, env: list[Any], memory: PoolMemory, counters: Counters) -> None:
    first = not run.executable.checked
    begin = time.perf_counter()
    results = launch(
        run.executable,
        run.slots,
        [env[v] for v in run.operands],
        run.overwritten,
        memory,
        check=run.consumes_input,
    )
    # The first call of an executable sets up JAX's dispatch; its time says nothing of the operation.
    seconds = run.executable.kernel.cost_seconds if first else time.perf_counter() - begin
    for value in run.forget:
        env[value] = None
    if run.consumes_input:
        for _, offset in run.overwritten:
            memory.pool.reclaim(offset)
    for value, result in zip(run.results, results, strict=True):
        if value >= 0:
            env[value] = result
    if run.recompute:
        counters.recompute_seconds += seconds
    else:
        counters.compute_seconds += seconds


def launch(
    executable: Executable,
    slots: Sequence[tuple[int, _core.SlotSpec]],
    operands: list[Any],
    overwritten: Sequence[tuple[int, int]],
    memory: PoolMemory,
    *,
    check: bool = False,
) -> Sequence[jax.Array]:
    """Runs an executable with its outputs in the pool.

    Args:
      slots: (offset, spec) for each output that goes into a slot.
      operands: arrays and scalars; the list is emptied, so that it keeps no array alive.
      overwritten: (operand position, offset) of the operands that outputs take the memory of.
      check: look at the addresses even if this executable was found to obey (an argument that the
        user held may be shared with NumPy, and XLA then declines).

    Returns:
      The outputs in the order of `executable.order`.
    """
    arguments: list[Any] = []
    try:
        arguments += [memory.slot(offset, spec) for offset, spec in slots]
        arguments += operands
        results = executable.call(*arguments)
    finally:  # also where it raises: a traceback that somebody keeps must not keep arrays
        operands.clear()
        arguments.clear()
    if not memory.synchronous:
        jax.block_until_ready(results)
    if executable.checked and executable.places_outputs and not check:
        return results
    return _placed(executable, slots, overwritten, results, memory)


def _placed(
    executable: Executable,
    slots: Sequence[tuple[int, _core.SlotSpec]],
    overwritten: Sequence[tuple[int, int]],
    results: Sequence[jax.Array],
    memory: PoolMemory,
) -> list[jax.Array]:
    """Checks where XLA put the outputs; copies those that are not where they were told to be."""
    placed = list(results)
    offsets = [offset for offset, _ in slots] + [offset for _, offset in sorted(overwritten)]
    declined = False
    for k, offset in enumerate(offsets):
        if arrays.address_of(placed[k]) == memory.pool.base + offset:
            continue
        declined = True
        aval = executable.kernel.out_avals[executable.order[k]]
        if executable.donates and not executable.checked and k < len(slots):
            executable.workspace_bytes += placed[k].nbytes  # XLA allocated it, and will again
        try:
            slot = _slot(memory, offset, memory.spec(aval), patient=not executable.donates)
        except RuntimeError as error:
            raise RuntimeError(
                "an argument was donated but its memory is shared with another library"
                " (DLPack or the buffer protocol), so it cannot be updated in place:"
                " let go of that view first, or do not donate the argument"
            ) from error
        placed[k] = kernels.copy_into(slot, placed[k])
    if not executable.checked:
        executable.checked = True
        executable.places_outputs = not declined
    return placed


def _slot(memory: PoolMemory, offset: int, spec: _core.SlotSpec, *, patient: bool) -> jax.Array:
    # An argument that was deleted, not donated, may be held for a moment by XLA's worker threads.
    deadline = time.monotonic() + _PATIENCE_SECONDS if patient else 0.0
    while True:
        try:
            return memory.slot(offset, spec)
        except RuntimeError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(2e-5)
