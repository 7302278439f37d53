"""Matrix products in the order of operands in which their result is read.

JAX computes the gradient of a layer's weights as a product that it transposes at once. XLA's CPU
compiler makes the product and rearranges it, which takes up to as long again; with the operands
exchanged the same product comes out transposed. Each element is a sum of the same terms, though
XLA may add them up in another order: as with all of fusion, the bits are those of this form.

Model: a product that only a transposition reads, which puts dimensions of the first operand last.
Products that are small enough for a bundle stay: they gain little, and bundles begin elsewhere
where operations vanish, which decided whether a small BiLSTM fitted its budget.
Thread rule: functions of their arguments; `flattener` is changed. Cost: linear in the operations.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coop_jax._src.bundling import SMALL
from coop_jax._src.compat import jaxprs
from coop_jax._src.equations import Equation
from coop_jax._src.fusible import has_narrow

if TYPE_CHECKING:
    from coop_jax._src.flattening import Flattener, RawOperation


def oriented(
    operations: Sequence[RawOperation], flattener: Flattener, outputs: Sequence[int]
) -> list[RawOperation]:
    """The operations, with products whose operands are exchanged where that saves a transposition.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of; products may get results of another shape.
      outputs: values that are results of the program.
    """
    storage_of, profile = flattener.storages, flattener.cache.profile
    readers: dict[int, list[int]] = collections.defaultdict(list)
    for number, op in enumerate(operations):
        for value in op.operands:
            readers[storage_of[value]].append(number)
    returned = {storage_of[v] for v in outputs}
    made: list[RawOperation | None] = list(operations)
    for number, op in enumerate(operations):
        product = _only(op, "dot_general")
        if product is None or has_narrow(op.kernel):
            continue
        if profile.smallness(op.kernel.flops, op.kernel.moved_bytes) <= SMALL:
            continue
        (value,) = op.results
        read_by = readers[storage_of[value]]
        if len(read_by) != 1 or storage_of[value] in returned:
            continue
        reader = operations[read_by[0]]
        transposition = _only(reader, "transpose")
        if transposition is None or reader.operands != (value,):
            continue
        exchanged = _exchanged(product, op.kernel.in_avals, transposition.params["permutation"])
        if exchanged is None:
            continue
        equation, permutation = exchanged
        kernel = flattener.cache.kernel(
            [equation], equation.results, op.kernel.in_avals, equation.out_avals
        )
        if permutation == tuple(range(len(permutation))):
            made[number] = dataclasses.replace(op, kernel=kernel, results=reader.results)
            made[read_by[0]] = None
            continue
        made[number] = dataclasses.replace(op, kernel=kernel)
        (flattener.avals[value],) = equation.out_avals
        rest = dataclasses.replace(transposition, params={"permutation": permutation})
        made[read_by[0]] = dataclasses.replace(
            reader,
            kernel=flattener.cache.kernel(
                [rest], rest.results, equation.out_avals, reader.kernel.out_avals
            ),
        )
    return [op for op in made if op is not None]


def _only(op: RawOperation, name: str) -> Equation | None:
    """The one equation of an operation, if it is of that primitive."""
    equations = op.kernel.equations
    return equations[0] if len(equations) == 1 and equations[0].primitive.name == name else None


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
