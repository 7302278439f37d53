"""What held memory when a budget did not suffice, and why it could not be evicted.

Model: a `HeldStorage` is a block of the pool, or a part of the room that the pool leaves for what
lies outside it. The front ends name them; the text and the sums are made here, from the same
numbers.

Thread rule: values. Cost: linear in the storages.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from coop_jax._src.util.options import format_bytes

HeldKind: TypeAlias = Literal[
    "arguments",
    "donated arguments",
    "constants",
    "results",
    "values",
    "workspace",
    "room beside the pool",
    "other arrays",
]
Why: TypeAlias = Literal[
    "",
    "operand",
    "waiting operand",
    "output",
    "argument",
    "donated argument",
    "constant",
    "result",
    "never repeated",
    "overwritten",
    "workspace",
    "kept free",
    "other array",
]

_REASONS: dict[Why, str] = {
    "operand": "an operation reads it now",
    "waiting operand": "read by an operation that waits for its other operands",
    "output": "the operation writes it",
    "argument": "the caller keeps it",
    "donated argument": "still to be read",
    "constant": "the function closes over it",
    "result": "the call returns it",
    "never repeated": "its operation is never repeated",
    "overwritten": "what it was made from was overwritten",
    "workspace": "XLA needs it while operations run",
    "kept free": "kept free for what lies outside the pool",
    "other array": "somebody holds it, a result of an earlier call for instance",
}
# Rows of a message: there may be hundreds of storages.
_NAMED = 4
# Of an argument's name what follows the parameter's: "['w']", ".kernel".
_PATH = re.compile(r"(?<=\w)[.\[].*")


@dataclasses.dataclass(frozen=True, slots=True)
class HeldStorage:
    """A storage that held memory when a budget did not suffice.

    Attributes:
      nbytes: bytes that it took: of a block of the pool, rounded up to the alignment; outside the
        pool, as they are counted.
      kind: "arguments" (not donated), "donated arguments", "constants" (arrays that the function
        closes over), "results", "values" (anything else that operations make), "workspace" (XLA's
        temporary memory), "room beside the pool" (kept free for small values) or "other arrays".
      what: the argument's name or the operation that makes it.
      shape: of the array; () where none is known.
      dtype: its name; "" where none is known.
      source: "file:line (function)" of the user's program that makes it; "" where none is known.
      why: why it cannot be evicted; "" where it could be. "operand": an operation that is to run
        reads it; "waiting operand": one reads it that waits for a recomputation; "output": the
        operation that runs makes it; "argument": not donated, so the caller keeps it; "donated
        argument": still to be read; "constant", "result"; "never repeated": its operation is not
        run twice; "overwritten": its recipe reads memory that was overwritten since; "workspace";
        "kept free"; "other array": it lies in the pool, and the call does not read it.
    """

    nbytes: int
    kind: HeldKind
    what: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    source: str = ""
    why: Why = ""

    @property
    def is_pinned(self) -> bool:
        """Whether it could not be evicted."""
        return bool(self.why)

    def __str__(self) -> str:
        typed = f" {self.dtype}[{','.join(map(str, self.shape))}]" if self.dtype else ""
        where = f" ({self.source})" if self.source else ""
        why = f"; {_REASONS[self.why]}" if self.why else ""
        return f"{format_bytes(self.nbytes)} ({self.nbytes} bytes): {self.what}{typed}{where}{why}"

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> HeldStorage:
        """From what JSON makes of `dataclasses.asdict`."""
        return cls(**{**said, "shape": tuple(said["shape"])})


def typed(aval: Any) -> dict[str, Any]:
    """Shape and dtype of an abstract value, as fields of a `HeldStorage`."""
    dtype = str(getattr(aval, "dtype", ""))
    return {"shape": tuple(map(int, aval.shape)), "dtype": dtype} if dtype else {}


def of_total(parts: Iterable[HeldStorage], total_bytes: int) -> list[HeldStorage]:
    """Parts of what lies outside the pool, largest first, so that they sum up to a total.

    What is left is kept free for small values and for what is to come; of what is too much the
    smallest parts go, or what of them is too much.
    """
    found, left = [], total_bytes
    for part in sorted(parts, key=lambda p: (-p.nbytes, p.what)):
        nbytes = min(part.nbytes, left)
        if nbytes > 0:
            found.append(dataclasses.replace(part, nbytes=nbytes))
            left -= nbytes
    if left > 0:
        room: HeldKind = "room beside the pool"
        found.append(HeldStorage(left, room, "small values and alignment", why="kept free"))
    return found


def split(parts: Iterable[HeldStorage], first_bytes: int) -> tuple[list[HeldStorage], ...]:
    """Parts in two: the first of them, together so many bytes, and the rest."""
    first, rest = [], []
    for part in parts:
        nbytes = min(part.nbytes, first_bytes)
        first_bytes -= nbytes
        if nbytes:
            first.append(dataclasses.replace(part, nbytes=nbytes))
        if part.nbytes > nbytes:
            rest.append(dataclasses.replace(part, nbytes=part.nbytes - nbytes))
    return first, rest


def by_size(storages: Iterable[HeldStorage]) -> tuple[HeldStorage, ...]:
    """Storages, largest first."""
    return tuple(sorted(storages, key=lambda s: (-s.nbytes, s.what, s.source, s.why)))


def by_kind(storages: Iterable[HeldStorage]) -> dict[str, int]:
    """Bytes of each kind, most first."""
    sums: collections.Counter[str] = collections.Counter()
    for storage in storages:
        sums[storage.kind] += storage.nbytes
    return dict(sorted(sums.items(), key=lambda kind: (-kind[1], kind[0])))


def kinds_text(storages: Sequence[HeldStorage]) -> str:
    """Such as "values 2.00 MiB, arguments 1.00 MiB"."""
    return ", ".join(f"{kind} {format_bytes(n)}" for kind, n in by_kind(storages).items())


def rows(storages: Sequence[HeldStorage]) -> list[str]:
    """Lines that name the largest; what they leave out is summed up in the last one.

    What is of one argument, or of one operation at one line, is one row.
    """
    groups: dict[tuple[str, str, str], list[HeldStorage]] = collections.defaultdict(list)
    for storage in storages:
        groups[_root(storage.what), storage.source, storage.why].append(storage)
    ordered = sorted(groups.values(), key=lambda g: (-sum(s.nbytes for s in g), g[0].what))
    lines = [f"    {_joined(group)}" for group in ordered]
    if len(lines) <= _NAMED + 1:
        return lines
    rest = [storage for group in ordered[_NAMED:] for storage in group]
    nbytes = sum(storage.nbytes for storage in rest)
    return [*lines[:_NAMED], f"    {format_bytes(nbytes)} ({nbytes} bytes): {len(rest)} others"]


def _root(what: str) -> str:
    """Of "argument params['w']" that is "argument params"."""
    return _PATH.sub("", what) if what.startswith("argument ") else what


def _joined(group: Sequence[HeldStorage]) -> HeldStorage:
    """Storages of one origin as one, for people."""
    first = group[0]
    if len(group) == 1:
        return first
    noun = "blocks" if first.kind == "workspace" else "arrays"
    alike = len({(s.shape, s.dtype) for s in group}) == 1
    return dataclasses.replace(
        first,
        nbytes=sum(s.nbytes for s in group),
        what=f"{_root(first.what)}, {len(group)} {noun}" + (" of" if alike and first.dtype else ""),
        shape=first.shape if alike else (),
        dtype=first.dtype if alike else "",
    )
