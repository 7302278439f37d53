"""Several operations as one kernel: their equations in one list, what is between them not stored.

Views between members (reshapes, bitcasts), which cost nothing between operations, become equations
again. Thread rule: functions of their arguments. Cost: linear in the equations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir import kernel_classes, primitives
from coop_jax._src.ir.equations import Equation, KernelBuilder
from coop_jax._src.ir.kernels import Kernel, KernelCache

if TYPE_CHECKING:
    from coop_jax._src.ir.raw_operations import RawOperation
    from coop_jax._src.lowering.builder import Builder


def merged(
    members: Sequence[RawOperation],
    flattener: Builder,
    returned: Mapping[int, int],
    kept: Sequence[int] | None = None,
) -> RawOperation:
    """One operation of several.

    Args:
      members: in program order.
      flattener: whose values they are of.
      returned: storages that are results of the program, and where they are among them.
      kept: what is read of the members' results. If None, the last is their sink: its own, and what
        is returned.
    """
    sink = members[-1]
    if len(members) == 1:
        return sink
    merger = _Merger(flattener)
    merger.find_operands(members)
    for op in members:
        merger.add(op)
    storage_of = flattener.storages
    if kept is None:
        results = [r for op in members[:-1] for r in op.results if storage_of[r] in returned]
        results += sink.results
    else:
        results = list(kept)
    # In the program's order, often that of its arguments.
    results.sort(key=lambda r: returned.get(storage_of[r], len(returned)))
    named = next((op for op in members if kernel_classes.is_heavy(op.kernel)), sink)
    kernel = merger.kernel(flattener.cache, results, may_overwrite=kept is None)
    return dataclasses.replace(
        sink,
        kernel=kernel,
        operands=tuple(merger.operands),
        results=tuple(results),
        source=named.source,
        name_stack=named.name_stack,
    )


class _Merger:
    """Writes the equations of several kernels into one."""

    def __init__(self, flattener: Builder):
        self.flattener = flattener
        self.operands: list[int] = []
        self._local: dict[int, int] = {}
        self._equations: list[Equation] = []
        self._next = 0

    def find_operands(self, members: Sequence[RawOperation]) -> None:
        """Notes what the operations read from outside.

        What they read in several shapes is one operand, in its own: of two that share memory
        neither could be overwritten.
        """
        read: list[int] = []
        made: set[int] = set()  # storages
        for op in members:
            read += (v for v in op.operands if self.flattener.storages[v] not in made)
            made.update(self.flattener.storages[v] for v in op.results)
        shapes: dict[int, set[int]] = {}
        for value in read:
            if not self.flattener.is_part(value):
                shapes.setdefault(self.flattener.storages[value], set()).add(value)
        for value in read:
            storage = self.flattener.storages[value]
            several = not self.flattener.is_part(value) and len(shapes[storage]) > 1
            operand = storage if several else value
            if operand not in self._local:
                self._local[operand] = len(self.operands)
                self.operands.append(operand)
        self._next = len(self.operands)

    def add(self, op: RawOperation) -> None:
        """Adds an operation, after all that it reads from."""
        kernel = op.kernel
        local = {n: self._read(v) for n, v in enumerate(op.operands)}
        for e in kernel.equations:
            operands = tuple(local[x] if isinstance(x, int) else x for x in e.operands)
            results = tuple(range(self._next, self._next + len(e.results)))
            self._next += len(results)
            local.update(zip(e.results, results, strict=True))
            self._equations.append(dataclasses.replace(e, operands=operands, results=results))
        for value, number in zip(op.results, kernel.outputs, strict=True):
            self._local[value] = local[number]

    def _read(self, value: int) -> int:
        found = self._local.get(value)
        if found is None:  # a view of what an earlier member made
            found = self._view(self._local[self.flattener.storages[value]], value)
            self._local[value] = found
        return found

    def _view(self, whole: int, value: int) -> int:
        avals, known = self.flattener.avals, self.flattener.views
        storage = self.flattener.storages[value]
        key = *_type(avals[storage]), *_type(avals[value])
        if key not in known:  # tracing it takes a millisecond
            known[key] = view_equations(avals[storage], avals[value])
        for e in known[key]:
            operands = tuple(whole if isinstance(x, int) else x for x in e.operands)
            whole = self._next
            self._next += 1
            self._equations.append(dataclasses.replace(e, operands=operands, results=(whole,)))
        return whole

    def kernel(self, cache: KernelCache, results: Sequence[int], *, may_overwrite: bool) -> Kernel:
        """The kernel that makes these values; the first may be written over what it is made of."""
        avals = self.flattener.avals
        in_avals = [avals[v] for v in self.operands]
        return cache.kernel(
            self._equations,
            [self._local[v] for v in results],
            in_avals,
            [avals[v] for v in results],
            in_place_operands=(
                _overwritable(self._equations, in_avals, [avals[v] for v in results])
                if may_overwrite
                else ()
            ),
        )


def view_equations(whole: Any, part: Any) -> list[Equation]:
    """Equations of one operand and one result each that read a value as another shape."""

    def view(x: Any) -> Any:
        if x.dtype != part.dtype:
            x = jax.lax.bitcast_convert_type(x, part.dtype)
        return x.reshape(part.shape)

    jaxpr, constants = jaxprs.trace(lambda x: [view(x)], [jax.ShapeDtypeStruct(*_type(whole))])
    builder = KernelBuilder([whole])
    builder.inline(jaxpr, constants, [0])
    return builder.equations


def _type(aval: Any) -> tuple[Any, Any]:
    return aval.shape, aval.dtype


def _overwritable(
    equations: Sequence[Equation], in_avals: Sequence[Any], out_avals: Sequence[Any]
) -> tuple[int, ...]:
    """Operands that the first result may be written over: read element by element, if at all late.

    Where XLA would have to copy an operand first it says so in what it allocates, and that counts.
    """
    found = []
    for number, aval in enumerate(in_avals):
        if _type(aval) != _type(out_avals[0]):
            continue
        read_by = [e.primitive.name for e in equations if number in e.operands]
        if all(
            name in primitives.ELEMENTWISE or name in kernel_classes.REDUCTIONS for name in read_by
        ):
            found.append(number)
    return tuple(found)
