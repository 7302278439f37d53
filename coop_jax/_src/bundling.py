"""Bundles: neighbours that take less time than to launch them run as one operation.

A program of many small operations (a recurrent network, an optimizer's updates of biases) takes as
long as it takes to start them. So operations of little work that follow each other run together,
and return whatever is read later; unlike a fused operation, a bundle has several results and a
recomputation computes all of them, which costs little by the same measure.

What a bundle reads and makes stays within what the most demanding single operation does, and is a
small part of what is in memory at the peak: small budgets still suffice, and what is evicted and
recomputed is still chosen piece by piece. The order of operations stays as it is.

Where a program repeats itself, so do its bundles, give or take where they begin: there are no more
different ones than a repetition has operations.
Thread rule: functions of their arguments. Cost: linear in operations and their operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from coop_jax._src import costs, primitives
from coop_jax._src.fusible import has_narrow
from coop_jax._src.merging import merged

if TYPE_CHECKING:
    from coop_jax._src.flattening import Flattener, RawOperation

# In `DeviceProfile.smallness`: the work of one of them, and of all of them together.
SMALL = 4.0
_TOGETHER = 8.0

# Of what is in memory at the peak, so much may be read and made by a bundle.
_OF_THE_PEAK = 1 / 16

# Of a bundle: more take XLA long to compile.
_EQUATIONS = 128
_OPERANDS = 64


def bundle(
    operations: Sequence[RawOperation], flattener: Flattener, outputs: Sequence[int]
) -> list[RawOperation]:
    """Operations that compute the same in the same order, small neighbours together.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of.
      outputs: values that are results of the program.
    """
    bundler = _Bundler(operations, flattener, outputs)
    for number in range(len(operations)):
        bundler.take(number)
    bundler.close()
    return bundler.made


class _Bundler:
    """Takes operations in order, and closes the open bundle where the next does not fit."""

    def __init__(
        self, operations: Sequence[RawOperation], flattener: Flattener, outputs: Sequence[int]
    ):
        self.made: list[RawOperation] = []
        self._operations = operations
        self._flattener = flattener
        self._storage_of = flattener.storages
        self._profile = flattener.cache.profile
        self._returned = {self._storage_of[v]: k for k, v in reversed(list(enumerate(outputs)))}
        self._last_read = {
            self._storage_of[v]: n for n, op in enumerate(operations) for v in op.operands
        }
        demanding = max((self._at_once([op]) for op in operations), default=0)
        self._most_at_once = min(demanding, _OF_THE_PEAK * self._peak())
        self._open: list[int] = []
        self._work = 0.0
        self._equations = 0

    def _peak(self) -> int:
        """Bytes of storages that are alive at once, at most, each from where it is made."""
        avals, made = self._flattener.avals, set[int]()
        for op in self._operations:
            made.update(self._storage_of[v] for v in op.results)
        passing = made.difference(self._returned)
        alive = sum(costs.nbytes(avals[s]) for s in self._last_read if s not in made)
        most = alive
        for number, op in enumerate(self._operations):
            alive += sum(costs.nbytes(avals[v]) for v in op.results)
            most = max(most, alive)
            alive -= sum(
                costs.nbytes(avals[s])
                for s in {self._storage_of[v] for v in (*op.operands, *op.results)}
                if s in passing and self._last_read.get(s, number) <= number
            )
        return most

    def take(self, number: int) -> None:
        op = self._operations[number]
        work = self._profile.smallness(op.kernel.flops, op.kernel.moved_bytes)
        small = work <= SMALL and may_be_bundled(op)
        if not small or not self._fits(op, work):
            self.close()
        if not small:
            self.made.append(op)
            return
        self._open.append(number)
        self._work += work
        self._equations += len(op.kernel.equations)

    def close(self) -> None:
        """Makes one operation of those in the open bundle."""
        members = [self._operations[n] for n in self._open]
        if members:
            last = self._open[-1]
            results = [
                v
                for op in members
                for v in op.results
                if self._storage_of[v] in self._returned
                or self._last_read.get(self._storage_of[v], -1) > last
            ]
            self.made.append(merged(members, self._flattener, self._returned, results))
        self._open = []
        self._work = 0.0
        self._equations = 0

    def _fits(self, op: RawOperation, work: float) -> bool:
        if self._work + work > _TOGETHER:
            return False
        if self._equations + len(op.kernel.equations) > _EQUATIONS:
            return False
        members = [self._operations[n] for n in self._open]
        made = {self._storage_of[v] for m in members for v in m.results}
        if any(self._flattener.is_part(v) and self._storage_of[v] in made for v in op.operands):
            return False
        read = {self._storage_of[v] for m in (*members, op) for v in m.operands} - made
        return len(read) <= _OPERANDS and self._at_once([*members, op]) <= self._most_at_once

    def _at_once(self, members: Iterable[RawOperation]) -> int:
        """Bytes that a bundle reads or makes; results are taken for what they replace."""
        storages = {self._storage_of[v] for m in members for v in (*m.operands, *m.results)}
        avals = self._flattener.avals
        return sum(costs.nbytes(avals[s]) for s in storages if s not in self._returned)


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
