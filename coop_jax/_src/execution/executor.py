"""Carrying out a plan: a loop over instructions without decisions.

From the second step on most instructions are carried out in C++ (see `native_replay`); here is what
is done for the first time, or seldom.

Invariants: every output written into a slot is checked once per executable to lie there, and copied
there from then on if it does not; whatever fails, nothing stays held but what the user holds.
Thread rule: under the runtime's lock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat import arrays, number_checks
from coop_jax._src.execution import constants as tuning
from coop_jax._src.execution import slot_copy, trace_annotations
from coop_jax._src.execution.executables import Executable
from coop_jax._src.execution.instructions import CompiledPlan, Forget, Run, View
from coop_jax._src.execution.native_replay import count_seconds, may_be_ready, replay_of
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.execution.stats import Counters
from coop_jax._src.execution.verification import Verifier
from coop_jax._src.util.interrupts import Interrupts


def execute(
    compiled: CompiledPlan,
    inputs: Sequence[jax.Array],
    constants: Sequence[jax.Array],
    memory: PoolMemory,
    counters: Counters,
    interrupts: Interrupts,
    verifier: Verifier | None = None,
) -> tuple[list[jax.Array], bool]:
    """Carries out a plan.

    Args:
      compiled: the plan.
      inputs: arrays for the program's inputs.
      constants: arrays for its constants.
      memory: the pool that the plan was made for.
      counters: where measured seconds are added.
      interrupts: checked between instructions, until a donated input is consumed.
      verifier: what compares recomputed values with first ones, or None.

    Returns:
      The output values, in the pool where they are large enough; whether what overwrote donated
      inputs was carried out in C++, and went where it should.

    Raises:
      Whatever an operation raises. The pool is then as before the call; arrays given as inputs are
      intact unless a note on the error says otherwise.
    """
    env: list[Any] = [None] * compiled.values
    for value, array in zip(compiled.inputs, inputs, strict=True):
        env[value] = array
    for value, array in zip(compiled.constants, constants, strict=True):
        env[value] = array
    _prepare_pool(compiled, inputs, memory, interrupts)
    replay = None if verifier is not None else _replay(compiled, memory, counters)

    def misplaced(number: int, results: Sequence[jax.Array]) -> list[jax.Array]:
        run = compiled.instructions[number]
        assert type(run) is Run
        return _placed(run.executable, run.slots, run.overwritten, results, memory)

    annotate = trace_annotations.of_plan(compiled)
    number, end = 0, len(compiled.instructions)
    try:
        if replay is None:
            _check_constants(compiled, constants)
        while True:
            if replay is not None:
                number = replay.run(env, number, interrupts, misplaced, annotate)
            if number == end:
                break
            instruction = compiled.instructions[number]
            if interrupts.noted and not interrupts.consumed:
                interrupts.check()
            if type(instruction) is Run:
                interrupts.consumed |= instruction.consumes_input
                with trace_annotations.of_launch(annotate, number):
                    _run(instruction, env, memory, counters, verifier)
                if replay is not None:
                    if instruction.consumes_input:
                        replay.obeyed = False  # as far as anybody knows
                    if may_be_ready(instruction):
                        replay.make_ready(number)
            elif type(instruction) is View:
                env[instruction.value] = memory.view(instruction.offset, instruction.spec)
            else:
                assert type(instruction) is Forget
                interrupts.consumed |= instruction.consumes_input
                _forget(instruction, env, memory)
            number += 1
        obeyed = replay is not None and replay.obeyed
        return _outputs(compiled, env, inputs, memory, obeyed=obeyed), obeyed
    finally:
        env.clear()  # whoever keeps the traceback must not keep the values
        if replay is not None:
            count_seconds(replay, compiled.recompute_share, counters, ordered=memory.ordered)


def _prepare_pool(
    compiled: CompiledPlan, inputs: Sequence[jax.Array], memory: PoolMemory, interrupts: Interrupts
) -> None:
    """Gives back pages that the plan leaves alone; takes in inputs that lie outside."""
    for offset, nbytes in compiled.reserved:
        memory.pool.discard(offset, nbytes)
    for number, spec, offset in compiled.adopt:
        if not interrupts.consumed:
            interrupts.check()
        memory.adopt(offset, spec, inputs[number])
    adopted_bytes = sum(spec.nbytes for _, spec, _ in compiled.adopt)
    if adopted_bytes >= tuning.TUNED.least_returned_bytes:
        _core.return_freed_memory()  # the pool has what they took


def _check_constants(compiled: CompiledPlan, constants: Sequence[Any]) -> None:
    """Looks for NaNs in results that no operation makes, as JAX does, if it was told to."""
    if number_checks.looks_for_nans():
        results = {value for value, _, _ in compiled.outputs}
        for value, array in zip(compiled.constants, constants, strict=True):
            if value in results:
                number_checks.check(number_checks.CONSTANT, [array])


def _outputs(
    compiled: CompiledPlan,
    env: Sequence[Any],
    inputs: Sequence[jax.Array],
    memory: PoolMemory,
    *,
    obeyed: bool,
) -> list[jax.Array]:
    outputs = [env[value] for value, _, _ in compiled.outputs]
    lent = compiled.lent
    if not obeyed:
        # What XLA put elsewhere was copied there, and holds nothing.
        live = memory.pool.are_live([offset for _, offset in compiled.kept])
        lost = [p for (p, _), held in zip(compiled.kept, live, strict=True) if not held]
        lent = (*lent, *lost)
    if lent:
        given = {id(x) for x in inputs}
        for position in lent:
            if id(outputs[position]) not in given:
                _, offset, spec = compiled.outputs[position]
                assert spec is not None
                outputs[position] = memory.lend(offset, spec)
    return outputs


def _replay(compiled: CompiledPlan, memory: PoolMemory, counters: Counters) -> _core.Replay | None:
    """The plan in C++, unless somebody wants to see each operation."""
    if counters.recorder is not None or number_checks.looks_for_nans():
        return None
    if compiled.replay is None:
        compiled.replay = replay_of(compiled.instructions, memory)
    return compiled.replay


def _run(
    run: Run,
    env: list[Any],
    memory: PoolMemory,
    counters: Counters,
    verifier: Verifier | None = None,
) -> None:
    first = not run.executable.checked
    begin = time.perf_counter()
    operands = [env[v] for v in run.operands]
    for offset, nbytes in run.emptied:
        memory.pool.discard(offset, nbytes)
    if run.copied:
        _copy_overwritten(run, operands, memory)
    results = launch(
        run.executable,
        run.slots,
        operands,
        run.overwritten,
        memory,
        consumed=[env[v] for v in run.forget] if run.consumes_input else None,
        recompute=run.recompute,
    )
    if run.emptied:
        _core.return_freed_memory()  # the pool takes those pages again
    # The first call of an executable sets up JAX's dispatch: its time says nothing.
    seconds = run.executable.cost_seconds if first else time.perf_counter() - begin
    if counters.recorder is not None and not first and not run.settles:
        counters.recorder(run.executable, seconds)
    if verifier is not None:
        _verify(verifier, run, results)
    for value in run.forget:
        env[value] = None
    for offset in run.reclaimed:
        memory.pool.reclaim(offset)
    for value, result in zip(run.results, results, strict=True):
        if value >= 0:
            env[value] = result
    if run.recompute:
        counters.recompute_seconds += seconds
    else:
        counters.compute_seconds += seconds


def _forget(forget: Forget, env: list[Any], memory: PoolMemory) -> None:
    for value in forget.values:
        if forget.consumes_input and env[value] is not None:
            memory.pool.reclaim(memory.offset_of(env[value]))
            env[value].delete()
        env[value] = None


def _copy_overwritten(run: Run, operands: list[Any], memory: PoolMemory) -> None:
    """Puts copies of the operands that are overwritten but stay where the outputs will lie."""
    offsets = dict(run.overwritten)
    try:
        for position, spec in run.copied:
            slot = memory.slot(offsets[position], spec)
            operands[position] = slot_copy.copy_into(slot, operands[position])
    except BaseException:  # whoever keeps the traceback must not keep arrays
        operands.clear()
        raise


def _verify(verifier: Verifier, run: Run, results: Sequence[jax.Array]) -> None:
    operation = run.operation
    by_number = dict(zip(run.executable.order, results, strict=True))
    verifier.see(
        id(operation),  # alive as long as the program
        [by_number[k] for k in range(len(by_number))],
        operation.kernel.label,
        operation.source,
        recompute=run.recompute,
    )


def launch(
    executable: Executable,
    slots: Sequence[tuple[int, _core.SlotSpec]],
    operands: list[Any],
    overwritten: Sequence[tuple[int, int]],
    memory: PoolMemory,
    *,
    consumed: list[jax.Array] | None = None,
    recompute: bool = False,
) -> Sequence[jax.Array]:
    """Runs an executable with its outputs in the pool.

    Args:
      executable: what to run.
      slots: (offset, spec) for each output that goes into a slot.
      operands: arrays and scalars; the list is emptied, so that it keeps no array alive.
      overwritten: (operand position, offset) of the operands that outputs take the memory of.
      memory: the pool.
      consumed: arrays over memory of the user that this overwrites; the list is emptied. The
        addresses are then looked at even if this executable was found to obey (what the user held
        may be shared with NumPy, and XLA then declines).
      recompute: whether it has run before: what was made is not looked at for NaNs again, as that
        may have been off then.

    Returns:
      The outputs in the order of `executable.order`.
    """
    arguments: list[Any] = []
    try:
        arguments += [memory.slot(offset, spec) for offset, spec in slots]
        arguments += operands
        if not number_checks.looks_for_nans():
            results = executable.call(*arguments)
        else:
            with number_checks.keeping_donation():
                results = executable.call(*arguments)
            if not recompute:
                number_checks.check(executable.label, results)
    finally:  # also where it raises: a traceback that somebody keeps must not keep arrays
        operands.clear()
        arguments.clear()
    if not memory.synchronous and results:
        arrays.wait_for_launch(results[-1])
    if executable.checked and executable.places_outputs and consumed is None:
        return results
    if consumed is not None:
        if not executable.donates:  # XLA did not take them; nobody shall read what comes there
            for array in consumed:
                array.delete()
        consumed.clear()
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
        aval = executable.out_avals[executable.order[k]]
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
        placed[k] = slot_copy.copy_into(slot, placed[k])
    if not executable.checked:
        executable.checked = True
        executable.places_outputs = not declined
    return placed


def _slot(memory: PoolMemory, offset: int, spec: _core.SlotSpec, *, patient: bool) -> jax.Array:
    # An argument that was deleted, not donated, may be held for a moment by XLA's worker threads.
    patience_seconds = tuning.TUNED.release_timeout_seconds
    deadline = time.monotonic() + patience_seconds if patient else 0.0
    while True:
        try:
            return memory.slot(offset, spec)
        except RuntimeError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(tuning.TUNED.release_poll_seconds)
