"""Bundles: neighbours that take less time than to launch them run as one operation.

A program of many small operations (a recurrent network, an optimizer's updates of biases) takes as
long as it takes to start them. So operations of little work that follow each other run together,
and return whatever is read later; unlike a fused operation, a bundle has several results and a
recomputation computes all of them, which costs little by the same measure.

Where bundles begin and end is chosen so that together they cost least: so much for each launch, for
each result (which XLA writes in a loop of its own) and for each operand. So they end where little
goes over: after a cell of a recurrent network rather than between its gates.

What a bundle reads and holds at one time stays within what the most demanding single operation
does, and is a small part of what is in memory at the peak: small budgets still suffice, and what is
evicted and recomputed is still chosen piece by piece. The order of operations stays as it is.

Where a program repeats itself, so do its bundles, give or take where they begin: there are no more
different ones than a repetition has operations.
Thread rule: functions of their arguments. Cost: linear in operations and their operands, times how
many fit into a bundle.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coop_jax._src.ir import cost_model, primitives
from coop_jax._src.ir.kernel_classes import has_narrow
from coop_jax._src.lowering import constants
from coop_jax._src.lowering.passes.fused_kernel import merged

if TYPE_CHECKING:
    from coop_jax._src.ir.raw_operations import RawOperation
    from coop_jax._src.lowering.builder import Builder


def bundle(
    operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
) -> list[RawOperation]:
    """Operations that compute the same in the same order, small neighbours together.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of.
      outputs: values that are results of the program.
    """
    return _Bundler(operations, flattener, outputs).made()


class _Bundler:
    """Chooses where bundles begin and end, so that they cost least together."""

    def __init__(
        self, operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
    ):
        self.operations = operations
        self.flattener = flattener
        self.storage_of = flattener.storages
        profile = flattener.cache.profile
        self.work = [profile.smallness(op.kernel.flops, op.kernel.moved_bytes) for op in operations]
        self.small = [
            work <= constants.TUNED.cluster_max_member_work and may_be_bundled(op)
            for op, work in zip(operations, self.work, strict=True)
        ]
        self.returned = {self.storage_of[v]: k for k, v in reversed(list(enumerate(outputs)))}
        self.last_read = {
            self.storage_of[v]: n for n, op in enumerate(operations) for v in op.operands
        }
        self.last_read.update((s, len(operations)) for s in self.returned)
        demanding = max((_Bundle(self, n).at_once for n in range(len(operations))), default=0)
        self.most_at_once = min(demanding, constants.TUNED.cluster_max_peak_fraction * self._peak())

    def nbytes(self, storage: int) -> int:
        """Of a storage that stays; results are taken for what they replace."""
        return 0 if storage in self.returned else cost_model.nbytes(self.flattener.avals[storage])

    def _peak(self) -> int:
        """Bytes of storages that are alive at once, at most, each from where it is made."""
        avals, made = self.flattener.avals, set[int]()
        for op in self.operations:
            made.update(self.storage_of[v] for v in op.results)
        passing = made.difference(self.returned)
        alive = sum(cost_model.nbytes(avals[s]) for s in self.last_read if s not in made)
        most = alive
        for number, op in enumerate(self.operations):
            alive += sum(cost_model.nbytes(avals[v]) for v in op.results)
            most = max(most, alive)
            alive -= sum(
                cost_model.nbytes(avals[s])
                for s in {self.storage_of[v] for v in (*op.operands, *op.results)}
                if s in passing and self.last_read.get(s, number) <= number
            )
        return most

    def made(self) -> list[RawOperation]:
        """The operations, bundled."""
        ends, end = [], len(self.operations)
        beginnings = self._beginnings()
        while end:
            ends.append((beginnings[end], end))
            end = beginnings[end]
        return [self._bundled(begin, end) for begin, end in reversed(ends)]

    def _beginnings(self) -> list[int]:
        """For each end the beginning of the bundle there, on the cheapest way that leads to it.

        No bundle begins where as little leads further: what begins there reads more, at most.
        """
        count = len(self.operations)
        most_equations = constants.TUNED.cluster_max_equations
        least, beginnings = [0.0] + [math.inf] * count, [0] * (count + 1)
        for begin in range(count):
            if min(least[begin + 1 : begin + 1 + most_equations]) <= least[begin]:
                continue
            bundle = _Bundle(self, begin)
            while True:
                total = least[begin] + bundle.cost()
                if total < least[bundle.end]:
                    least[bundle.end], beginnings[bundle.end] = total, begin
                if not (self.small[begin] and bundle.extend()):
                    break
        return beginnings

    def _bundled(self, begin: int, end: int) -> RawOperation:
        members = self.operations[begin:end]
        results = [
            v
            for op in members
            for v in op.results
            if self.last_read.get(self.storage_of[v], -1) >= end
        ]
        return merged(members, self.flattener, self.returned, results)


class _Bundle:
    """Operations from one on, extended as far as they may run together.

    Attributes:
      end: number of the operation behind it.
      at_once: bytes that it reads, and of what it makes that are there at the same time.
    """

    def __init__(self, bundler: _Bundler, begin: int):
        self._bundler = bundler
        self.end = begin
        self.at_once = 0
        self._read_bytes = self._alive_bytes = self._most_alive_bytes = 0
        self._work, self._equations = 0.0, 0
        self._made: set[int] = set()  # storages
        self._read: set[int] = set()
        self._passed_on = 0  # results that are read behind it
        self._last_reads: collections.Counter[int] = collections.Counter()  # of those
        self._add()

    def extend(self) -> bool:
        """Takes the next operation if it may be one of the bundle."""
        bundler, number, tuned = self._bundler, self.end, constants.TUNED
        if number == len(bundler.operations) or not bundler.small[number]:
            return False
        op = bundler.operations[number]
        if self._work + bundler.work[number] > tuned.cluster_max_work:
            return False
        if self._equations + len(op.kernel.equations) > tuned.cluster_max_equations:
            return False
        storage_of, is_part = bundler.storage_of, bundler.flattener.is_part
        if any(storage_of[v] in self._made and is_part(v) for v in op.operands):
            return False
        self._add()
        few = len(self._read) <= tuned.cluster_max_operands
        return few and self.at_once <= bundler.most_at_once

    def _add(self) -> None:
        bundler = self._bundler
        op, storage_of = bundler.operations[self.end], bundler.storage_of
        read = {storage_of[v] for v in op.operands} - self._made - self._read
        made = {storage_of[v] for v in op.results} - self._made - self._read
        self._read |= read
        self._made |= made
        self._passed_on -= self._last_reads.pop(self.end, 0)
        for value in op.results:
            last = bundler.last_read.get(storage_of[value], -1)
            if last > self.end:
                self._passed_on += 1
                self._last_reads[last] += 1
        self._work += bundler.work[self.end]
        self._equations += len(op.kernel.equations)
        self._read_bytes += sum(map(bundler.nbytes, read))
        self._alive_bytes += sum(map(bundler.nbytes, made))
        self._most_alive_bytes = max(self._most_alive_bytes, self._alive_bytes)
        self.at_once = self._read_bytes + self._most_alive_bytes
        # What is not read any more leaves its memory to what comes.
        used = made | (self._made & {storage_of[v] for v in op.operands})
        over = [s for s in used if bundler.last_read.get(s, -1) <= self.end]
        self._alive_bytes -= sum(map(bundler.nbytes, over))
        self.end += 1

    def cost(self) -> float:
        """What it takes to launch it and to pass its arrays."""
        tuned = constants.TUNED
        read = tuned.cluster_operand_cost * len(self._read)
        return tuned.cluster_launch_cost + self._passed_on + read


def may_be_bundled(op: RawOperation) -> bool:
    """Whether an operation is one that XLA may compile together with others."""
    kernel = op.kernel
    return (
        not op.effectful
        and kernel.recomputable
        and not kernel.touches_part
        and not has_narrow(kernel)
        and all(e.primitive.name not in primitives.CONTROL_FLOW for e in kernel.equations)
    )
