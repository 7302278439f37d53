"""Programs as JAX functions; XLA leaves the operations of a planned one in their order.

Model: each operation reads its operands through an `optimization_barrier` that joins them with a
result of the operation before it. So XLA cannot merge what is computed again with what was computed
first, nor move it to where that is, and values live from where they are made to where they are last
read, as planned. What a barrier joins lives until all of it is there; the smallest result is taken.
What reads nothing (`fillers`) is made behind the barrier.

Invariants: values are those of the program; keys are held as their data between operations.
Thread rule: an `Emitter` belongs to one trace. Cost: JAX's, of tracing each operation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from coop_jax._src.compat import arrays, source_lines
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.jit.fillers import fillers_of


def emitted(program: Program) -> Callable[..., list[Any]]:
    """A function from the program's inputs to its outputs, to be traced."""

    def function(*inputs: Any) -> list[Any]:
        emitter = Emitter(program)
        for value, array in zip(program.inputs, inputs, strict=True):
            emitter.put(value, array)
        for op in program.operations:
            emitter.run_in_order(op)
        return [emitter.result(v) for v in program.outputs]

    return function


def first_read(program: Program) -> int | None:
    """The number of an input that an operation reads; None if none does."""
    read = {program.values[v].storage for op in program.operations for v in op.operands}
    for number, value in enumerate(program.inputs):
        if program.values[value].storage in read:
            return number
    return None


class Emitter:
    """Values of a program under the current trace, made one operation after the other."""

    def __init__(self, program: Program):
        self._program = program
        self._made: dict[int, Any] = {}  # by value
        self._first: dict[int, int] = {}  # of each storage the value that was made
        self._before: list[Any] = []  # a result of the operation before
        self._fillers = fillers_of(program)
        for value, array in program.constants:
            self.put(value, array)

    def put(self, value: int, array: Any) -> None:
        """What a value is."""
        self._made[value] = arrays.as_stored(array)
        self._first.setdefault(self._program.values[value].storage, value)

    def run(self, op: Operation) -> None:
        """Computes an operation where XLA likes."""
        self._run(op, [self.get(v) for v in op.operands])

    def run_in_order(self, op: Operation) -> None:
        """Computes an operation after the one before it; a filler where it is read.

        What an operation fills and then writes into, such as zeros that gradients are added to, is
        made then, too: of a scalar that is joined.
        """
        if op.results and all(map(self._is_filler, op.results)):
            return
        operands = {v: self.get(v) for v in op.operands if not self._is_filler(v)}
        scalars = op.kernel.scalars()
        if self._before and (operands or scalars):
            (operands, scalars), _ = jax.lax.optimization_barrier(
                ((operands, scalars), self._before)
            )
        given = [operands[v] if v in operands else self.get(v) for v in op.operands]
        self._run(op, given, scalars)
        if op.results:
            self._before = [self._made[min(op.results, key=self._nbytes)]]

    def get(self, value: int) -> Any:
        """A value as it is stored; a view is made of the value that its storage holds."""
        if value not in self._made:
            record = self._program.values[value]
            if record.storage not in self._first:
                self._run(self._fillers[record.storage], [])
                return self.get(value)
            array = self._made[self._first[record.storage]]
            aval = arrays.stored_aval(record.aval)
            if array.dtype != aval.dtype:
                array = jax.lax.bitcast_convert_type(array, aval.dtype)
            self._made[value] = jax.numpy.reshape(array, aval.shape)
        return self._made[value]

    def result(self, value: int) -> Any:
        """A value as the program's caller expects it."""
        aval = self._program.values[value].aval
        stored = self.get(value)
        return arrays.as_keys(stored, aval) if arrays.is_keys(aval.dtype) else stored

    def _is_filler(self, value: int) -> bool:
        return self._program.values[value].storage in self._fillers

    def _run(
        self, op: Operation, operands: Sequence[Any], scalars: Mapping[int, Any] | None = None
    ) -> None:
        named = jax.named_scope(op.name_stack) if op.name_stack else contextlib.nullcontext()
        with named:
            kernel = functools.partial(op.kernel.with_scalars, scalars or {})
            results = source_lines.call_at(op.source, kernel, operands)
        for value, result in zip(op.results, results, strict=True):
            self.put(value, result)

    def _nbytes(self, value: int) -> int:
        return self._program.storages[self._program.values[value].storage].nbytes
