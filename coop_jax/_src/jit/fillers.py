"""Operations that read nothing: zeros, masks of indices. XLA makes those where they are read.

A barrier would keep XLA from that, and hold what it joins in memory from the first reader to the
last. So a program that follows a plan has them behind each barrier, and a plan counts no memory for
them, if all that read them are operations that XLA can fuse them with. What scans read in each
iteration is moved into their bodies first (`filled_scans`).

Thread rule: functions of their arguments.
"""

from __future__ import annotations

import dataclasses

from coop_jax._src.ir import kernel_classes
from coop_jax._src.ir.program import Operation, Program


def fillers_of(program: Program) -> dict[int, Operation]:
    """The operations that XLA makes where they are read, by the storages they fill."""
    found = candidates_of(program)
    needed = {program.values[v].storage for v in program.outputs}
    for op in program.operations:
        if not kernel_classes.is_loop(op.kernel):
            needed.update(program.values[v].storage for v in op.operands)
        needed.update(program.values[op.operands[k]].storage for k in op.in_place if k >= 0)
    return {storage: op for storage, op in found.items() if storage not in needed}


def candidates_of(program: Program) -> dict[int, Operation]:
    """The operations that read nothing and that XLA can fuse, by the storages they fill."""
    return {
        program.values[v].storage: op
        for op in program.operations
        if not op.operands and kernel_classes.is_loop(op.kernel)
        if kernel_classes.is_cheap(op.kernel)
        for v in op.results
    }


def without_fillers_bytes(program: Program) -> Program:
    """The program whose fillers take no memory."""
    fillers = fillers_of(program)
    storages = tuple(
        dataclasses.replace(storage, nbytes=0) if number in fillers else storage
        for number, storage in enumerate(program.storages)
    )
    return dataclasses.replace(program, storages=storages)
