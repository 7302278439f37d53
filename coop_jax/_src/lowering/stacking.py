"""Stacks of which only the whole is needed later are written part by part, into one buffer.

A stack is put together when something needs it as a whole (see `stacks`): its parts are in memory
until then, and the whole beside them. Where a later scan reads the parts it costs nothing that they
were kept. Where nothing does (the states that a model returns, what a decoder generates) each few
of them are written into the whole as soon as they are made, and go.

Thread rule: functions of their arguments; `flattener` is changed. Cost: linear in the operations
and in the parts.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from coop_jax._src.ir import cost_model
from coop_jax._src.ir.raw_operations import RawOperation
from coop_jax._src.lowering import constants
from coop_jax._src.lowering.builder import Builder, PutTogether


def written_early(
    operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
) -> list[RawOperation]:
    """The operations, with stacks written as their parts are made where that needs less memory.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of; gets new ones.
      outputs: values that are results of the program.
    """
    numbers = {id(op): n for n, op in enumerate(operations)}
    stacks = [s for s in flattener.put_together if _is_apart(s, numbers, flattener)]
    if not stacks:
        return list(operations)
    storage_of = flattener.storages
    made_at = {storage_of[v]: n for n, op in enumerate(operations) for v in op.results}
    readers: dict[int, list[int]] = collections.defaultdict(list)
    for number, op in enumerate(operations):
        for value in op.operands:
            readers[storage_of[value]].append(number)
    for value in outputs:
        readers[storage_of[value]].append(len(operations))
    gone = set[int]()
    after: dict[int, list[RawOperation]] = {}  # by the operation that they come behind
    for stack in stacks:
        own = {numbers[id(op)] for op in stack.operations}
        inside = {storage_of[v] for op in stack.operations[:-1] for v in op.results}
        parts = [storage_of[p] for p in stack.parts]
        made = [made_at.get(s, -1) for s in parts]
        last_read = [max((n for n in readers[s] if n not in own), default=-1) for s in parts]
        if any(n not in own for s in inside for n in readers[s]):
            continue
        if min(made) < 0 or not _is_worthwhile(made, last_read):
            continue
        gone |= own
        for number, writing in _writes(stack, made, flattener):
            after.setdefault(number, []).append(writing)
    ordered: list[RawOperation] = []
    for number, op in enumerate(operations):
        ordered += [] if number in gone else [op]
        ordered += after.get(number, [])
    return ordered


def _is_apart(stack: PutTogether, numbers: dict[int, int], flattener: Builder) -> bool:
    """Whether nothing but its size is to be seen to before a stack is written otherwise."""
    storages = {flattener.storages[p] for p in stack.parts}
    return (
        len(storages) == len(stack.parts)
        and bool(stack.operations)
        and all(id(op) in numbers for op in stack.operations)
        and stack.operations[-1].results == (stack.whole,)
        and flattener.can_lie_in_pool(flattener.avals[stack.whole])
        and cost_model.nbytes(flattener.avals[stack.whole]) > constants.TUNED.small_bytes
    )


def _is_worthwhile(made: Sequence[int], last_read: Sequence[int]) -> bool:
    """Whether few parts are alive at any one time if each goes when it is written."""
    changes: list[tuple[int, int]] = []
    for group in _groups(len(made)):
        written = max(made[k] for k in group)
        for k in group:
            changes += [(made[k], 1), (max(last_read[k], written) + 1, -1)]
    alive = most = 0
    for _, change in sorted(changes):
        alive += change
        most = max(most, alive)
    return most <= max(constants.TUNED.stack_max_alive_fraction * len(made), 1)


def _groups(count: int) -> list[range]:
    """The parts that are written together."""
    tuned = constants.TUNED
    width = max(1, min(tuned.stack_max_parts, int(count * tuned.stack_max_parts_fraction)))
    return [range(k, min(k + width, count)) for k in range(0, count, width)]


def _writes(
    stack: PutTogether, made: Sequence[int], flattener: Builder
) -> list[tuple[int, RawOperation]]:
    """What writes a stack, and the operations after which that can be, in their order."""
    aval = flattener.avals[stack.whole]
    last = stack.operations[-1]
    groups = sorted(
        ((max(made[k] for k in group), group) for group in _groups(len(made))),
        key=lambda pair: pair[0],
    )
    found: list[tuple[int, RawOperation]] = []
    so_far = -1
    for number, group in groups:
        parts = [stack.parts[k] for k in group]
        result = stack.whole if group is groups[-1][1] else flattener.new(aval)
        position = flattener.position(group[0])
        moved = 2 * sum(cost_model.nbytes(flattener.avals[p]) for p in parts)
        if so_far < 0:
            operands = (*parts, position)
            kernel = flattener.cache.from_function(
                _begin(aval),
                [flattener.avals[v] for v in operands],
                moved_bytes=moved + cost_model.nbytes(aval),
            )
        else:
            operands = (so_far, *parts, position)
            kernel = flattener.cache.from_function(
                _go_on,
                [flattener.avals[v] for v in operands],
                moved_bytes=moved,
                in_place_operands=(0,),
            )
        writing = dataclasses.replace(last, kernel=kernel, operands=operands, results=(result,))
        found.append((number, writing))
        so_far = result
    return found


def _begin(aval: Any) -> Callable[..., Any]:
    def function(*given: Any) -> Any:
        return _go_on(jnp.zeros(aval.shape, aval.dtype), *given)

    return function


def _go_on(whole: Any, *given: Any) -> Any:
    *parts, position = given
    return jax.lax.dynamic_update_slice_in_dim(whole, jnp.stack(parts), position, 0)
