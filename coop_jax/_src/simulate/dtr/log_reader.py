"""Reading operation logs of the authors of DTR (see `log_simulator`).

Model: names stand for tensors; a copy is another name of the same tensor. A mutation makes a new
tensor of the same size and gives it the old one's name. What still has references at the end is an
output: brought back if it is missing, and pinned.
Invariants: a `DtrLog` has passed every check; what is wrong with a file is a `ProgramFileError`
that names the line.
Thread rule: a reader belongs to one call. Cost: linear in the lines; some ten thousand a second.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from coop_jax._src.util.budget import MOST_BYTES
from coop_jax._src.util.errors import ProgramFileError
from coop_jax._src.util.options import shown

RUN, RETAIN, RELEASE, PIN = 0, 1, 2, 3
_MOST = MOST_BYTES  # of bytes and nanoseconds, each in all


@dataclasses.dataclass(frozen=True, slots=True)
class LogOperation:
    """One operation: a call, a mutation or a constant.

    Attributes:
      name: of the function called; "constant" for a constant.
      cost_ns: nanoseconds that it took.
      arguments: numbers of the tensors that it reads.
      result_bytes: for each result its size; 0 for an alias.
      aliases: for each result the position of the argument that it aliases, or -1.
      mutates: for each result the position of the argument that it is the new version of, or -1.
    """

    name: str
    cost_ns: int
    arguments: tuple[int, ...]
    result_bytes: tuple[int, ...]
    aliases: tuple[int, ...]
    mutates: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DtrLog:
    """A log, checked. Results of the operations are tensors, numbered in order.

    Attributes:
      operations: in the order in which they ran.
      steps: (RUN, operation), (RETAIN, tensor), (RELEASE, tensor) or (PIN, tensor), in order.
      ignored_releases: releases of names from before the beginning of the log.
    """

    operations: tuple[LogOperation, ...]
    steps: tuple[tuple[int, int], ...]
    ignored_releases: int

    @property
    def compute_ns(self) -> int:
        """Nanoseconds of all operations, each run once."""
        return sum(op.cost_ns for op in self.operations)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants."""
        return sum(sum(op.result_bytes) for op in self.operations if op.name == "constant")


def read_log(file: str | os.PathLike[str] | Iterable[str]) -> DtrLog:
    """Reads a log.

    The instructions, one JSON object a line; numbers may be strings:
    `CONSTANT` NAME, then `MEMORY` NAME MEMORY (bytes) · `CALL` NAME ARGS RESULT TIME (ns), then for
    each result `MEMORY` and `ALIAS` NAME ALIAS (-1, or the position of the argument whose storage
    it shares) · `MUTATE` NAME ARGS MUTATE TIME, with MUTATE the positions of the arguments that
    change · `COPY` DST SRC: a new name · `COPY_FROM` DST SRC: DST now names what SRC does ·
    `RELEASE` NAME · `ANNOTATE` ANNOTATION. Lines before `ANNOTATE START`, if there is one, are
    skipped; releases of names that only they can have made are ignored.

    Args:
      file: a path (gzipped if it ends in ".gz"), or the lines.

    Returns:
      The log.

    Raises:
      ProgramFileError: what is wrong, with the line: no JSON, unknown instructions or names,
        missing or negative numbers, a file that ends too early.
    """
    if not isinstance(file, (str, os.PathLike)):
        if not isinstance(file, Iterable):
            raise TypeError(f"file must be a path or lines, got {shown(file)}")
        return _Reader("the log").read(file)
    path = os.fspath(file)
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8") as lines:
        return _Reader(path).read(lines)


