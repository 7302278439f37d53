"""A straight-line program of operations over storages.

It knows nothing of a budget or a pool: it is planned for many (see `planning`).

Invariants: operations are in program order; every value is made once; a storage is released after
the operation that last uses it; an in-place result has the shape and dtype of the operand it
overwrites, whose storage no later operation uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from coop_jax._src.ir.kernels import Kernel


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value: a shape and dtype over a storage. Several values may share one (views).

    `at_bytes` is where in the storage it begins; a view may be of a part of it.
    """

    storage: int
    aval: Any
    at_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """A storage: bytes as asked, and whether it lies outside the pool."""

    nbytes: int
    outside: bool
    values: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation: a kernel, its operands (values), its results (values), where they go."""

    kernel: Kernel
    operands: tuple[int, ...]
    results: tuple[int, ...]
    in_place: tuple[int, ...]  # for each result the number of the operand it overwrites, or -1
    source: str
    name_stack: str


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A straight-line program.

    Attributes:
      values, storages, operations: see above; ids are positions.
      inputs: the value of each argument leaf.
      donated: for each input whether its memory may be reused.
      constants: (value, array) of arrays closed over.
      outputs: a value for each output leaf.
      releases: for each operation the storages that nothing uses after it.
    """

    values: tuple[Value, ...]
    storages: tuple[Storage, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    donated: tuple[bool, ...]
    constants: tuple[tuple[int, Any], ...]
    outputs: tuple[int, ...]
    releases: tuple[tuple[int, ...], ...]


def releases_of(
    operations: Sequence[Operation],
    values: Sequence[Value],
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Sequence[bool],
) -> tuple[tuple[int, ...], ...]:
    """For each operation the storages that nothing uses after it."""
    last: dict[int, int] = {}
    for index, op in enumerate(operations):
        for v in (*op.results, *op.operands):
            last[values[v].storage] = index
    kept = {values[v].storage for v in outputs}
    kept.update(values[v].storage for v, d in zip(inputs, donated, strict=True) if not d)
    releases: list[list[int]] = [[] for _ in operations]
    for storage, index in last.items():
        if storage not in kept:
            releases[index].append(storage)
    return tuple(tuple(sorted(r)) for r in releases)
