"""Updates run early: what replaces donated arrays is computed as soon as what it reads is there.

An optimizer is written after the backward pass and goes over all parameters several times, so every
gradient waits for it. Operations that only results of the program depend on, and whose results
replace donated arrays, need no memory of their own: run at once, each frees its gradient.

The gradient of weights that are read several times (at each step of a recurrent network, for each
microbatch) is a sum, and the weights are read until its last term is made. So what overwrites them
waits, but the sum does not: each term goes as soon as it is made, unless it is small. Nor do sums
over a batch (the gradients of biases) wait, which read much and make little.

Thread rule: functions of their arguments. Cost: linear in operations and their operands.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coop_jax._src.ir import cost_model
from coop_jax._src.lowering import constants

if TYPE_CHECKING:
    from coop_jax._src.ir.raw_operations import RawOperation
    from coop_jax._src.lowering.builder import Builder


def run_early(
    operations: Sequence[RawOperation],
    flattener: Builder,
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Sequence[bool],
    is_cheap: Callable[[RawOperation], bool],
) -> list[RawOperation]:
    """The operations, with updates where the last of their operands is made.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of.
      inputs: values that are arguments of the program.
      outputs: values that are its results.
      donated: for each argument whether its memory may be reused.
      is_cheap: whether an operation may be part of an update.
    """
    storage_of = flattener.storages
    last = _last_operations(operations, storage_of, is_cheap)
    if not _replaces_donated(operations, last, flattener, inputs, outputs, donated):
        return list(operations)
    overwritten = {storage_of[v] for v, d in zip(inputs, donated, strict=True) if d}
    return _Ordering(
        operations, storage_of, last, overwritten, lambda s: cost_model.nbytes(flattener.avals[s])
    ).order()


class _Ordering:
    """Puts updates where the last of their operands is made, everything else where it was.

    What reads a donated array waits for all that reads it and is no update, so that it can be
    overwritten. What updates make of other arguments alone is put before the first that reads it,
    and at the beginning if it is small (step counts): then nothing separates parts of an update.
    """

    def __init__(
        self,
        operations: Sequence[RawOperation],
        storage_of: Sequence[int],
        updates: Sequence[int],
        overwritten: set[int],
        nbytes: Callable[[int], int],
    ):
        self._operations = operations
        self._storage_of = storage_of
        self._nbytes = nbytes
        self._maker = {storage_of[v]: n for n, op in enumerate(operations) for v in op.results}
        self._missing: dict[int, int] = {}  # of an update: how many it waits for
        self._waiting: dict[int, list[int]] = collections.defaultdict(list)  # operation -> updates
        self._of_arguments: set[int] = set()
        others: dict[int, list[int]] = collections.defaultdict(list)  # readers, no updates
        for number in sorted(set(range(len(operations))).difference(updates)):
            for storage in {storage_of[v] for v in operations[number].operands} & overwritten:
                others[storage].append(number)
        overwrites = self._overwrites(updates, overwritten)
        for number in updates:
            awaited = self._makers(number) - self._of_arguments
            awaited.update(n for storage in overwrites[number] for n in others[storage])
            if awaited:
                self._missing[number] = len(awaited)
                for first in awaited:
                    self._waiting[first].append(number)
            else:
                self._of_arguments.add(number)
        self._placed: set[int] = set()
        self._order: list[RawOperation] = []

    def _overwrites(self, updates: Sequence[int], overwritten: set[int]) -> dict[int, set[int]]:
        """For each update the donated arrays of which it computes new values, it or its readers.

        Parts of the update of one array wait together, so that they can be fused; sums of gradients
        do not.
        """
        sums = self._sums(updates, overwritten)
        found: dict[int, set[int]] = {}
        readers: dict[int, set[int]] = collections.defaultdict(set)  # storage -> donated arrays
        for number in reversed(updates):
            op = self._operations[number]
            results = {self._storage_of[v] for v in op.results}
            sizes = {self._nbytes(s) for s in results}
            mine = {self._storage_of[v] for v in op.operands} & overwritten
            if number not in sums:
                mine |= {s for r in results for s in readers[r] if self._nbytes(s) in sizes}
            found[number] = mine
            for value in op.operands:
                readers[self._storage_of[value]] |= mine
        return found

    def _sums(self, updates: Sequence[int], overwritten: set[int]) -> set[int]:
        """Updates that make less than they read, and those that make what they read.

        They add terms, or reduce: nothing is gained while they wait, since it keeps what they read.
        What depends on an array that is overwritten is none of them.
        """
        is_term: dict[int, bool] = {}  # storages that updates make, of what is not overwritten
        apart = set(overwritten)
        sums = set[int]()
        for number in updates:
            op = self._operations[number]
            read = {self._storage_of[v] for v in op.operands}
            made = {self._storage_of[v] for v in op.results}
            if read & apart:
                apart |= made
                continue
            # What is made of other arguments alone is there in any case.
            terms = [s for s in read if is_term.get(s, s in self._maker)]
            is_term.update(dict.fromkeys(made, bool(terms)))
            less_bytes = sum(map(self._nbytes, terms)) - sum(map(self._nbytes, made))
            if less_bytes >= constants.TUNED.update_min_term_bytes:
                sums.add(number)
        others = set(updates)
        for number in reversed(updates):
            if number in sums:
                sums |= self._makers(number) & others
        return sums

    def order(self) -> list[RawOperation]:
        """All operations, ordered."""
        for number in sorted(self._of_arguments):
            results = self._operations[number].results
            if all(
                self._nbytes(self._storage_of[v]) <= constants.TUNED.small_bytes for v in results
            ):
                self._place(number)
        for number in range(len(self._operations)):
            if number not in self._missing and number not in self._placed:
                self._place_with_readers(number)
        return self._order

    def _makers(self, number: int) -> set[int]:
        storages = {self._storage_of[v] for v in self._operations[number].operands}
        return {self._maker[s] for s in storages if s in self._maker}

    def _place_with_readers(self, first: int) -> None:
        ready = [first]
        for number in ready:
            self._place(number)
            for reader in self._waiting.pop(number, ()):
                self._missing[reader] -= 1
                if not self._missing[reader]:
                    ready.append(reader)

    def _place(self, number: int) -> None:
        pending = [number]
        while pending:
            makers = (self._makers(pending[-1]) & self._of_arguments) - self._placed
            if makers:
                pending.append(min(makers))
                continue
            done = pending.pop()
            if done not in self._placed:
                self._placed.add(done)
                self._order.append(self._operations[done])


def _last_operations(
    operations: Sequence[RawOperation],
    storage_of: Sequence[int],
    is_cheap: Callable[[RawOperation], bool],
) -> list[int]:
    """Operations that nothing but results of the program depends on, in program order."""
    needed_elsewhere: set[int] = set()
    found = []
    for number in reversed(range(len(operations))):
        op = operations[number]
        if is_cheap(op) and not any(storage_of[v] in needed_elsewhere for v in op.results):
            found.append(number)
        else:
            needed_elsewhere.update(storage_of[v] for v in op.operands)
    return found[::-1]


def _replaces_donated(
    operations: Sequence[RawOperation],
    last: Sequence[int],
    flattener: Builder,
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Sequence[bool],
) -> bool:
    """Whether nearly all that these operations leave takes the place of donated arrays."""
    free: collections.Counter[Any] = collections.Counter()
    for value, is_donated in zip(inputs, donated, strict=True):
        if is_donated:
            free[_type(flattener, value)] += 1
    wanted = {flattener.storages[v] for v in outputs}
    left = replaced = 0
    for value in (v for n in last for v in operations[n].results):
        if flattener.storages[value] not in wanted:
            continue
        nbytes = cost_model.nbytes(flattener.avals[value])
        left += nbytes
        if free[_type(flattener, value)]:
            free[_type(flattener, value)] -= 1
            replaced += nbytes
    return left > 0 and replaced >= constants.TUNED.update_replaced_fraction * left


def _type(flattener: Builder, value: int) -> tuple[Any, Any]:
    aval = flattener.avals[value]
    return aval.shape, aval.dtype
