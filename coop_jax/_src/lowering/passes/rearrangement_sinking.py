"""Sums of what was rearranged alike, as rearranged sums.

The gradient of weights that are read several times (by the steps of a recurrent network, say) is a
sum of products, each transposed, and split where the weights were concatenated. Every part of every
product would be added by itself; the sum of the products, rearranged once, takes one addition for
each. An element is the same sum of the same terms: the bits stay.

Model: an addition of results of two operations that rearrange (split, transpose, reverse) in the
same way, each result read by nothing else, so for all of their results.
Thread rule: functions of their arguments; `flattener` is changed. Cost: linear in the operations.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coop_jax._src.ir.kernel_classes import SUMS, has_narrow, only_equation

if TYPE_CHECKING:
    from coop_jax._src.ir.raw_operations import RawOperation
    from coop_jax._src.lowering.builder import Builder

_REARRANGES = frozenset(("split", "transpose", "rev"))


def gathered(
    operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
) -> list[RawOperation]:
    """The operations, with sums before what rearranges them.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of; gets new ones.
      outputs: values that are results of the program.
    """
    gatherer = _Gatherer(operations, flattener, outputs)
    for number in range(len(operations)):
        gatherer.visit(number)
    return [op for ops in gatherer.made for op in ops]


class _Gatherer:
    """Rewrites additions in order, so that a sum of many terms becomes one sum.

    Attributes:
      made: for each operation those in its place.
    """

    def __init__(
        self, operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
    ):
        self.made: list[list[RawOperation]] = [[op] for op in operations]
        self._flattener = flattener
        self._returned = {flattener.storages[v] for v in outputs}
        self._readers: dict[int, list[RawOperation]] = collections.defaultdict(list)
        self._maker: dict[int, RawOperation] = {}
        self._at: dict[int, int] = {}  # where operations are, by identity
        for number, op in enumerate(operations):
            self._note(op, number)

    def _note(self, op: RawOperation, number: int) -> None:
        self._at[id(op)] = number
        for value in dict.fromkeys(op.operands):
            self._readers[self._flattener.storages[value]].append(op)
        for value in op.results:
            self._maker[value] = op

    def _forget(self, op: RawOperation) -> None:
        self._at.pop(id(op))
        for value in dict.fromkeys(op.operands):
            storage = self._flattener.storages[value]
            self._readers[storage] = [x for x in self._readers[storage] if x is not op]

    def _replace(self, op: RawOperation, others: list[RawOperation]) -> None:
        number = self._at[id(op)]
        self._forget(op)
        self.made[number] = [y for x in self.made[number] for y in (others if x is op else [x])]
        for other in others:
            self._note(other, number)

    def visit(self, number: int) -> None:
        """Rewrites what is at a place, as far as it goes."""
        addition = next(iter(self.made[number]), None)
        while addition is not None:
            addition = self._gathered(addition)

    def _gathered(self, addition: RawOperation) -> RawOperation | None:
        """Puts an addition before what rearranges its terms; the new addition, if it does."""
        terms = self._terms(addition)
        additions = terms and self._pairs(*terms)
        if not terms or not additions:
            return None
        left, right = terms
        flattener = self._flattener
        (first,), (second,) = left.operands, right.operands
        aval = flattener.avals[first]
        (equation,) = addition.kernel.equations
        kernel = flattener.cache.kernel(
            [dataclasses.replace(equation, out_avals=(aval,))],
            equation.results,
            [aval, flattener.avals[second]],
            [aval],
        )
        total = flattener.new(aval)
        gathered = dataclasses.replace(
            addition, kernel=kernel, operands=(first, second), results=(total,)
        )
        results = tuple(op.results[0] for op in additions)
        rearranged = dataclasses.replace(right, operands=(total,), results=results)
        # Some may have been read before it was seen that all of them are alike.
        earliest = min(additions, key=lambda op: self._at[id(op)])
        for op in (left, right, *additions):
            self._replace(op, [gathered, rearranged] if op is earliest else [])
        return gathered

    def _terms(self, op: RawOperation) -> tuple[RawOperation, RawOperation] | None:
        """What makes the terms of an addition, if both rearrange in the same way."""
        if only_equation(op, SUMS) is None or len(op.operands) != 2 or has_narrow(op.kernel):
            return None
        left, right = (self._maker.get(v) for v in op.operands)
        if left is None or right is None or left is right:
            return None
        if only_equation(left, _REARRANGES) is None or left.kernel.key != right.kernel.key:
            return None
        return left, right

    def _pairs(self, left: RawOperation, right: RawOperation) -> list[RawOperation] | None:
        """The additions of their results, if nothing else reads those."""
        found = []
        for pair in zip(left.results, right.results, strict=True):
            readers = [self._only_reader(v) for v in pair]
            op = readers[0]
            if op is None or op is not readers[1] or only_equation(op, SUMS) is None:
                return None
            if op.operands != pair:
                return None
            found.append(op)
        return found

    def _only_reader(self, value: int) -> RawOperation | None:
        if self._flattener.storages[value] != value or value in self._returned:
            return None
        readers = self._readers[value]
        return readers[0] if len(readers) == 1 else None
