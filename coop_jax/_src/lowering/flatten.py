"""From a jaxpr to raw operations: calls inlined, scans unrolled, cheap calls grouped, views found.

What is computed twice of the same operands is one value where operations are fused (see `cse`).

A scan's stacked outputs stay separate values (see `stacks`) until an operation needs the whole
stack; a later scan over the same stack reads the originals. A scan over an array that lies in the
pool reads views of it. A `cond` of cheap branches becomes a selection (see
`conditional_to_select`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir import constants as ir_constants
from coop_jax._src.ir import cost_model, primitives, refs, stacks
from coop_jax._src.ir.equations import LiteralValue
from coop_jax._src.ir.kernel_classes import is_narrow
from coop_jax._src.ir.kernels import Kernel, KernelCache
from coop_jax._src.ir.raw_operations import DynamicControlFlow
from coop_jax._src.ir.refs import RefCell
from coop_jax._src.ir.stacks import Stack
from coop_jax._src.lowering import conditional_to_select, inlining, stacked_ops
from coop_jax._src.lowering import constants as tuning
from coop_jax._src.lowering.builder import PutTogether, Walk
from coop_jax._src.lowering.pass_options import PassOptions

_Atom = int | LiteralValue | Stack | RefCell


class Flattener(Walk):
    """Walks a jaxpr once and builds its operations."""

    def __init__(
        self,
        cache: KernelCache,
        kept_inputs: Sequence[bool],
        *,
        fused: bool = False,
        opaque: frozenset[str] = frozenset(),
        passes: PassOptions,
    ):
        """Sets what is taken apart.

        `fused`: calls that could run as one operation are inlined too: fusion chooses better.
        `opaque`: primitives whose equations stay one operation, whatever programs they hold.
        """
        super().__init__(cache, shares=fused and passes.cse)
        self._calls_apart = fused
        self._opaque = opaque
        self._passes = passes
        self._kept_inputs = kept_inputs
        self._index_kernels: dict[int, Kernel] = {}
        self._small_stack_bytes = 0  # of one that is put together where it is first computed with

    def flatten(self, jaxpr: Any, constants: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Returns the value numbers of inputs and outputs.

        An input that is a reference stands for its contents; its last contents are an output, after
        those of the program, in the order of the inputs.
        """
        inputs = [self.new(refs.contents_aval(v.aval)) for v in jaxpr.invars]
        if self._calls_apart:
            given_bytes = sum(cost_model.nbytes(self.avals[n]) for n in inputs)
            self._small_stack_bytes = int(ir_constants.TUNED.small_stack_fraction * given_bytes)
        for number, kept in zip(inputs, self._kept_inputs, strict=True):
            if kept:
                self.fixed_outside.add(self.storages[number])
        given = [refs.wrapped(v.aval, n) for v, n in zip(jaxpr.invars, inputs, strict=True)]
        atoms = self._call(jaxpr, constants, list(given))
        atoms += [x.current for x in given if isinstance(x, RefCell)]
        outputs = [self._whole_block(self.number(a)) for a in atoms]
        # Results that were written as two are two arrays: who gives one away keeps the other.
        found_again = {self.storages[number] for number in self.found_again}
        seen = set[int]()
        for k, number in enumerate(outputs):
            storage = self.storages[number]
            if storage in seen and storage in found_again:
                outputs[k] = self._copied(number)
            seen.add(storage)
        return inputs, outputs

    def _whole_block(self, number: int) -> int:
        """The value with a storage of its own: what the user gets is not a part of a block."""
        return self._copied(number) if self.is_part(number) else number

    def _copied(self, number: int) -> int:
        kernel = self.cache.from_function(lambda x: x.copy(), [self.avals[number]])
        return self.emit(kernel, [number], anew=True)[0]

    def number(self, atom: _Atom) -> int:
        """The value number of anything; puts a stack together if it must."""
        if isinstance(atom, int):
            return atom
        if isinstance(atom, LiteralValue):
            return self.constant(np.asarray(atom.value, atom.aval.dtype), atom.aval)
        if isinstance(atom, RefCell):
            raise TypeError(
                f"a mutable reference ({atom.aval}) was used as an array or returned: return"
                " ref[...] instead"
            )
        if atom.whole is None:
            parts = [self.number(p) for p in atom.parts]
            before = len(self.operations)
            atom.whole = stacks.put_together(
                parts,
                lambda function, xs: self.emit(
                    self.cache.from_function(function, [self.avals[x] for x in xs]), xs
                )[0],
            )
            operations = tuple(self.operations[before:])
            if cost_model.nbytes(atom.aval) > self._small_stack_bytes:
                self.put_together.append(PutTogether(tuple(parts), operations, atom.whole))
        whole: int = atom.whole
        return whole

    def _walk(
        self, jaxpr: Any, constants: Sequence[_Atom], operands: Sequence[_Atom]
    ) -> list[_Atom]:
        env: dict[Any, _Atom] = dict(zip(jaxpr.constvars, constants, strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(x: Any) -> _Atom:
            return LiteralValue(x.val, x.aval) if isinstance(x, jaxprs.Literal) else env[x]

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(x) for x in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(x) for x in jaxpr.outvars]

    def equation(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        """What an equation gives: values, literals or stacks."""
        name = eqn.primitive.name
        if name in refs.PRIMITIVES:
            return self._of_reference(eqn, operands)
        if name in self._opaque:
            return self._operation(eqn, operands)
        body = jaxprs.call_body(eqn.primitive, eqn.params)
        nested = body is not None or name in primitives.CONTROL_FLOW
        apart = self._calls_apart and body is not None
        apart = apart and not any(is_narrow(v.aval) for v in (*eqn.invars, *eqn.outvars))
        apart = apart or RefCell in map(type, operands)
        if nested and (apart or not inlining.is_group(eqn.primitive, eqn.params, eqn.effects)):
            caller, self.caller = self.caller, self.caller.inside(eqn)
            results = self._opened(eqn, body, operands)
            self.caller = caller
            return results
        if name == "optimization_barrier":
            return operands
        avals = [*(x.aval for x in eqn.invars), *(v.aval for v in eqn.outvars)]
        source = jaxprs.source_of(eqn.source_info, self.caller.source)
        primitives.check_supported(eqn.primitive, eqn.params, avals, source)
        first = operands[0] if operands else None
        if not nested and len(eqn.outvars) == 1:
            if any(isinstance(x, Stack) and x.whole is None for x in operands):
                found = self._of_stacks(eqn, operands)
                if found is not None:
                    return [found]
            if isinstance(first, int):
                out = eqn.outvars[0].aval
                placed = self.cache.keeps_shardings
                if primitives.is_identity(
                    eqn.primitive, eqn.params, self.avals[first], out, keeps_shardings=placed
                ):
                    return [first]
                if primitives.is_replacement(eqn.primitive, [x.aval for x in eqn.invars]):
                    return [operands[1]]
                if (
                    primitives.is_view(eqn.primitive, eqn.params, self.avals[first], out)
                    and self._may_view(first)
                    and self.can_lie_in_pool(out)
                    and not (placed and jaxprs.is_on_mesh(out))
                ):
                    return [self.new(out, view_of=first)]
        return self._operation(eqn, operands)

    def _opened(self, eqn: Any, body: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        if body is not None:
            return self._call(body[0], body[1], operands)
        return self._control_flow(eqn, operands)

    def _call(self, jaxpr: Any, constants: Sequence[Any], given: Sequence[_Atom]) -> list[_Atom]:
        return self._walk(jaxpr, self._constants(jaxpr, constants), given)

    def _constants(self, jaxpr: Any, constants: Sequence[Any]) -> list[int]:
        pairs = zip(constants, jaxpr.constvars, strict=True)
        return [self.constant(c, v.aval) for c, v in pairs]

    def _of_reference(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        avals = [
            refs.inner_aval(x) if isinstance(x, RefCell) else v.aval
            for x, v in zip(operands, eqn.invars, strict=True)
        ]
        return refs.equation(eqn.primitive, eqn.params, operands, avals, self._call)

    def _control_flow(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        name = eqn.primitive.name
        if name == "scan":
            return self._scan(eqn, operands)
        if name == "custom_linear_solve":
            jaxpr, constants = jaxprs.linear_solve_parts(eqn.params)[:2]
            given = jaxprs.linear_solve_operands(eqn.params, operands)
            return self._call(jaxpr, constants, given)
        selects = self._passes.conditional_to_select
        selects = selects and name == "cond" and not eqn.effects
        if selects and conditional_to_select.is_selection(eqn.params):
            bodies = [jaxprs.open_closed(b) for b in eqn.params["branches"]]
            constants = [self._constants(*body) for body in bodies]
            return conditional_to_select.select(
                self, [jaxpr for jaxpr, _ in bodies], constants, operands[0], operands[1:]
            )
        raise DynamicControlFlow

    def _of_stacks(self, eqn: Any, operands: list[_Atom]) -> _Atom | None:
        """The result of an equation on stacks where it does not need them whole."""
        avals = [x.aval for x in eqn.invars]
        out = eqn.outvars[0].aval
        first = operands[0]
        if isinstance(first, Stack):
            identity = primitives.is_identity(eqn.primitive, eqn.params, first.aval, out)
            if identity and len(operands) == 1:
                return first
            literals = [x.value if isinstance(x, LiteralValue) else None for x in operands[1:]]
            found = stacks.selected(eqn.primitive, eqn.params, first, literals, out)
            if found is not None:
                atom: _Atom = found
                return atom
        if cost_model.nbytes(out) <= self._small_stack_bytes or not self._passes.part_by_part:
            return None
        if not stacks.is_part_by_part(eqn.primitive, [out], avals):
            return None
        result: _Atom = stacked_ops.part_by_part(self, eqn, operands, avals, out)
        return result

    def _may_view(self, number: int) -> bool:
        aval = self.avals[number]
        return (
            self.storages[number] not in self.fixed_outside
            and self.can_lie_in_pool(aval)
            and cost_model.nbytes(aval) > tuning.TUNED.small_bytes
        )

    def _operation(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        atoms = [a if isinstance(a, LiteralValue) else self.number(a) for a in operands]
        kernel, numbers = self.cache.of_equation(
            eqn,
            atoms,
            lambda number: self.avals[number],
            opaque=eqn.primitive.name in self._opaque,
        )
        effectful = bool(eqn.effects) or eqn.primitive.name in primitives.IMPURE
        info = eqn.source_info
        return self.emit(
            kernel,
            numbers,
            jaxprs.source_of(info, self.caller.source),
            jaxprs.name_stack_of(info),
            effectful=effectful,
        )

    def _scan(self, eqn: Any, operands: list[_Atom]) -> Sequence[_Atom]:
        scan = jaxprs.scan_parts(eqn.params)
        constants = self._constants(scan.body, scan.constants)
        fixed = operands[: scan.num_consts]
        carry = operands[scan.num_consts : scan.num_consts + scan.num_carry]
        stacked = operands[scan.num_consts + scan.num_carry :]
        rows = refs.rows_of(stacked, scan.body.invars, self._call)
        collected: list[list[_Atom]] = [[] for _ in eqn.outvars[scan.num_carry :]]
        order = range(scan.length)
        for i in reversed(order) if scan.reverse else order:
            row_of = functools.partial(self.part, i=i)
            xs = [rows[k].take(row_of) if k in rows else row_of(x) for k, x in enumerate(stacked)]
            outs = self._walk(scan.body, constants, [*fixed, *carry, *xs])
            for row in rows.values():
                row.put_back(self.position(i))
            carry = outs[: scan.num_carry]
            for column, y in zip(collected, outs[scan.num_carry :], strict=True):
                column.append(y)
        results = []
        for column, var in zip(collected, eqn.outvars[scan.num_carry :], strict=True):
            if scan.reverse:
                column.reverse()
            results.append(self._stack(column, var.aval))
        return [*carry, *results]

    def _stack(self, column: list[_Atom], aval: Any) -> _Atom:
        if not column:
            return LiteralValue(np.zeros(aval.shape, aval.dtype), aval)
        return Stack(list(column), aval)

    def part(self, atom: _Atom, i: int) -> _Atom:
        """The i-th slice of a scanned operand: the original where there is one, or a view."""
        if isinstance(atom, Stack):
            part: _Atom = atom.parts[i]
            return part
        number = self.number(atom)
        aval = self.avals[number]
        sliced = stacks.part_aval(aval)
        if self._may_view(number) and stacks.may_view_part(aval) and self.can_lie_in_pool(sliced):
            return self.new(sliced, view_of=number, at_bytes=i * cost_model.nbytes(sliced))
        kernel = self._index_kernels.get(number)
        if kernel is None:  # traced once for all slices
            kernel = self._index_kernels[number] = stacks.index_kernel(self.cache, aval)
        return self.emit(kernel, [number, self.position(i)])[0]
