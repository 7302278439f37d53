"""The memory of a function of `coop_jax.run`, by its plan.

Model: the plan's actions are gone through, each a moment. A storage is in the pool, or outside of
it, from the action that makes it to the one that drops or evicts it, or writes another one over it;
so one that is computed again is several buffers. Beside the pool the plan reserves the most that
lies outside at one time, and workspace.

Thread rule: functions of their arguments. Cost: a plan, then linear in its actions.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat import contexts, name_stacks
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.report import live_set
from coop_jax._src.report.arguments import Argument, planned_arguments
from coop_jax._src.report.buffers import Buffer, Kind
from coop_jax._src.report.elsewhere import held_elsewhere
from coop_jax._src.report.hints import hints_of
from coop_jax._src.report.memory_report import MemoryReport
from coop_jax._src.report.xla_buffers import Peak
from coop_jax._src.run import api as run_api

_POOL, _OUTSIDE = 0, 1  # numbers of allocations


def planned_report(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType | None
) -> MemoryReport:
    """The account of a function under a budget.

    Args:
      fn: what `run` or `remat_eager` returned.
      args: of the call; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: likewise.
      caller: the innermost frame that is the user's.

    Raises:
      ValueError: the order of operations depends on values.
    """
    inner: Callable[..., Any] = inspect.unwrap(fn)
    planned = fn if hasattr(fn, "simulate") else run_api.run(inner)
    simulation = planned.simulate(*args, **kwargs)
    refusal = "" if simulation.feasible else str(simulation)
    if refusal:
        peak_bytes = simulation.unbudgeted_peak_bytes
        simulation = planned.simulate(*args, budget=peak_bytes, **kwargs)
    program = planned.traced(*args, **kwargs).program
    avals = [program.values[v].aval for v in program.inputs]
    inputs = [
        (tuple(a.shape), str(a.dtype), d) for a, d in zip(avals, program.donated, strict=True)
    ]
    arguments = planned_arguments(inner, args, kwargs, inputs)
    replay = _Replay(program, arguments)
    buffers = replay.buffers(simulation.plan)
    moments = len(simulation.actions)
    moment = live_set.fullest_moment(buffers, moments)
    live = live_set.live_at(buffers, moment)
    unused = simulation.peak_bytes - sum(b.nbytes for b in live)
    listed = [*live, Buffer(unused, "unused", last=moments - 1)] if unused else live
    given = sum(program.storages[s].nbytes for s in replay.inputs)
    made = {program.values[v].storage for v in program.outputs}
    results = sum(program.storages[s].nbytes for s in made)
    donated = sum(program.storages[s].nbytes for s, a in replay.inputs.items() if a.donated)
    elsewhere = held_elsewhere(jax.tree.leaves((args, kwargs)), caller)
    return MemoryReport(
        name=str(getattr(inner, "__name__", type(inner).__name__)),
        platform=contexts.default_device().platform,
        devices=1,
        peak_bytes=simulation.peak_bytes,
        argument_bytes=given,
        output_bytes=results,
        alias_bytes=donated,
        temporary_bytes=simulation.peak_bytes - (given + results - donated),
        library_bytes=0,
        peak=replay.peak(simulation.actions, moment),
        buffers=tuple(sorted(listed, key=lambda b: (-b.nbytes, b.path, b.first))),
        moments=moments,
        lifetimes=tuple(buffers),
        hints=hints_of(listed, arguments, elsewhere, simulation.peak_bytes),
        elsewhere=elsewhere,
        refusal=refusal,
    )


class _Replay:
    """Goes through a plan.

    Attributes:
      inputs: the argument in each storage that holds one at first.
    """

    def __init__(self, program: Program, arguments: list[Argument]):
        self._program = program
        self.inputs = {
            program.values[v].storage: a for v, a in zip(program.inputs, arguments, strict=True)
        }
        self._outputs = {program.values[v].storage for v in program.outputs}
        self._held: dict[int, Buffer] = {}  # by storage: since when, and where
        sizes = [s.nbytes for s in program.storages]
        self._outside = [0, *itertools.accumulate(sizes)]
        self._read_backward = {
            program.values[v].storage
            for op in program.operations
            if _stack(op).phase == "backward"
            for v in op.operands
        }

    def buffers(self, plan: _core.Plan) -> list[Buffer]:
        """Every time that a storage is in memory."""
        found: list[Buffer] = []
        actions = plan.actions
        self._hold_inputs(plan.input_offsets)

        def drop(storage: int, moment: int) -> None:
            held = self._held.pop(storage, None)
            if held is not None:
                found.append(dataclasses.replace(held, last=moment))

        for moment, action in enumerate(actions):
            if not isinstance(action, _core.Run):
                drop(action.storage, moment)
                continue
            op = self._program.operations[action.operation]
            for placed in action.placements:
                if placed.in_place_input >= 0:
                    over = self._program.values[op.operands[placed.in_place_input]].storage
                    drop(over, moment)  # the same block: counted once
            for placed in action.placements:
                if 0 <= placed.storage < len(self._program.storages):
                    self._hold(placed.storage, placed.offset, moment, op)
        for storage in list(self._held):
            drop(storage, max(0, len(actions) - 1))
        return sorted(found, key=lambda b: (b.first, b.allocation, b.offset))

    def peak(self, actions: list[_core.Action], moment: int) -> Peak | None:
        """What runs then."""
        action = actions[moment] if actions else None
        if not isinstance(action, _core.Run):
            return None
        op = self._program.operations[action.operation]
        stack = _stack(op)
        share = moment / len(actions)
        return Peak(op.kernel.label, op.source, stack.modules, stack.phase, share)

    def _hold_inputs(self, offsets: list[int]) -> None:
        """Arguments and constants; what is not donated stays outside of the pool to the end."""
        values = [*self._program.inputs, *(value for value, _ in self._program.constants)]
        for number, value in enumerate(values):
            offset = offsets[number] if number < len(offsets) else -1
            self._hold(self._program.values[value].storage, offset, 0, None)

    def _hold(self, storage: int, offset: int, moment: int, op: Operation | None) -> None:
        record = self._program.storages[storage]
        aval = self._program.values[record.values[0]].aval
        argument = self.inputs.get(storage) if op is None else None
        stack = name_stacks.NameStack("", "", "other") if op is None else _stack(op)
        self._held[storage] = Buffer(
            nbytes=record.nbytes,
            kind=self._kind(storage, argument, op),
            shape=tuple(aval.shape),
            dtype=str(aval.dtype),
            allocation=_OUTSIDE if offset < 0 else _POOL,
            # What is outside lies anywhere; ranges that do not touch keep it apart.
            offset=self._outside[storage] if offset < 0 else offset,
            first=moment,
            operation="" if op is None else op.kernel.label,
            source="" if op is None else op.source,
            module=stack.modules,
            path="" if argument is None else argument.path,
        )

    def _kind(self, storage: int, argument: Argument | None, op: Operation | None) -> Kind:
        if argument is not None:
            return argument.kind
        if op is None:
            return "constants"
        if storage in self._outputs:
            return "results"
        if storage in self._read_backward and _stack(op).phase != "backward":
            return "residuals"
        return "temporaries"


def _stack(op: Operation) -> name_stacks.NameStack:
    return name_stacks.read(f"{op.name_stack}/{op.kernel.label}")
