"""What a program's values take on one device of several.

Model: how values are divided among devices is XLA's decision, but for those that the user has said
it of. The program is compiled once, in no order and not to run, and XLA is asked where it divides
each value (`jax.debug.inspect_array_sharding`).

Thread rule: functions of their arguments. Cost: a compilation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from coop_jax._src.ir import cost_model
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.jit.emission import Emitter


def localized(program: Program, compile: Callable[[Callable[..., list[Any]]], Any]) -> Program:
    """The program with the bytes of its storages on one device.

    Args:
      program: with their bytes on all devices together.
      compile: compiles a function from the program's inputs to its outputs for the devices.
    """
    found: dict[int, int] = {}

    def look(storage: int, array: Any) -> None:
        if storage in found or not array.size:
            return
        found[storage] = program.storages[storage].nbytes
        shape, itemsize = array.shape, array.dtype.itemsize

        def note(sharding: jax.sharding.Sharding) -> None:
            local = jax.ShapeDtypeStruct(sharding.shard_shape(shape), array.dtype)
            found[storage] = local.size * itemsize

        jax.debug.inspect_array_sharding(array, callback=note)

    def function(*inputs: Any) -> list[Any]:
        emitter = Emitter(program)
        for value, array in zip(program.inputs, inputs, strict=True):
            emitter.put(value, array)
            look(program.values[value].storage, emitter.get(value))
        for op in program.operations:
            emitter.run(op)
            for value in op.results:
                look(program.values[value].storage, emitter.get(value))
        return [emitter.result(v) for v in program.outputs]

    compile(function)
    storages = [
        dataclasses.replace(storage, nbytes=found.get(number, storage.nbytes))
        for number, storage in enumerate(program.storages)
    ]
    return dataclasses.replace(program, storages=tuple(storages))


def share_of(program: Program, storages: set[int]) -> float:
    """The part of some storages' bytes that lies on one device."""
    whole = sum(whole_bytes(program, s) for s in storages)
    return sum(program.storages[s].nbytes for s in storages) / whole if whole else 1.0


def work_share(program: Program, op: Operation) -> float:
    """The part of an operation's work that one device does: that of what is divided most."""
    storages = {program.values[v].storage for v in (*op.operands, *op.results)}
    return min((share_of(program, {s}) for s in storages), default=1.0)


def whole_bytes(program: Program, storage: int) -> int:
    """Bytes of a storage on all devices together."""
    values = program.storages[storage].values
    return max((cost_model.nbytes(program.values[v].aval) for v in values), default=0)
