"""Scans as operations of a program: their parts, their bodies as programs, what an iteration needs.

Thread rule: functions of their arguments. Cost: linear in the body, once for each `Scan`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.ir import cost_model
from coop_jax._src.ir.equations import LiteralValue
from coop_jax._src.ir.kernels import Kernel, KernelCache
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.lowering.build import build_program
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.planning import planner
from coop_jax._src.planning.planner import PlanSettings


@dataclasses.dataclass(frozen=True, slots=True)
class Lowering:
    """How bodies become programs.

    Attributes:
      cache: where kernels live.
      opaque: primitives that stay one operation each.
      settings: what peaks are told with.
      passes: which passes take place.
    """

    cache: KernelCache
    opaque: frozenset[str]
    settings: PlanSettings
    passes: PassOptions
    _made: dict[tuple[int, tuple[bool, ...]], tuple[Any, Program]] = dataclasses.field(
        default_factory=dict, repr=False
    )

    def program(self, jaxpr: Any, donated: tuple[bool, ...]) -> Program:
        """A jaxpr with its constants as a program; made once."""
        key = (id(jaxpr), donated)
        if key not in self._made:
            opened, constants = jaxprs.open_closed(jaxpr)
            made = build_program(
                opened,
                constants,
                donated,
                self.cache,
                fusion=True,
                opaque=self.opaque,
                passes=self.passes,
            )
            self._made[key] = jaxpr, made  # the jaxpr, too: so its id stays its own
        return self._made[key][1]


@dataclasses.dataclass(frozen=True, slots=True)
class ScanOperation:
    """An operation that is one scan.

    Attributes:
      op: the operation.
      operands: the scan's, constants, carry and stacked ones in order: values, or literals.
      results: the scan's, carry first: values.
      parts: its body and how operands are divided.
      params: of the equation.
      body: the body as a program, of the same operands and results, one row of what is stacked.
    """

    op: Operation
    operands: tuple[int | LiteralValue, ...]
    results: tuple[int, ...]
    parts: jaxprs.Scan
    params: dict[str, Any]
    body: Program

    @property
    def stacked_operands(self) -> tuple[int | LiteralValue, ...]:
        """Those that an iteration reads a row of."""
        return self.operands[self.parts.num_consts + self.parts.num_carry :]

    @property
    def stacked_results(self) -> tuple[int, ...]:
        """Those that an iteration makes a row of."""
        return self.results[self.parts.num_carry :]


def scan_of(op: Operation, lowering: Lowering) -> ScanOperation | None:
    """The scan that an operation is; None for others."""
    equations = op.kernel.equations
    if len(equations) != 1 or equations[0].primitive.name != "scan":
        return None
    equation = equations[0]
    if tuple(op.kernel.outputs) != equation.results:
        return None  # not all of its results, or in another order
    parts = jaxprs.scan_parts(equation.params)
    operands = tuple(op.operands[x] if isinstance(x, int) else x for x in equation.operands)
    closed = equation.params["jaxpr"]
    body = lowering.program(closed, (False,) * len(operands))
    return ScanOperation(op, operands, op.results, parts, equation.params, body)


def workspace_bytes(kernel: Kernel, lowering: Lowering) -> int:
    """What a kernel has alive beside its operands and results.

    Of its loops what an iteration makes beside what it carries; on CPU the halves of a counter that
    random bits are made of, in a loop that XLA fuses with nothing.
    """
    most = 0
    for equation in kernel.equations:
        if equation.primitive.name == "random_bits" and lowering.cache.device.platform == "cpu":
            most = max(most, 2 * sum(map(cost_model.nbytes, equation.out_avals)))
        if equation.primitive.name != "scan":
            continue
        parts = jaxprs.scan_parts(equation.params)
        kept = parts.num_consts
        carried = range(kept, kept + parts.num_carry)
        count = len(equation.operands)
        donated = tuple(k in carried for k in range(count))
        body = lowering.program(equation.params["jaxpr"], donated)
        engine = planner.core_program(body, donated)
        peak = planner.unbudgeted_peak(body, engine, lowering.settings, 0)
        inputs = body.inputs[: kept + parts.num_carry]
        peak -= sum(body.storages[s].nbytes for s in {body.values[v].storage for v in inputs})
        inner = max((workspace_bytes(op.kernel, lowering) for op in body.operations), default=0)
        most = max(most, peak + inner)
    return most


def with_body(scan: ScanOperation, body: Callable[..., list[Any]], lowering: Lowering) -> Operation:
    """The operation with another body, from constants, carry and rows to carry and rows."""
    count = scan.parts.num_carry
    avals = dict(zip(scan.op.operands, scan.op.kernel.in_avals, strict=True))

    def function(*operands: Any) -> list[Any]:
        consts, carry, xs = divided(scan, operands)

        def iteration(c: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            made = body(*consts, *c, *x)
            return made[:count], made[count:]

        last, rows = scanned(scan, iteration, carry, xs)
        return [*last, *rows]

    return rebuilt(scan.op, function, scan.operands, scan.results, avals.__getitem__, lowering)


def divided(
    scan: ScanOperation, operands: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Its constants, carry and stacked operands."""
    consts, carry = scan.parts.num_consts, scan.parts.num_carry
    return operands[:consts], operands[consts : consts + carry], operands[consts + carry :]


