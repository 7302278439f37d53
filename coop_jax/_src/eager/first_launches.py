"""Launches of operations of which it is not known yet whether they write where they are told.

Model: the first launch of an executable is looked at; if its results lie in their slots it obeys,
and later ones go past Python.
Thread rule: the session's. Cost: some microseconds of Python for each.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from coop_jax import _core
from coop_jax._src.eager.operation_cache import Prepared
from coop_jax._src.execution.executables import Executable
from coop_jax._src.execution.executor import launch
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.execution.verification import Verifier


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """What is launched, and where its results go.

    Attributes:
      prepared: the operation.
      executable: what to launch.
      places: for each result its storage, the storage it is wanted for now (-1: for none), its
        offset (-1: outside the pool) and the operand whose memory it takes (-1: none).
      recompute: whether it has run before.
      given: whether the memory that is overwritten is the caller's.
    """

    prepared: Prepared
    executable: Executable
    places: Sequence[tuple[int, int, int, int]]
    recompute: bool
    given: bool


def first_launch(
    runtime: Runtime,
    core: _core.SessionCore,
    verifier: Verifier | None,
    it: Launch,
    operands: list[Any],
) -> list[Any]:
    """Launches what is not known to obey yet.

    Args:
      runtime: of the call.
      core: of the session.
      verifier: compares what is made again, if it is to.
      it: what to launch.
      operands: arrays and scalars; the list is emptied.

    Returns:
      The results by number.
    """
    executable, places, recompute = it.executable, it.places, it.recompute
    memory = runtime.memory()
    specs = [(k, memory.spec(executable.out_avals[k])) for k in executable.slot_results]
    slots = [(places[k][2], spec) for k, spec in specs]
    first = not executable.checked
    begin = time.perf_counter()
    over = [(mode, places[k][2]) for k, mode in enumerate(executable.modes) if mode >= 0]
    consumed = [operands[mode] for mode, _ in over] if it.given else None
    results = launch(
        executable, slots, operands, over, memory, consumed=consumed, recompute=recompute
    )
    seconds = executable.cost_seconds if first else time.perf_counter() - begin
    counters = runtime.counters
    if counters.recorder is not None and not first:
        counters.recorder(executable, seconds)
    if recompute:
        counters.recompute_seconds += seconds
    else:
        counters.compute_seconds += seconds
    if executable.obedient_call is None and executable.places_outputs and memory.synchronous:
        executable.obedient_call = _core.CompiledCall(executable.call, executable.order, specs)
    by_number: list[Any] = [None] * len(places)
    for k, result in zip(executable.order, results, strict=True):
        by_number[k] = result
    if verifier is not None:
        label, validate = it.prepared.kernel.label, core.validate
        verifier.see_launch(places, by_number, label, recompute=recompute, validate=validate)
    return by_number
