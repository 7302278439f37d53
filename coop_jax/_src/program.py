"""A traced function as a straight-line program of operations over storages.

`flatten` inlines calls, unrolls scans, keeps cheap nested calls as one operation, turns reshapes
into views, drops what nobody reads, and decides what is in place. The result knows nothing of a
budget or a pool: it is planned for many (see `planning`).

Invariants: operations are in program order; every value is made once; a storage is released after
the operation that last uses it; an in-place result has the shape and dtype of the operand it
overwrites, whose storage no later operation uses.
Cost: linear in the number of equations after unrolling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from coop_jax._src import costs, products, stacking, sums
from coop_jax._src.building import DynamicControlFlow, RawOperation
from coop_jax._src.bundling import bundle
from coop_jax._src.flattening import Flattener
from coop_jax._src.fusible import may_be_absorbed
from coop_jax._src.fusing import fuse
from coop_jax._src.grouping import SMALL_BYTES
from coop_jax._src.kernels import Kernel, KernelCache
from coop_jax._src.replacing import replaced_inputs
from coop_jax._src.updates import run_early

__all__ = ["DynamicControlFlow", "Operation", "Program", "Storage", "Value", "build_program"]


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value: a shape and dtype over a storage. Several values may share one (views).

    `at_bytes` is where in the storage it begins; a view may be of a part of it.
    """

    storage: int
    aval: Any
    at_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """A storage: bytes as asked, and whether it lies outside the pool."""

    nbytes: int
    outside: bool
    values: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation: a kernel, its operands (values), its results (values), where they go."""

    kernel: Kernel
    operands: tuple[int, ...]
    results: tuple[int, ...]
    in_place: tuple[int, ...]  # for each result the number of the operand it overwrites, or -1
    source: str
    name_stack: str


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A straight-line program.

    Attributes:
      values, storages, operations: see above; ids are positions.
      inputs: the value of each argument leaf.
      donated: for each input whether its memory may be reused.
      constants: (value, array) of arrays closed over.
      outputs: a value for each output leaf.
      releases: for each operation the storages that nothing uses after it.
    """

    values: tuple[Value, ...]
    storages: tuple[Storage, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    donated: tuple[bool, ...]
    constants: tuple[tuple[int, Any], ...]
    outputs: tuple[int, ...]
    releases: tuple[tuple[int, ...], ...]


def build_program(
    jaxpr: Any,
    constants: Sequence[Any],
    donated: Sequence[bool],
    cache: KernelCache,
    *,
    fusion: bool = False,
) -> Program:
    """Flattens a traced function.

    Args:
      jaxpr: from `jaxprs.trace`.
      constants: likewise, the values of the jaxpr's constants.
      donated: for each argument leaf whether it is donated.
      cache: where kernels live.
      fusion: whether operations are fused.

    Raises:
      DynamicControlFlow: the program holds a `cond` or `while`, so it has no fixed order.
      NotImplementedError: something that cannot run here, with primitive and source line.
    """
    flattener = Flattener(cache, [not d for d in donated], calls_apart=fusion)
    inputs, outputs = flattener.flatten(jaxpr, constants)
    storage_of = flattener.storages
    operations = _live_operations(flattener.operations, storage_of, outputs)
    operations = stacking.written_early(operations, flattener, outputs)
    if fusion:
        operations = sums.gathered(operations, flattener, outputs)
        operations = products.oriented(operations, flattener, outputs)
        operations = run_early(operations, flattener, inputs, outputs, donated, may_be_absorbed)
        operations = bundle(fuse(operations, flattener, outputs), flattener, outputs)
    in_place = _choose_in_place(flattener, operations, inputs, outputs, donated)
    origin_done = _completed_origins(in_place.origin, storage_of, outputs)

    def outside(storage: int, aval: Any) -> bool:
        if not flattener.can_lie_in_pool(aval):
            return True
        if storage in in_place.origin and in_place.origin[storage] in origin_done:
            return False
        return costs.nbytes(aval) <= SMALL_BYTES or storage in flattener.fixed_outside

    members: dict[int, list[int]] = {}
    for value, storage in enumerate(storage_of):
        members.setdefault(storage, []).append(value)
    numbers = {storage: k for k, storage in enumerate(sorted(members))}
    storages = [
        Storage(costs.nbytes(flattener.avals[vs[0]]), outside(s, flattener.avals[vs[0]]), tuple(vs))
        for s, vs in sorted(members.items())
    ]
    values = [
        Value(numbers[s], a, at)
        for s, a, at in zip(storage_of, flattener.avals, flattener.offsets, strict=True)
    ]
    finished = []
    for index, op in enumerate(operations):
        pairs = []
        for k, result in enumerate(op.results):
            operand = in_place.pairs.get((index, k), -1)
            if operand >= 0:
                both = (values[result].storage, values[op.operands[operand]].storage)
                if any(storages[s].outside for s in both):
                    operand = -1
            pairs.append(operand)
        finished.append(
            Operation(op.kernel, op.operands, op.results, tuple(pairs), op.source, op.name_stack)
        )
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


@dataclasses.dataclass(slots=True)
class _InPlace:
    pairs: dict[tuple[int, int], int]  # (operation, result number) -> operand number
    origin: dict[int, int]  # storage -> donated input whose memory it takes over


def _choose_in_place(
    flattener: Flattener,
    operations: Sequence[RawOperation],
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Sequence[bool],
) -> _InPlace:
    """Pairs results with operands that die there.

    Where an operand descends from a donated input, it is preferred, and before all from the one
    that the result replaces: so an updated parameter ends up at the address of the old one. Where
    they changed places, every step would find another pool, and be planned anew.
    """
    storage_of, avals = flattener.storages, flattener.avals
    last_use: dict[int, int] = {}
    for index, op in enumerate(operations):
        last_use.update((storage_of[v], index) for v in op.operands)
    kept = {storage_of[v] for v in outputs}
    kept.update(storage_of[v] for v, d in zip(inputs, donated, strict=True) if not d)
    kept.update(storage_of[v] for v, _ in flattener.constants)
    chosen = _InPlace(
        {}, {storage_of[v]: k for k, (v, d) in enumerate(zip(inputs, donated, strict=True)) if d}
    )

    def kind(value: int) -> tuple[int, Any]:
        return storage_of[value], (avals[value].shape, avals[value].dtype)

    replaced = replaced_inputs([kind(v) for v in inputs], donated, [kind(v) for v in outputs])
    for op in reversed(operations):
        # What is written over part by part ends up where its first form lies.
        if op.kernel.touches_part and op.kernel.in_place_operands:
            end = replaced.get(storage_of[op.results[0]])
            if end is not None:
                replaced.setdefault(storage_of[op.operands[op.kernel.in_place_operands[0]]], end)

    def is_own(op: RawOperation, result: int, number: int) -> bool:
        """Whether a result replaces the donated input that an operand descends from."""
        origin = chosen.origin.get(storage_of[op.operands[number]])
        return origin is not None and origin == replaced.get(storage_of[op.results[result]])

    def dies(op: RawOperation, index: int, number: int) -> bool:
        """Whether nobody else reads an operand, so that a result may take its memory."""
        storage = storage_of[op.operands[number]]
        return (
            last_use[storage] == index
            and storage not in kept
            and sum(storage_of[v] == storage for v in op.operands) == 1
            and not flattener.is_part(op.operands[number])
            and storage not in flattener.fixed_outside
        )

    def stays(result: int) -> bool:
        """Whether a result is one of the program, or becomes one where it lies."""
        return storage_of[result] in kept or storage_of[result] in replaced

    def pair(op: RawOperation, index: int, result: int, number: int) -> None:
        storage = storage_of[op.operands[number]]
        chosen.pairs[index, result] = number
        if storage in chosen.origin:
            chosen.origin[storage_of[op.results[result]]] = chosen.origin[storage]

    for index, op in enumerate(operations):
        candidates = [
            (not is_own(op, 0, n), chosen.origin.get(storage_of[op.operands[n]], len(inputs)), n)
            for n in op.kernel.in_place_operands
            if dies(op, index, n)
        ]
        taken = -1
        if candidates and flattener.can_lie_in_pool(avals[op.results[0]]):
            taken = min(candidates)[2]
            pair(op, index, 0, taken)
        if not op.kernel.is_group:
            continue
        # A group (an optimizer's update, say): what it replaces of the donated inputs, in order.
        free = [
            n
            for n, v in enumerate(op.operands)
            if n != taken and storage_of[v] in chosen.origin and dies(op, index, n)
        ]
        free.sort(key=lambda n: chosen.origin[storage_of[op.operands[n]]])
        for own in (True, False):
            for k, result in enumerate(op.results):
                wanted = avals[result]
                if (index, k) in chosen.pairs or not stays(result):
                    continue
                for n in free:
                    aval = avals[op.operands[n]]
                    if (aval.shape, aval.dtype) == (wanted.shape, wanted.dtype) and (
                        not own or is_own(op, k, n)
                    ):
                        if flattener.can_lie_in_pool(wanted):
                            pair(op, index, k, n)
                            free.remove(n)
                        break
    return chosen


def _completed_origins(
    origin: dict[int, int], storage_of: Sequence[int], outputs: Sequence[int]
) -> set[int]:
    """Donated inputs whose memory an output ends up in."""
    return {origin[storage_of[v]] for v in outputs if storage_of[v] in origin}


def releases_of(
    operations: Sequence[Operation],
    values: Sequence[Value],
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Sequence[bool],
) -> tuple[tuple[int, ...], ...]:
    """For each operation the storages that nothing uses after it."""
    last: dict[int, int] = {}
    for index, op in enumerate(operations):
        for v in (*op.results, *op.operands):
            last[values[v].storage] = index
    kept = {values[v].storage for v in outputs}
    kept.update(values[v].storage for v, d in zip(inputs, donated, strict=True) if not d)
    releases: list[list[int]] = [[] for _ in operations]
    for storage, index in last.items():
        if storage not in kept:
            releases[index].append(storage)
    return tuple(tuple(sorted(r)) for r in releases)
