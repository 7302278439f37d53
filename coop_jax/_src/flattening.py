"""From a jaxpr to raw operations: calls inlined, scans unrolled, cheap calls grouped, views found.

A scan's stacked outputs stay separate values (`_Stack`) until an operation needs the whole stack;
a later scan over the same stack reads the originals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax._src import costs, primitives
from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.equations import KernelBuilder, LiteralValue
from coop_jax._src.kernels import Kernel, KernelCache

# A nested call of cheap operations becomes one operation up to these sizes; beyond them its working
# set would be more than a budget can bear.
# Values up to this size stay outside the pool: they are counted, never evicted, and cut chains of
# recomputation. A slot would cost more than they do.
SMALL_BYTES = 256

_GROUP_RESULTS = 4
_GROUP_EQUATIONS = 64


class DynamicControlFlow(Exception):  # noqa: N818 - a signal, not an error
    """The program branches or loops on a value: its operations are not known ahead."""


@dataclasses.dataclass(frozen=True, slots=True)
class RawOperation:
    """An operation before liveness: operands and results are value numbers."""

    kernel: Kernel
    operands: tuple[int, ...]
    results: tuple[int, ...]
    source: str
    name_stack: str
    effectful: bool


@dataclasses.dataclass(slots=True)
class _Stack:
    """Stacked outputs of a scan, one value per iteration, not put together yet."""

    parts: list[Any]
    aval: Any
    whole: int | None = None


_Atom = int | LiteralValue | _Stack


def is_group(eqn: Any) -> bool:
    """Whether a call is to run as one operation."""
    body = jaxprs.call_body(eqn.primitive, eqn.params)
    return body is not None and not eqn.effects and is_group_body(*body)


def is_group_body(jaxpr: Any, constants: Sequence[Any]) -> bool:
    """Whether the body of a call is cheap and small enough to run as one operation."""
    if len(jaxpr.outvars) > _GROUP_RESULTS or not jaxpr.eqns:
        return False
    return _equation_count(jaxpr) <= _GROUP_EQUATIONS and _small_group(jaxpr, constants)


def _small_group(jaxpr: Any, constants: Sequence[Any]) -> bool:
    if not primitives.is_cheap(jaxpr) or any(np.size(c) > 16 for c in constants):
        return False
    made = {v for e in jaxpr.eqns for v in e.outvars}
    if any(isinstance(x, jaxprs.Literal) or x not in made for x in jaxpr.outvars):
        return False
    bodies = [jaxprs.call_body(e.primitive, e.params) for e in jaxpr.eqns]
    return all(body is None or _small_group(*body) for body in bodies)


def _equation_count(jaxpr: Any) -> int:
    return sum(
        1 + sum(_equation_count(nested) for nested in jaxprs.nested_jaxprs(e.params))
        for e in jaxpr.eqns
    )


class Flattener:
    """Walks a jaxpr once and collects values, storages and operations.

    Attributes:
      avals: the abstract value of each value number.
      storages: the storage of each value number (its own, or that of what it is a view of).
      operations: in program order.
      constants: (value number, array) of arrays closed over.
      fixed_outside: storages that stay where they are: constants and inputs that are not donated.
    """

    def __init__(self, cache: KernelCache, kept_inputs: Sequence[bool]):
        self._cache = cache
        self._kept_inputs = kept_inputs
        self.avals: list[Any] = []
        self.storages: list[int] = []
        self.operations: list[RawOperation] = []
        self.constants: list[tuple[int, Any]] = []
        self.fixed_outside: set[int] = set()
        self._constant_numbers: dict[int, int] = {}
        self._index_numbers: dict[int, int] = {}

    def can_lie_in_pool(self, aval: Any) -> bool:
        """Whether the pool can hold a value of this dtype."""
        return arrays.dlpack_type(aval.dtype) is not None

    def flatten(self, jaxpr: Any, constants: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Returns the value numbers of inputs and outputs."""
        inputs = [self._new(v.aval) for v in jaxpr.invars]
        for number, kept in zip(inputs, self._kept_inputs, strict=True):
            if kept:
                self.fixed_outside.add(self.storages[number])
        atoms = self._walk(jaxpr, [self._constant(c) for c in constants], inputs)
        return inputs, [self._number(a) for a in atoms]

    def _new(self, aval: Any, view_of: int | None = None) -> int:
        number = len(self.avals)
        self.avals.append(aval)
        self.storages.append(number if view_of is None else self.storages[view_of])
        return number

    def _constant(self, value: Any) -> int:
        number = self._constant_numbers.get(id(value))
        if number is None:
            number = self._new(jaxprs.aval_of(value))
            self.fixed_outside.add(self.storages[number])
            self._constant_numbers[id(value)] = number
            self.constants.append((number, value))
        return number

    def _number(self, atom: _Atom) -> int:
        """The value number of anything; puts a stack together if it must."""
        if isinstance(atom, int):
            return atom
        if isinstance(atom, LiteralValue):
            return self._constant(np.asarray(atom.value, atom.aval.dtype))
        if atom.whole is None:
            parts = [self._number(p) for p in atom.parts]
            kernel = self._cache.from_function(
                lambda *xs: jnp.stack(xs), [self.avals[p] for p in parts]
            )
            atom.whole = self._emit(kernel, parts, "", "", effectful=False)[0]
        return atom.whole

    def _emit(
        self,
        kernel: Kernel,
        operands: Sequence[int],
        source: str,
        name_stack: str,
        *,
        effectful: bool,
    ) -> list[int]:
        results = [self._new(aval) for aval in kernel.out_avals]
        self.operations.append(
            RawOperation(kernel, tuple(operands), tuple(results), source, name_stack, effectful)
        )
        return results

    def _walk(
        self, jaxpr: Any, constants: Sequence[_Atom], operands: Sequence[_Atom]
    ) -> list[_Atom]:
        env: dict[Any, _Atom] = dict(zip(jaxpr.constvars, constants, strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(x: Any) -> _Atom:
            return LiteralValue(x.val, x.aval) if isinstance(x, jaxprs.Literal) else env[x]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(x) for x in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(x) for x in jaxpr.outvars]

    def _equation(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        name = eqn.primitive.name
        if name == "scan":
            return self._scan(eqn, operands)
        if name in ("cond", "while"):
            raise DynamicControlFlow
        body = jaxprs.call_body(eqn.primitive, eqn.params)
        if body is not None and not is_group(eqn):
            return self._walk(body[0], [self._constant(c) for c in body[1]], operands)
        if name == "optimization_barrier":
            return operands
        avals = [*(x.aval for x in eqn.invars), *(v.aval for v in eqn.outvars)]
        primitives.check_supported(eqn.primitive, avals, jaxprs.source_of(eqn.source_info))
        number = operands[0] if operands else None
        if body is None and isinstance(number, int) and len(eqn.outvars) == 1:
            out = eqn.outvars[0].aval
            if primitives.is_identity(eqn.primitive, eqn.params, self.avals[number], out):
                return [number]
            if (
                primitives.is_view(eqn.primitive, eqn.params, self.avals[number], out)
                and self._may_view(number)
                and self.can_lie_in_pool(out)
            ):
                return [self._new(out, view_of=number)]
        return self._operation(eqn, operands)

    def _may_view(self, number: int) -> bool:
        aval = self.avals[number]
        return (
            self.storages[number] not in self.fixed_outside
            and self.can_lie_in_pool(aval)
            and costs.nbytes(aval) > SMALL_BYTES
        )

    def _operation(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        atoms = [self._number(a) if isinstance(a, _Stack) else a for a in operands]
        kernel, numbers = kernel_of(self._cache, eqn, atoms, lambda number: self.avals[number])
        effectful = bool(eqn.effects) or eqn.primitive.name in primitives.IMPURE
        info = eqn.source_info
        return self._emit(
            kernel,
            numbers,
            jaxprs.source_of(info),
            jaxprs.name_stack_of(info),
            effectful=effectful,
        )

    def _scan(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        scan = jaxprs.scan_parts(eqn.params)
        constants = [self._constant(c) for c in scan.constants]
        fixed = operands[: scan.num_consts]
        carry = operands[scan.num_consts : scan.num_consts + scan.num_carry]
        stacked = operands[scan.num_consts + scan.num_carry :]
        collected: list[list[_Atom]] = [[] for _ in eqn.outvars[scan.num_carry :]]
        order = range(scan.length)
        for i in reversed(order) if scan.reverse else order:
            xs = [self._part(x, i) for x in stacked]
            outs = self._walk(scan.body, constants, [*fixed, *carry, *xs])
            carry = outs[: scan.num_carry]
            for column, y in zip(collected, outs[scan.num_carry :], strict=True):
                column.append(y)
        stacks = []
        for column, var in zip(collected, eqn.outvars[scan.num_carry :], strict=True):
            if scan.reverse:
                column.reverse()
            stacks.append(self._stack(column, var.aval))
        return [*carry, *stacks]

    def _stack(self, column: list[_Atom], aval: Any) -> _Atom:
        if not column:
            return LiteralValue(np.zeros(aval.shape, aval.dtype), aval)
        return _Stack(list(column), aval)

    def _part(self, atom: _Atom, i: int) -> _Atom:
        """The i-th slice of a scanned operand: the original where there is one."""
        if isinstance(atom, _Stack):
            part: _Atom = atom.parts[i]
            return part
        number = self._number(atom)
        if i not in self._index_numbers:
            self._index_numbers[i] = self._constant(np.asarray(i, np.int32))
        index = self._index_numbers[i]
        kernel = self._cache.from_function(
            lambda x, at: jax.lax.dynamic_index_in_dim(x, at, keepdims=False),
            [self.avals[number], self.avals[index]],
        )
        return self._emit(kernel, [number, index], "", "", effectful=False)[0]


def kernel_of(
    cache: KernelCache, eqn: Any, atoms: Sequence[int | LiteralValue], aval_of: Any
) -> tuple[Kernel, list[int]]:
    """The kernel of one equation (or cheap call) and its operands without repetition."""
    numbers: list[int] = []
    local: list[int | LiteralValue] = []
    for atom in atoms:
        if isinstance(atom, LiteralValue):
            local.append(atom)
            continue
        if atom not in numbers:
            numbers.append(atom)
        local.append(numbers.index(atom))
    in_avals = [aval_of(n) for n in numbers]
    builder = KernelBuilder(in_avals)
    body = jaxprs.call_body(eqn.primitive, eqn.params)
    if body is None:
        results: Sequence[Any] = range(len(numbers), len(numbers) + len(eqn.outvars))
        out_avals = [v.aval for v in eqn.outvars]
        builder.add(
            eqn.primitive, eqn.params, eqn.ctx, eqn.effects, out_avals, local, list(results)
        )
    else:
        results = builder.inline(body[0], body[1], local)
    out_avals = [v.aval for v in eqn.outvars]
    return cache.kernel(builder.equations, list(results), in_avals, out_avals), numbers
