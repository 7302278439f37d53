"""A report in rows: buffers that come from one line, or are one part of the arguments, are one row.

Thread rule: functions of their arguments. Cost: linear in the buffers at the peak.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Sequence

from coop_jax._src.report.buffers import PARAMETER_NAMES, Buffer, Kind

_ARGUMENTS = ("parameters", "optimizer state", "inputs", "results")
# Parts of an optimizer's state that are as large as the parameters.
_SLOTS = frozenset("mu nu trace momentum velocity".split())
_PART = re.compile(r"^\w+|\.\w+|\[[^\]]*\]")
_LABELS: dict[Kind, str] = {"unused": "fragmentation / padding of XLA's allocations"}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Buffers of one origin.

    Attributes:
      nbytes: of all of them.
      kind: theirs, in words.
      where: "file:line (function)" without folders, or the path of arguments.
      what: how many, of which dtype and shape.
      module: what their module paths have in common; numbers that differ are "*".
    """

    nbytes: int
    kind: str
    where: str
    what: str
    module: str


def rows_of(buffers: Sequence[Buffer]) -> list[Row]:
    """Rows, largest first."""
    groups: dict[tuple[str, ...], list[Buffer]] = collections.defaultdict(list)
    for buffer in buffers:
        groups[_key(buffer)].append(buffer)
    rows = [_row(group) for group in groups.values()]
    return sorted(rows, key=lambda r: (-r.nbytes, r.where))


def short_source(source: str) -> str:
    """A source, "file:line (function)", without folders."""
    file, _, function = source.partition(" (")
    function = function.rstrip(")").replace("<locals>.", "")
    return f"{os.path.basename(file)}" + (f" ({function})" if function else "")


def shape_text(buffer: Buffer) -> str:
    """Such as "float32[8,128]"."""
    if not buffer.dtype or buffer.dtype == "-":
        return ""
    if buffer.dtype == "tuple":
        return "pointers"
    return f"{buffer.dtype}[{','.join(map(str, buffer.shape))}]"


def common_module(modules: Sequence[str]) -> str:
    """What module paths have in common, components in which only numbers differ as "Block_*"."""
    split = [m.split("/") for m in modules if m]
    if not split:
        return ""
    found = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) == 1:
            found.append(parts[0])
        elif len({re.sub(r"\d+", "*", p) for p in parts}) == 1:
            found.append(re.sub(r"\d+", "*", parts[0]))
        else:
            break
    return "/".join(found)


def _key(buffer: Buffer) -> tuple[str, ...]:
    if buffer.kind in _ARGUMENTS:
        return buffer.kind, _part(buffer), buffer.dtype if buffer.kind != "results" else ""
    if buffer.kind == "unused":
        return (buffer.kind,)
    return buffer.kind, buffer.source or buffer.module or f"{buffer.operation} {_part(buffer)}"


def _part(buffer: Buffer) -> str:
    """The part of the arguments that a row is about."""
    if buffer.kind == "results":
        parts = _PART.findall(buffer.path)
        in_list = len(parts) == 3 and re.fullmatch(r"\[\d+\]", parts[2])
        if in_list:  # equal ones are one row
            return f"{parts[0]}{parts[1]}[*] {shape_text(buffer)}"
        return "".join(parts[:3])
    path = re.sub(r"\[\d+\]", "[*]", buffer.path)
    parts = _PART.findall(path)
    if buffer.kind == "inputs" or not parts:
        return path
    named = _SLOTS if buffer.kind == "optimizer state" else PARAMETER_NAMES
    for number, part in enumerate(parts):
        if part.strip("[].'\"") in named:
            return "".join(parts[: number + 1])
    return "".join(parts[:2])


def _row(group: Sequence[Buffer]) -> Row:
    first = group[0]
    paths = _common_path([b.path for b in group])
    if first.kind in _ARGUMENTS:
        where, module = paths, ""
    else:
        unknown = f"{first.operation} of {paths}" if paths else first.operation
        where = short_source(first.source) or unknown
        module = common_module([b.module for b in group])
    nbytes = sum(b.nbytes for b in group)
    return Row(nbytes, _LABELS.get(first.kind, first.kind), where, _what(group), module)


def _what(group: Sequence[Buffer]) -> str:
    """How many arrays, of which shape; where there are many shapes, of which dtype."""
    shapes = collections.Counter(shape_text(b) for b in group)
    if len(shapes) == 1:
        (text,) = shapes
        return f"{len(group)} × {text}" if len(group) > 1 else text
    if group[0].kind in _ARGUMENTS:
        dtypes = {b.dtype for b in group} - {"tuple"}
        return f"{len(group)} × {'/'.join(sorted(dtypes))}"
    largest = shape_text(max(group, key=lambda b: b.nbytes))
    count = shapes[largest]
    return f"{count} × {largest} + {len(group) - count} more"


def _common_path(paths: Sequence[str]) -> str:
    """The path of what all of them are in; numbers that differ are "*"."""
    split = [_PART.findall(p) for p in paths if p]
    if not split:
        return ""
    found = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) == 1:
            found.append(parts[0])
        elif all(re.fullmatch(r"\[\d+\]", p) for p in parts):  # of a list
            found.append("[*]")
        else:
            break
    while len(paths) > 1 and len(found) > 1 and found[-1] == "[*]" and len(found) != len(split[0]):
        found.pop()
    return "".join(found)
