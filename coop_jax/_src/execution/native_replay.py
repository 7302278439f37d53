"""A plan's instructions given to C++, which carries them out from the second step on.

What C++ does not do stays the executor's: first launches of executables, whose outputs have to be
looked at, launches over copies of operands, and whatever asks to see each operation (verification,
measuring, NaN checks). Where an operation is not done when its call returns, each is waited for, or
the last of a plan alone if the device takes them in order (a GPU).

The arrays that wait in cells own no memory, but JAX lists them among `jax.live_arrays()`. The user
may delete them; a slot is imported anew then.

Thread rule: under the runtime's lock. Cost: linear in the instructions, once for each plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from coop_jax import _core
from coop_jax._src.compat import argument_reader, arrays
from coop_jax._src.execution.instructions import Forget, Instruction, Run, View
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.execution.stats import Counters


def replay_of(instructions: Sequence[Instruction], memory: PoolMemory) -> _core.Replay:
    """The instructions in C++; its launches become ready as they are seen to obey."""
    return _Builder(memory).build(instructions)


class _Builder:
    def __init__(self, memory: PoolMemory):
        self._memory = memory
        load, load_arguments = arrays.importer(memory.device)
        self._replay = _core.Replay(
            memory.pool,
            load,
            load_arguments,
            argument_reader.argument_reader(memory.device),
            None if memory.synchronous else arrays.wait_for_launch,
            memory.ordered,
        )
        self._cells: dict[tuple[int, int], int] = {}  # by offset and identity of the description
        self._cell_of: dict[int, int] = {}  # of values that a launch made and nobody else holds

    def build(self, instructions: Sequence[Instruction]) -> _core.Replay:
        for instruction in instructions:
            if type(instruction) is Run:
                self._add_launch(instruction)
            elif type(instruction) is View:
                self._replay.add_view(
                    instruction.value, self._cell(instruction.offset, instruction.spec)
                )
            else:
                assert type(instruction) is Forget
                self._add_forget(instruction)
        return self._replay

    def _cell(self, offset: int, spec: _core.SlotSpec) -> int:
        key = offset, id(spec)  # there is one of each kind, kept by the memory
        if key not in self._cells:
            self._cells[key] = self._replay.add_cell(offset, spec)
        return self._cells[key]

    def _add_launch(self, run: Run) -> None:
        executable, memory = run.executable, self._memory
        slots = [self._cell(offset, spec) for offset, spec in run.slots]
        offsets = [offset for _, offset in sorted(run.overwritten)]
        # Results come in the order of the slots, of what is overwritten, and of the rest.
        cells = list(slots)
        for k, offset in zip(executable.order[len(slots) :], offsets, strict=False):
            spec = memory.spec(executable.out_avals[k])
            cells.append(self._cell(offset, spec) if offset >= 0 else -1)
        cells += [-1] * (len(run.results) - len(cells))
        self._replay.add_launch(
            executable.call,
            slots,
            run.operands,
            list(zip(run.results, cells, strict=True)),
            offsets,
            run.forget,
            run.recompute,
            run.consumes_input,
            run.reclaimed,
            run.emptied,
        )
        for value in run.forget:
            self._cell_of.pop(value, None)
        for value, cell in zip(run.results, cells, strict=True):
            if value >= 0:
                self._cell_of[value] = cell

    def _add_forget(self, forget: Forget) -> None:
        if forget.consumes_input:
            self._replay.add_other()
            return
        self._replay.add_forget([(v, self._cell_of.pop(v, -1)) for v in forget.values])


def may_be_ready(run: Run) -> bool:
    """Whether a launch that was carried out may be left to C++ from now on."""
    executable = run.executable
    return (
        executable.checked and executable.places_outputs and executable.donates and not run.copied
    )


def count_seconds(
    replay: _core.Replay, recompute_share: float, counters: Counters, *, ordered: bool
) -> None:
    """Adds what was measured in C++; `recompute_share` is that of the plan."""
    seconds, again = replay.compute_seconds, replay.recompute_seconds
    if ordered:  # nobody knows what each took
        seconds += again
        again = seconds * recompute_share
        seconds -= again
    counters.compute_seconds += seconds
    counters.recompute_seconds += again
    replay.compute_seconds = replay.recompute_seconds = 0.0