class _Reader:
    """Reads lines into operations and steps."""

    def __init__(self, name: str):
        self._name = name
        self._line = 0
        self._operations: list[LogOperation] = []
        self._steps: list[tuple[int, int]] = []
        self._tensors: dict[str, int] = {}  # what a name stands for; in order of first appearance
        self._references: list[int] = []  # by tensor
        self._storage: list[int] = []  # by tensor
        self._storage_bytes: list[int] = []
        self._storage_references: list[int] = []
        self._total_bytes = self._total_ns = 0
        self._ignored_releases = 0

    def _fail(self, problem: str) -> ProgramFileError:
        return ProgramFileError(f"{self._name}, line {self._line}: {problem}", self._line)

    def read(self, lines: Iterable[str]) -> DtrLog:
        records = self._records(lines)
        for record in records:
            self._instruction(record, records)
        if not self._operations:
            raise self._fail("the log ends without a single operation")
        for tensor in self._tensors.values():
            if self._references[tensor] > 0:
                self._steps.append((PIN, tensor))
        return DtrLog(tuple(self._operations), tuple(self._steps), self._ignored_releases)

    def _records(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The JSON objects from START on; all of them if there is no START."""
        numbered: list[tuple[int, dict[str, Any]]] = []
        start = 0
        try:
            for line in lines:
                self._line += 1
                if not line.strip():
                    continue
                record = self._parse(line)
                if record["INSTRUCTION"] == "ANNOTATE" and record.get("ANNOTATION") == "START":
                    start = start or len(numbered) + 1
                numbered.append((self._line, record))
        except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
            self._line += 1
            raise self._fail(f"the file is damaged or ends too early ({error})") from error
        for self._line, record in numbered[start:]:
            yield record

    def _parse(self, line: str) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._fail(f"this is not JSON ({error})") from error
        if not isinstance(record, dict) or not isinstance(record.get("INSTRUCTION"), str):
            raise self._fail("expected a JSON object with an INSTRUCTION")
        return record

    def _instruction(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        kind = record["INSTRUCTION"]
        if kind == "CONSTANT":
            name = self._text(record, "NAME")
            nbytes = self._memory_of(name, records)
            (tensor,) = self._run("constant", 0, (), (nbytes,), (-1,))
            self._define(name, tensor)
            self._steps.append((PIN, tensor))
        elif kind == "CALL":
            self._call(record, records)
        elif kind == "MUTATE":
            self._mutate(record)
        elif kind == "COPY":
            tensor = self._tensor(self._text(record, "SRC"))
            self._retain(tensor)
            self._define(self._text(record, "DST"), tensor)
        elif kind == "COPY_FROM":
            new = self._tensor(self._text(record, "SRC"))
            name = self._text(record, "DST")
            old, self._tensors[name] = self._tensor(name), new
            # First the old one goes, as in the authors' simulator.
            self._release(old)
            self._retain(new)
        elif kind == "RELEASE":
            name = self._text(record, "NAME")
            if name in self._tensors:
                self._release(self._tensors[name])
            else:
                self._ignored_releases += 1
        elif kind == "ANNOTATE":
            self._text(record, "ANNOTATION")
        elif kind in ("MEMORY", "ALIAS"):
            raise self._fail(f"{kind} must follow the CALL or CONSTANT that it belongs to")
        else:
            raise self._fail(f"unknown instruction {shown(kind)}")

    def _call(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        name = self._text(record, "NAME")
        arguments = tuple(map(self._tensor, self._texts(record, "ARGS")))
        results = self._texts(record, "RESULT")
        cost_ns = self._number(record, "TIME")
        if not results:
            raise self._fail(f"the call of {name!r} has no RESULT")
        sizes, aliases = [], []
        for result in results:
            nbytes = self._memory_of(result, records)
            following = self._following(records, "ALIAS", result)
            alias = self._number(following, "ALIAS", least=-1)
            if alias >= len(arguments):
                raise self._fail(f"ALIAS {shown(alias)} of a call with {len(arguments)} arguments")
            sizes.append(nbytes if alias < 0 else 0)
            aliases.append(alias)
        tensors = self._run(name, cost_ns, arguments, tuple(sizes), tuple(aliases))
        for result, tensor in zip(results, tensors, strict=True):
            self._define(result, tensor)

    def _mutate(self, record: dict[str, Any]) -> None:
        names = self._texts(record, "ARGS")
        arguments = tuple(map(self._tensor, names))
        changed = record.get("MUTATE")
        if not isinstance(changed, list) or not changed:
            raise self._fail("MUTATE must be a list of positions of arguments")
        positions = [self._checked(p, "MUTATE", 0) for p in changed]
        if any(p >= len(names) for p in positions):
            raise self._fail(f"MUTATE {max(positions)} of an operation with {len(names)} arguments")
        sizes = tuple(self._storage_bytes[self._storage[arguments[p]]] for p in positions)
        name, cost_ns = self._text(record, "NAME"), self._number(record, "TIME")
        tensors = self._run(name, cost_ns, arguments, sizes, (-1,) * len(sizes), tuple(positions))
        for position, tensor in zip(positions, tensors, strict=True):
            old = self._tensors[names[position]]
            self._tensors[names[position]] = tensor
            self._release(old)

    def _run(
        self,
        name: str,
        cost_ns: int,
        arguments: tuple[int, ...],
        sizes: tuple[int, ...],
        aliases: tuple[int, ...],
        mutates: tuple[int, ...] | None = None,
    ) -> list[int]:
        """Adds an operation; returns its results."""
        self._total_bytes += sum(sizes)
        self._total_ns += cost_ns
        if max(self._total_bytes, self._total_ns) >= _MOST:
            raise self._fail("sizes or times add up to more than any machine has")
        tensors = []
        for nbytes, alias in zip(sizes, aliases, strict=True):
            if alias < 0:
                self._storage.append(len(self._storage_bytes))
                self._storage_bytes.append(nbytes)
                self._storage_references.append(0)
            else:
                self._storage.append(self._storage[arguments[alias]])
            self._storage_references[self._storage[-1]] += 1
            tensors.append(len(self._references))
            self._references.append(1)
        self._steps.append((RUN, len(self._operations)))
        self._operations.append(
            LogOperation(name, cost_ns, arguments, sizes, aliases, mutates or (-1,) * len(sizes))
        )
        return tensors

    def _retain(self, tensor: int) -> None:
        if self._storage_references[self._storage[tensor]] <= 0:
            raise self._fail("a copy of a tensor that nothing refers to any more")
        self._references[tensor] += 1
        self._storage_references[self._storage[tensor]] += 1
        self._steps.append((RETAIN, tensor))

    def _release(self, tensor: int) -> None:
        if self._storage_references[self._storage[tensor]] <= 0:
            raise self._fail("a tensor is released more often than it is referred to")
        self._references[tensor] -= 1
        self._storage_references[self._storage[tensor]] -= 1
        self._steps.append((RELEASE, tensor))

    def _define(self, name: str, tensor: int) -> None:
        if name in self._tensors:
            raise self._fail(f"{name!r} is defined a second time")
        self._tensors[name] = tensor

    def _tensor(self, name: str) -> int:
        try:
            return self._tensors[name]
        except KeyError:
            raise self._fail(f"{name!r} is used before anything defines it") from None

    def _memory_of(self, name: str, records: Iterator[dict[str, Any]]) -> int:
        return self._number(self._following(records, "MEMORY", name), "MEMORY")

    def _following(self, records: Iterator[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
        record = next(records, None)
        if record is None:
            raise self._fail(f"the log ends before {kind} of {name!r}")
        if record["INSTRUCTION"] != kind or record.get("NAME") != name:
            raise self._fail(f"expected {kind} of {name!r}, found {record['INSTRUCTION']}")
        return record

    def _text(self, record: dict[str, Any], key: str) -> str:
        value = record.get(key)
        if not isinstance(value, str):
            raise self._fail(f"{record['INSTRUCTION']} needs {key}, a string; got {shown(value)}")
        return value

    def _texts(self, record: dict[str, Any], key: str) -> list[str]:
        value = record.get(key)
        if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
            raise self._fail(f"{record['INSTRUCTION']} needs {key}, a list of names")
        return value

    def _number(self, record: dict[str, Any], key: str, least: int = 0) -> int:
        return self._checked(record.get(key), key, least)

    def _checked(self, value: Any, key: str, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise self._fail(f"{key} must be a whole number, got {shown(value)}")
        try:
            number = int(value)
        except ValueError:
            raise self._fail(f"{key} must be a whole number, got {shown(value)}") from None
        if not least <= number < _MOST:
            raise self._fail(f"{key} must be {least} or more, and below 2**62, got {shown(number)}")
        return number
