"""Matrix products in the order of operands in which their result is read.

JAX computes the gradient of a layer's weights as a product that it transposes at once. XLA's CPU
compiler makes the product and rearranges it, which takes up to as long again; with the operands
exchanged the same product comes out transposed. Each element is a sum of the same terms, though
XLA may add them up in another order: as with all of fusion, the bits are those of this form.

Model: a product that only a transposition reads, which puts dimensions of the first operand last,
or a sum of such products.
Thread rule: functions of their arguments; `flattener` is changed. Cost: linear in the operations.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir.equations import Equation
from coop_jax._src.ir.kernel_classes import SUMS, has_narrow, only_equation

if TYPE_CHECKING:
    from coop_jax._src.ir.raw_operations import RawOperation
    from coop_jax._src.lowering.builder import Builder


def oriented(
    operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
) -> list[RawOperation]:
    """The operations, with products whose operands are exchanged where that saves a transposition.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of; products may get results of another shape.
      outputs: values that are results of the program.
    """
    orienter = _Orienter(operations, flattener, outputs)
    for number in range(len(operations)):
        orienter.visit(number)
    return [op for op in orienter.made if op is not None]


class _Orienter:
    """Exchanges operands of what transpositions read.

    Attributes:
      made: the operations; None for transpositions that are not needed any more.
    """

    def __init__(
        self, operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
    ):
        self.made: list[RawOperation | None] = list(operations)
        self._operations = operations
        self._flattener = flattener
        self._returned = {flattener.storages[v] for v in outputs}
        self._reads: collections.Counter[int] = collections.Counter(
            flattener.storages[v] for op in operations for v in op.operands
        )
        self._maker = {v: n for n, op in enumerate(operations) for v in op.results}

    def visit(self, number: int) -> None:
        """Looks at what an operation reads, if that is transposed."""
        reader = self._operations[number]
        transposition = only_equation(reader, ("transpose",))
        if transposition is None:
            return
        (value,) = reader.operands
        permutation = transposition.params["permutation"]
        found = self._exchanged(value, permutation)
        if found is None:
            return
        exchanged, rest = found
        flattener = self._flattener
        for made, equation in exchanged.items():
            op = self._operations[made]
            (result,) = op.results
            flattener.avals[result] = equation.out_avals[0]
            kernel = flattener.cache.kernel(
                [equation],
                equation.results,
                [flattener.avals[v] for v in op.operands],
                equation.out_avals,
            )
            self.made[made] = dataclasses.replace(op, kernel=kernel)
        last = self._maker[value]
        if rest == tuple(range(len(rest))):
            top = self.made[last]
            assert top is not None
            self.made[last] = dataclasses.replace(top, results=reader.results)
            self.made[number] = None
            return
        left = dataclasses.replace(transposition, params={"permutation": rest})
        self.made[number] = dataclasses.replace(
            reader,
            kernel=flattener.cache.kernel(
                [left], left.results, [flattener.avals[value]], reader.kernel.out_avals
            ),
        )

    def _exchanged(
        self, value: int, permutation: Sequence[int]
    ) -> tuple[dict[int, Equation], tuple[int, ...]] | None:
        """What a value is made by, exchanged, by number and in order; how it is transposed then.

        None where it is not a product, or a sum of products, that nothing else reads.
        """
        summed = self._summed(value)
        if summed is None:
            return None
        equations: dict[int, Equation] = {}
        rests = set[tuple[int, ...]]()
        for number in summed:
            op = self._operations[number]
            (equation,) = op.kernel.equations
            if equation.primitive.name in SUMS:
                first = equations[self._maker[op.operands[0]]]
                equations[number] = dataclasses.replace(equation, out_avals=first.out_avals)
                continue
            found = _exchanged(equation, op.kernel.in_avals, permutation)
            if found is None:
                return None
            equations[number], rest = found
            rests.add(rest)
        return (equations, rests.pop()) if len(rests) == 1 else None

    def _summed(self, value: int) -> list[int] | None:
        """Numbers of products and of the additions of them that make a value, in order."""
        numbers, values = [], [value]
        while values:
            value = values.pop()
            storage, number = self._flattener.storages[value], self._maker.get(value, -1)
            if number < 0 or self._reads[storage] != 1 or storage in self._returned:
                return None
            op = self._operations[number]
            if has_narrow(op.kernel):
                return None
            numbers.append(number)
            if only_equation(op, SUMS) is not None and len(op.operands) == 2:
                values += op.operands
            elif only_equation(op, ("dot_general",)) is None:
                return None
        return sorted(numbers)


def _exchanged(
    product: Equation, in_avals: Sequence[Any], permutation: Sequence[int]
) -> tuple[Equation, tuple[int, ...]] | None:
    """The product with its operands exchanged, and how its result is to be transposed then.

    None where the last dimension is not one of the first operand, or where what the product says
    of its operands cannot be exchanged.
    """
    params = product.params
    precision = params["precision"]
    if not (precision is None or isinstance(precision, tuple)) or params.get("out_sharding"):
        return None
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    if not all(isinstance(x, int) for x in product.operands):
        return None
    first, second = (in_avals[x] for x in product.operands if isinstance(x, int))
    batch = len(left_batch)
    of_first = first.ndim - batch - len(left)
    of_second = second.ndim - batch - len(right)
    if not batch <= permutation[-1] < batch + of_first or not of_second:
        return None
    (aval,) = product.out_avals
    shape = aval.shape
    moved = [*range(batch), *range(batch + of_first, len(shape)), *range(batch, batch + of_first)]
    out = jaxprs.ShapedArray(tuple(shape[n] for n in moved), aval.dtype, weak_type=aval.weak_type)
    equation = dataclasses.replace(
        product,
        params={
            **params,
            "dimension_numbers": ((right, left), (right_batch, left_batch)),
            "precision": precision and precision[::-1],
        },
        operands=product.operands[::-1],
        out_avals=(out,),
    )
    return equation, tuple(moved.index(n) for n in permutation)
