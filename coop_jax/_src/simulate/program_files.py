"""Programs as files: what the planner knows of a program, as JSON.

The format, version 1: one object with

  "format": "coop_jax program", "version": 1, "name": for people
  "storages": [[bytes, outside], ...]   outside: 1 if it lies outside the pool (small values), or 0
  "values": [[storage, "float32[8,128]", at_bytes], ...]   values of one storage alias each other
  "inputs": [[value, donated], ...]     donated: 1 if the call may reuse its memory, or 0
  "constants": [value, ...]             closed over; kept like inputs that are not donated
  "operations": [{
      "name": primitives, "source": "file:line (function)", "scope": name stack,
      "key": what it computes, for measured costs,
      "cost_seconds": as planned, "flops": and "moved_bytes": what it is an estimate of,
      "recomputable": 0 if it must not be replayed, or 1,
      "reads": [value, ...], "makes": [value, ...],
      "in_place": [position in "reads" of the value whose memory it may take over, or -1, ...],
      "releases": [storage, ...]        whose last use this is
  }, ...]
  "outputs": [value, ...]

Numbers of storages and values are positions in their lists. `save_program` writes one entry a line.
"name" of an operation, "source", "scope", "key", "flops" and "moved_bytes" may be missing; without
"flops" (or with -1) "cost_seconds" was measured, and holds whatever device is simulated.

Invariants: a program that was read has passed every check, so the planner accepts it: each value
is made once and before it is read, nothing is read after its release, sizes and costs are not
negative. What is wrong with a file is a `ProgramFileError` that names the line of the entry.
Thread rule: functions of their arguments. Cost: linear in the file.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, cast

from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.ir.program import Operation, Program, Storage, Value
from coop_jax._src.simulate.json_lines import Entry, Reader
from coop_jax._src.simulate.traced_program import (
    RecordedKernel,
    RecordedType,
    TracedProgram,
    kernel_key,
)
from coop_jax._src.util import options
from coop_jax._src.util.budget import MOST_BYTES
from coop_jax._src.util.options import shown

_FORMAT, _VERSION = "coop_jax program", 1
_LISTS = ("storages", "values", "inputs", "constants", "operations", "outputs")
_MOST = MOST_BYTES
_TYPE = re.compile(r"([A-Za-z0-9_<>:]+)\[((?:[0-9]{1,18}(?:,[0-9]{1,18})*)?)\]")


def save_program(program: TracedProgram, path: str | os.PathLike[str]) -> None:
    """Writes a program as JSON (see this module for the format).

    Args:
      program: from `trace_program` or `load_program`.
      path: the file to write.
    """
    if not isinstance(program, TracedProgram):
        raise TypeError(f"program must be a TracedProgram, got {type(program).__name__}")
    name = options.file_path(path)
    p = program.program
    lists: dict[str, list[Any]] = {
        "storages": [[s.nbytes, int(s.outside)] for s in p.storages],
        "values": [[v.storage, _type_text(v.aval), v.at_bytes] for v in p.values],
        "inputs": [[v, int(d)] for v, d in zip(p.inputs, p.donated, strict=True)],
        "constants": [v for v, _ in p.constants],
        "operations": [
            {
                "name": op.kernel.label,
                "source": op.source,
                "scope": op.name_stack,
                "key": kernel_key(op.kernel),
                "cost_seconds": op.kernel.cost_seconds,
                "flops": op.kernel.flops,
                "moved_bytes": op.kernel.moved_bytes,
                "recomputable": int(op.kernel.recomputable),
                "reads": op.operands,
                "makes": op.results,
                "in_place": op.in_place,
                "releases": released,
            }
            for op, released in zip(p.operations, p.releases, strict=True)
        ],
        "outputs": list(p.outputs),
    }
    with open(name, "w", encoding="utf-8") as file:
        head = {"format": _FORMAT, "version": _VERSION, "name": program.name}
        file.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()))
        for key, entries in lists.items():
            file.write(f",\n{json.dumps(key)}: [")
            file.write(",".join("\n" + json.dumps(entry) for entry in entries))
            file.write("\n]")
        file.write("\n}\n")


def _type_text(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def load_program(path: str | os.PathLike[str]) -> TracedProgram:
    """Reads a program that `save_program`, or anything else, wrote.

    Args:
      path: the file.

    Returns:
      The program, to simulate.

    Raises:
      ProgramFileError: what is wrong, with the line: no JSON, a file that ends too early, missing
        or negative numbers, values that do not exist or are read before they are made (cycles).
    """
    name = options.file_path(path)
    with open(name, encoding="utf-8") as file:
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise Reader(name, "").fail(f"this is not text ({error})", 0) from error
    return _Loader(Reader(name, text)).load()


class _Loader:
    """Builds a program from a file, checking all that the planner relies on."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._values: list[Value] = []
        self._storage_count = 0
        # By storage: 0 before something makes it, 1 then, -1 after its release.
        self._made: list[int] = []

    def load(self) -> TracedProgram:
        fields = self._reader.top_level(("format", "version", "name", *_LISTS))
        if fields["format"].value != _FORMAT:
            raise fields["format"].fail(f"not a program file: format must be {_FORMAT!r}")
        if fields["version"].value != _VERSION:
            raise fields["version"].fail(
                f"version {shown(fields['version'].value)} is unknown: this coop_jax reads"
                f" {_VERSION}"
            )
        sizes = [self._storage(e) for e in fields["storages"].entries()]
        if sum(nbytes for nbytes, _ in sizes) >= _MOST:
            raise fields["storages"].fail("sizes add up to more than any machine has")
        self._storage_count = len(sizes)
        self._made = [0] * len(sizes)
        self._values = [self._value(e, sizes) for e in fields["values"].entries()]
        inputs, donated = [], []
        for entry in fields["inputs"].entries():
            number, flag = entry.numbers(2)
            donated.append(entry.flag(flag))
            inputs.append(self._input(entry, number))
        constants = [self._input(e, e.number()) for e in fields["constants"].entries()]
        operations = []
        releases = []
        for entry in fields["operations"].entries():
            operation, released = self._operation(entry)
            operations.append(operation)
            releases.append(released)
        outputs = [self._known(e, e.number()) for e in fields["outputs"].entries()]
        for value, entry in zip(outputs, fields["outputs"].entries(), strict=True):
            if not self._made[self._values[value].storage]:
                raise entry.fail(f"output {value} is never made")
        members: list[list[int]] = [[] for _ in sizes]
        for number, made in enumerate(self._values):
            members[made.storage].append(number)
        storages = [
            Storage(nbytes, outside, tuple(m))
            for (nbytes, outside), m in zip(sizes, members, strict=True)
        ]
        program = Program(
            values=tuple(self._values),
            storages=tuple(storages),
            operations=tuple(operations),
            inputs=tuple(inputs),
            donated=tuple(donated),
            constants=tuple((v, None) for v in constants),
            outputs=tuple(outputs),
            releases=tuple(releases),
        )
        return TracedProgram(str(fields["name"].value), program)

    def _storage(self, entry: Entry) -> tuple[int, bool]:
        nbytes, outside = entry.numbers(2)
        entry.check(0 <= nbytes < _MOST, f"a storage of {shown(nbytes)} bytes")
        return nbytes, entry.flag(outside)

    def _value(self, entry: Entry, sizes: list[tuple[int, bool]]) -> Value:
        entry.check(
            isinstance(entry.value, list) and len(entry.value) == 3,
            'a value must be [storage, "float32[8,128]", at_bytes]',
        )
        storage, text, at_bytes = entry.value
        entry.check(entry.is_number(storage) and entry.is_number(at_bytes), "numbers expected")
        entry.check(0 <= storage < self._storage_count, f"there is no storage {shown(storage)}")
        entry.check(
            0 <= at_bytes <= sizes[storage][0], f"a value at {shown(at_bytes)} of its storage"
        )
        match = _TYPE.fullmatch(text) if isinstance(text, str) else None
        entry.check(match is not None, f"{shown(text)} is no type such as 'float32[8,128]'")
        assert match is not None
        shape = tuple(int(n) for n in match[2].split(",") if n)
        return Value(storage, RecordedType(shape, match[1]), at_bytes)

    def _known(self, entry: Entry, number: Any) -> int:
        entry.check(
            entry.is_number(number) and 0 <= number < len(self._values),
            f"there is no value {shown(number)}",
        )
        return int(number)

    def _input(self, entry: Entry, number: int) -> int:
        value = self._known(entry, number)
        self._make(entry, value)
        return value

    def _make(self, entry: Entry, value: int) -> None:
        storage = self._values[value].storage
        entry.check(self._made[storage] == 0, f"storage {storage} is made a second time")
        self._made[storage] = 1

    def _operation(self, entry: Entry) -> tuple[Operation, tuple[int, ...]]:
        get = entry.field
        reads = [self._known(entry, n) for n in get("reads", list)]
        makes = [self._known(entry, n) for n in get("makes", list)]
        in_place = get("in_place", list)
        released = get("releases", list)
        for value in reads:
            storage = self._values[value].storage
            entry.check(
                self._made[storage] != 0,
                f"value {value} is read before anything makes it (a cycle, or operations out of"
                " order)",
            )
            entry.check(self._made[storage] > 0, f"value {value} is read after its release")
        entry.check(bool(makes), "an operation must make something")
        for value in makes:
            self._make(entry, value)
        entry.check(
            len(in_place) == len(makes)
            and all(entry.is_number(n) and -1 <= n < len(reads) for n in in_place),
            'in_place must have a position in "reads", or -1, for each value that is made',
        )
        for storage in released:
            entry.check(
                entry.is_number(storage) and 0 <= storage < self._storage_count,
                f"there is no storage {shown(storage)}",
            )
            entry.check(self._made[storage] > 0, f"storage {storage} is released, but not there")
            self._made[storage] = -1
        cost = self._amount(entry, "cost_seconds")
        kernel = RecordedKernel(
            key=get("key", str, ""),
            label=get("name", str, "operation"),
            cost_seconds=cost,
            flops=-1.0 if entry.value.get("flops", -1) == -1 else self._amount(entry, "flops"),
            moved_bytes=int(self._amount(entry, "moved_bytes", 0)),
            recomputable=entry.flag(get("recomputable", int)),
        )
        operation = Operation(
            cast(Kernel, kernel),  # the planner looks at nothing else of one
            tuple(reads),
            tuple(makes),
            tuple(in_place),
            get("source", str, ""),
            get("scope", str, ""),
        )
        return operation, tuple(released)

    def _amount(self, entry: Entry, key: str, default: float | None = None) -> float:
        amount = entry.field(key, (int, float), default)
        entry.check(
            0 <= amount < 1e18,  # what is not a number is not, either
            f"{key} must not be negative, nor 1e18 or more, got {shown(amount)}",
        )
        return float(amount)
