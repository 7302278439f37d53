"""Scans that make in their bodies what operations that read nothing would give them as constants.

JAX takes such values out of the body when it differentiates: the zeros of a `where`, say. XLA puts
them back, but not through the barriers of a plan.

Thread rule: functions of their arguments. Cost: JAX's, of tracing the bodies of such scans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir.program import Operation, Program, releases_of
from coop_jax._src.jit.emission import Emitter
from coop_jax._src.jit.fillers import candidates_of
from coop_jax._src.jit.loops import Lowering, ScanOperation, rebuilt, scan_of


def with_filled_scans(program: Program, lowering: Lowering) -> Program:
    """The program whose scans make fillers themselves."""
    fillers = candidates_of(program)
    if not fillers:
        return program
    operations = tuple(_filled(program, fillers, op, lowering) for op in program.operations)
    return dataclasses.replace(
        program,
        operations=operations,
        releases=releases_of(
            operations, program.values, program.inputs, program.outputs, program.donated
        ),
    )


def _filled(
    program: Program, fillers: Mapping[int, Operation], op: Operation, lowering: Lowering
) -> Operation:
    scan = scan_of(op, lowering)
    if scan is None:
        return op
    inside = {
        k: x
        for k, x in enumerate(scan.operands[: scan.parts.num_consts])
        if isinstance(x, int) and program.values[x].storage in fillers
    }
    if not inside:
        return op
    operands = [x for k, x in enumerate(scan.operands) if k not in inside]
    made = rebuilt(
        op,
        lambda *given: _scanned(program, fillers, scan, inside, given),
        operands,
        scan.results,
        lambda v: program.values[v].aval,
        lowering,
    )
    return op if scan_of(made, lowering) is None else made


def _scanned(
    program: Program,
    fillers: Mapping[int, Operation],
    scan: ScanOperation,
    inside: Mapping[int, int],
    given: Sequence[Any],
) -> list[Any]:
    parts = scan.parts
    count = parts.num_consts - len(inside)
    consts, carry = given[:count], given[count : count + parts.num_carry]

    def iteration(c: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        emitter, rest = Emitter(program), iter(consts)
        for storage in dict.fromkeys(program.values[v].storage for v in inside.values()):
            emitter.run(fillers[storage])
        all_consts = [
            emitter.result(inside[k]) if k in inside else next(rest)
            for k in range(parts.num_consts)
        ]
        made = jaxprs.called(scan.params["jaxpr"], [*all_consts, *c, *x])
        return list(made[: parts.num_carry]), list(made[parts.num_carry :])

    last, rows = jax.lax.scan(
        iteration,
        list(carry),
        list(given[count + parts.num_carry :]),
        length=parts.length,
        reverse=parts.reverse,
        unroll=scan.params.get("unroll", 1),
    )
    return [*last, *rows]