def scanned(
    scan: ScanOperation,
    iteration: Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]],
    carry: Sequence[Any],
    xs: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """The scan with another body, under the current trace: the last carry, the rows.

    What `jax.lax.scan` fills with rows are zeros that depend on nothing: XLA makes those of all
    scans of a program first, and has them in memory from then on. Here they depend on what the scan
    reads, so they are made when it begins.
    """
    length, (last, rows) = scan.parts.length, _shapes(iteration, carry, xs)
    anchor = next((x for x in (*carry, *xs) if isinstance(x, jaxprs.Tracer) and x.size), None)
    if anchor is None or not rows or not length:
        made = jax.lax.scan(
            iteration,
            list(carry),
            list(xs),
            length=length,
            reverse=scan.parts.reverse,
            unroll=scan.params.get("unroll", 1),
        )
        return list(made[0]), list(made[1])

    def step(n: Any, state: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        row = length - 1 - n if scan.parts.reverse else n
        held, stacks = state
        held, made = iteration(
            held, [jax.lax.dynamic_index_in_dim(x, row, keepdims=False) for x in xs]
        )
        stacks = [
            jax.lax.dynamic_update_index_in_dim(stack, arrays.as_stored(y), row, 0)
            for stack, y in zip(stacks, made, strict=True)
        ]
        return [_as_carried(x, a) for x, a in zip(held, last, strict=True)], stacks

    zeros = _zeros_after(anchor, [arrays.stored_aval(row) for row in rows], length)
    first = [_as_carried(x, a) for x, a in zip(carry, last, strict=True)]
    unroll = scan.params.get("unroll", 1)
    held, stacks = jax.lax.fori_loop(0, length, step, (first, zeros), unroll=unroll)
    return held, [
        arrays.as_keys(stack, row) if arrays.is_keys(row.dtype) else stack
        for stack, row in zip(stacks, rows, strict=True)
    ]


def _shapes(
    iteration: Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]],
    carry: Sequence[Any],
    xs: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Abstract values of what an iteration carries on and of the rows that it makes."""

    def one(c: Sequence[Any], rows: Sequence[Any]) -> Any:
        return iteration(c, [jax.lax.index_in_dim(x, 0, keepdims=False) for x in rows])

    avals = jax.make_jaxpr(one)(list(carry), list(xs)).out_avals
    return avals[: len(carry)], avals[len(carry) :]


def _zeros_after(anchor: Any, rows: Sequence[Any], length: int) -> list[Any]:
    """Stacks of zeros that are there no earlier than the anchor."""
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    zeros, _ = jax.lax.optimization_barrier(([jax.numpy.zeros((), d) for d in dtypes], anchor))
    by_dtype = dict(zip(dtypes, zeros, strict=True))
    return [
        jax.lax.broadcast_in_dim(
            by_dtype[row.dtype], (length, *row.shape), (), out_sharding=jaxprs.stacked_sharding(row)
        )
        for row in rows
    ]


def _as_carried(value: Any, aval: Any) -> Any:
    """A value with the dtype that is carried, strongly typed."""
    return value if arrays.is_keys(aval.dtype) else jaxprs.strong(value)


def rebuilt(
    op: Operation,
    function: Callable[..., list[Any]],
    operands: Sequence[int | LiteralValue],
    results: Sequence[int],
    aval_of: Callable[[int], Any],
    lowering: Lowering,
) -> Operation:
    """An operation that computes something else: `function` of operands, values or literals."""
    numbers = list(dict.fromkeys(x for x in operands if isinstance(x, int)))

    def of_numbers(*given: Any) -> list[Any]:
        known = dict(zip(numbers, given, strict=True))
        return function(*(known[x] if isinstance(x, int) else x.value for x in operands))

    kernel = lowering.cache.from_function(of_numbers, [aval_of(v) for v in numbers])
    over = dict(zip(op.results, op.in_place, strict=True))
    in_place = []
    for value in results:
        operand = over.get(value, -1)
        before = op.operands[operand] if operand >= 0 else None
        in_place.append(numbers.index(before) if before in numbers else -1)
    return dataclasses.replace(
        op,
        kernel=kernel,
        operands=tuple(numbers),
        results=tuple(results),
        in_place=tuple(in_place),
    )
