"""A plan as instructions: everything looked up, nothing left to decide.

A list over numbered values: compiled functions, slots, which values to read, which to forget. It is
made of the engine's actions (see `plan_lowering`); the executor carries it out, every step anew.

Invariant: a value is present exactly while its storage is resident; a view is made before it is
read.
Thread rule: plain data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from coop_jax import _core
from coop_jax._src.execution.executables import Executable
from coop_jax._src.execution.recomputations import Tally
from coop_jax._src.execution.stats import CallCounts
from coop_jax._src.ir.program import Operation
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.planning.workspace import Provision


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Run an operation.

    Attributes:
      executable: what to call.
      slots: (offset, spec) of each output that is written into a slot.
      operands: values to read.
      results: the values that the call returns, in its order; -1 for scratch.
      overwritten: (operand position, offset) of operands whose memory an output takes over.
      copied: those of `overwritten` whose own memory stays: they are copied there first.
      forget: values that are gone afterwards.
      recompute: whether the operation has run before.
      consumes_input: whether a donated input is overwritten.
      emptied: (offset, bytes) of the pool whose pages are given back before, room for workspace.
      reclaimed: offsets of those that are overwritten, but for what `CompiledPlan.kept` names.
      settles: whether it only moves a result home at the end, which is no action of the plan.
    """

    executable: Executable
    slots: tuple[tuple[int, _core.SlotSpec], ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    overwritten: tuple[tuple[int, int], ...]
    copied: tuple[tuple[int, _core.SlotSpec], ...]  # operand position, at the offset given there
    forget: tuple[int, ...]
    recompute: bool
    consumes_input: bool
    emptied: tuple[tuple[int, int], ...]
    reclaimed: tuple[int, ...]
    operation: Operation
    settles: bool = False


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


Instruction: TypeAlias = Run | View | Forget


@dataclasses.dataclass(slots=True)
class CompiledPlan:
    """A plan ready to run, for one residency of its inputs.

    Values have places from 0 on here, not the numbers that they have in the program.

    Attributes:
      instructions: what to do, in order.
      values: how many there are.
      inputs: those of the program.
      constants: those of the program.
      adopt: (input number, spec, offset) of inputs to copy into the pool first.
      reserved: ranges of the pool that stand for memory used elsewhere.
      counts: what each call does.
      recompute_share: the expected part of the time that recomputations take.
      reserved_workspace_bytes: kept for it throughout; what needs more has a block of the pool.
      outputs: (value, offset, spec) of each result; offset -1 for those outside the pool.
      kept: (position, offset) of results over the memory of a donated input, each value once:
        whoever holds the array holds the memory, as the input's holder did, so nothing needs to be
        lent.
      lent: positions of the other results in the pool.
      plan: what it was made of.
      residency: where the inputs lie.
      provision: the workspace that operations have of their own.
      refill_seconds: expected for pages that go to XLA's workspace and come back.
      tally: what each call runs again, and how many calls there were.
      annotate: for profilers, see `trace_annotations`; None until one traces.
      replay: the instructions in C++, once the executor has made it.
    """

    instructions: tuple[Instruction, ...]
    values: int
    inputs: tuple[int, ...]
    constants: tuple[int, ...]
    adopt: tuple[tuple[int, _core.SlotSpec, int], ...]
    reserved: tuple[tuple[int, int], ...]
    counts: CallCounts
    recompute_share: float
    reserved_workspace_bytes: int
    outputs: tuple[tuple[int, int, _core.SlotSpec | None], ...]
    kept: tuple[tuple[int, int], ...]
    lent: tuple[int, ...]
    plan: _core.Plan
    residency: Residency
    provision: Provision
    refill_seconds: float
    tally: Tally
    annotate: Callable[[int], Any] | None = None
    replay: _core.Replay | None = None
