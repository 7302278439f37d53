"""From a traced function to a program.

`Flattener` inlines calls, unrolls scans, keeps cheap nested calls as one operation, turns reshapes
into views. Here what nobody reads is dropped, the passes run, and it is decided what is in place.

Thread rule: as the kernel cache. Cost: linear in the number of equations after unrolling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coop_jax._src.ir import cost_model
from coop_jax._src.ir.kernel_classes import may_be_absorbed
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Operation, Program, Storage, Value, releases_of
from coop_jax._src.ir.raw_operations import RawOperation
from coop_jax._src.lowering import constants as tuning
from coop_jax._src.lowering import in_place, stacking
from coop_jax._src.lowering.flatten import Flattener
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.lowering.passes import transpose_folding
from coop_jax._src.lowering.passes.early_updates import run_early
from coop_jax._src.lowering.passes.fusion import fuse
from coop_jax._src.lowering.passes.launch_clustering import bundle


def build_program(
    jaxpr: Any,
    constants: Sequence[Any],
    donated: Sequence[bool],
    cache: KernelCache,
    *,
    fusion: bool = False,
    opaque: frozenset[str] = frozenset(),
    passes: PassOptions | None = None,
) -> Program:
    """Flattens a traced function.

    Args:
      jaxpr: from `jaxprs.trace`.
      constants: likewise, the values of the jaxpr's constants.
      donated: for each argument leaf whether it is donated.
      cache: where kernels live.
      fusion: whether operations are fused.
      opaque: primitives whose equations stay one operation each, whatever programs they hold.
      passes: which passes take place; None for all.

    Raises:
      DynamicControlFlow: the program holds a `cond` or `while`, so it has no fixed order.
      NotImplementedError: something that cannot run here, with primitive and source line.
    """
    passes = PassOptions() if passes is None else passes
    flattener = Flattener(
        cache, [not d for d in donated], fused=fusion, opaque=opaque, passes=passes
    )
    inputs, outputs = flattener.flatten(jaxpr, constants)
    storage_of = flattener.storages
    operations: Sequence[RawOperation] = _live_operations(flattener.operations, storage_of, outputs)
    if passes.stacks_written_early:
        operations = stacking.written_early(operations, flattener, outputs)
    if fusion:
        operations = _fused(operations, flattener, inputs, outputs, donated, passes)
    chosen = in_place.choose_in_place(flattener, operations, inputs, outputs, donated)
    origin_done = in_place.completed_origins(chosen.origin, storage_of, outputs)

    def outside(storage: int, aval: Any) -> bool:
        if not flattener.can_lie_in_pool(aval):
            return True
        if storage in chosen.origin and chosen.origin[storage] in origin_done:
            return False
        return (
            cost_model.nbytes(aval) <= tuning.TUNED.small_bytes
            or storage in flattener.fixed_outside
        )

    members: dict[int, list[int]] = {}
    for value, storage in enumerate(storage_of):
        members.setdefault(storage, []).append(value)
    numbers = {storage: k for k, storage in enumerate(sorted(members))}
    storages = [
        Storage(
            cost_model.nbytes(flattener.avals[vs[0]]), outside(s, flattener.avals[vs[0]]), tuple(vs)
        )
        for s, vs in sorted(members.items())
    ]
    values = [
        Value(numbers[s], a, at)
        for s, a, at in zip(storage_of, flattener.avals, flattener.offsets, strict=True)
    ]
    finished = _finished(operations, chosen.pairs, values, storages)
    return Program(
        values=tuple(values),
        storages=tuple(storages),
        operations=tuple(finished),
        inputs=tuple(inputs),
        donated=tuple(donated),
        constants=tuple(flattener.constants),
        outputs=tuple(outputs),
        releases=releases_of(finished, values, inputs, outputs, donated),
    )


def _fused(
    operations: Sequence[RawOperation],
    flattener: Flattener,
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Sequence[bool],
    passes: PassOptions,
) -> Sequence[RawOperation]:
    """What takes place where operations are fused, in order."""
    if passes.transpose_folding:
        operations = transpose_folding.oriented(operations, flattener, outputs)
    if passes.early_updates:
        operations = run_early(operations, flattener, inputs, outputs, donated, may_be_absorbed)
    if passes.fusion:
        operations = fuse(operations, flattener, outputs)
    if passes.launch_clustering:
        operations = bundle(operations, flattener, outputs)
    return operations


def _finished(
    operations: Sequence[RawOperation],
    pairs: Mapping[tuple[int, int], int],
    values: Sequence[Value],
    storages: Sequence[Storage],
) -> list[Operation]:
    """The operations with what they write in place: only in the pool, and over what is there."""
    finished = []
    for index, op in enumerate(operations):
        over = []
        for k, result in enumerate(op.results):
            operand = pairs.get((index, k), -1)
            if operand >= 0:
                both = (values[result].storage, values[op.operands[operand]].storage)
                if any(storages[s].outside for s in both):
                    operand = -1
            over.append(operand)
        finished.append(
            Operation(op.kernel, op.operands, op.results, tuple(over), op.source, op.name_stack)
        )
    return finished


def _live_operations(
    operations: Sequence[RawOperation], storage_of: Sequence[int], outputs: Sequence[int]
) -> list[RawOperation]:
    """Operations whose results somebody reads, or that do something besides."""
    wanted = {storage_of[v] for v in outputs}
    kept = []
    for op in reversed(operations):
        if op.effectful or any(storage_of[r] in wanted for r in op.results):
            wanted.update(storage_of[v] for v in op.operands)
            kept.append(op)
    return kept[::-1]
