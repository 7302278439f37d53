"""Arrays that this process holds beside a program: what leaks from step to step ends up there.

Model: JAX knows all arrays that live. Those that are arguments of the program are left out, and as
many of the same shape and dtype as there are abstract arguments. Who holds the others is looked for
in the variables of the functions that are running and of their modules, in containers and
attributes of objects.

Thread rule: reads the variables of the calling thread. Cost: linear in live arrays and in what the
variables hold, up to `_MOST_LOOKED_AT`.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np

from coop_jax._src.report.summary import short_source

_DEPTH = 8  # of containers and objects within each other
_MOST_LOOKED_AT = 200_000  # objects; a search that takes longer is given up
_LEFT_OUT = (
    *(types.ModuleType, types.FunctionType, types.MethodType, types.CodeType, types.FrameType),
    *(type, str, bytes, int, float, complex, np.ndarray, np.generic),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """Arrays that one variable holds.

    Attributes:
      variable: its name; "" for those of which nobody knows who holds them.
      source: "file:line (function)": the line at which its function is, or its module.
      nbytes: of the arrays, on the device on which they take most.
      arrays: how many there are.
      shape, dtype: of the largest one.
    """

    variable: str
    source: str
    nbytes: int
    arrays: int
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """Such as "history (50 arrays), train.py:12 (main)"."""
        count = f"{self.arrays} array{'s' if self.arrays > 1 else ''}"
        if not self.variable:
            return f"{count} of unknown variables"
        return f"{self.variable} ({count}), {short_source(self.source)}"


def held_elsewhere(arguments: Iterable[Any], caller: FrameType | None) -> tuple[Held, ...]:
    """What the process holds, those variables that hold most first.

    Args:
      arguments: leaves of the program's arguments, arrays and `jax.ShapeDtypeStruct`s.
      caller: the innermost frame that is the user's.
    """
    given, abstract = set[int](), collections.Counter[tuple[tuple[int, ...], str]]()
    for leaf in arguments:
        if isinstance(leaf, jax.Array):
            given.add(id(leaf))
        elif hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            abstract[tuple(leaf.shape), str(leaf.dtype)] += 1
    others: dict[int, jax.Array] = {}
    for array in jax.live_arrays():
        key = tuple(array.shape), str(array.dtype)
        if id(array) in given or array.is_deleted():
            continue
        if abstract[key]:
            abstract[key] -= 1
            continue
        others[id(array)] = array
    found = []
    search = _Search()
    for variable, source, value in _variables(caller):
        leaves = {id(x): x for x in search.arrays(value) if id(x) in others}
        if leaves:
            found.append(_held(variable, source, [others.pop(number) for number in leaves]))
        if not others:
            break
    if others:
        found.append(_held("", "", list(others.values())))
    return tuple(sorted(found, key=lambda h: (-h.nbytes, h.variable)))


class _Search:
    """Finds arrays in what variables hold; asks no object for more than its attributes."""

    def __init__(self) -> None:
        self._left = _MOST_LOOKED_AT

    def arrays(self, value: Any, depth: int = _DEPTH) -> Iterator[jax.Array]:
        """Arrays in containers and in attributes of objects."""
        kind = type(value)  # a proxy says of itself what it stands for
        if issubclass(kind, jax.Array):
            yield value
            return
        if depth == 0 or self._left <= 0 or issubclass(kind, _LEFT_OUT):
            return
        if issubclass(kind, dict):
            parts = list(value.values())
        elif issubclass(kind, (list, tuple, set, frozenset, collections.deque)):
            parts = list(value)
        else:
            try:
                parts = list(object.__getattribute__(value, "__dict__").values())
            except AttributeError:
                return
        self._left -= 1 + len(parts)
        for part in parts:
            yield from self.arrays(part, depth - 1)


def _held(variable: str, source: str, arrays: list[jax.Array]) -> Held:
    by_device: collections.Counter[Any] = collections.Counter()
    for array in arrays:
        for shard in array.addressable_shards:
            by_device[shard.device] += shard.data.nbytes
    largest = max(arrays, key=lambda a: a.nbytes)
    return Held(
        variable,
        source,
        max(by_device.values(), default=0),
        len(arrays),
        tuple(largest.shape),
        str(largest.dtype),
    )


def _variables(frame: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    """Variables of the running functions, innermost first, then those of their modules."""
    modules: dict[str, FrameType] = {}
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        code = frame.f_code
        if frame.f_locals is not frame.f_globals:
            where = f"{code.co_filename}:{frame.f_lineno} ({code.co_qualname})"
            yield from ((n, where, v) for n, v in list(frame.f_locals.items()))
        modules.setdefault(name, frame)
        frame = frame.f_back
    for name, first in modules.items():
        if name.partition(".")[0] in ("jax", "coop_jax", "builtins", "sys"):
            continue
        where = f"{first.f_code.co_filename}:{first.f_lineno} ({name})"
        yield from ((n, where, v) for n, v in list(first.f_globals.items()) if n != "__builtins__")


def caller_of_this_package() -> FrameType | None:
    """The innermost frame outside of coop_jax."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("coop_jax."):
        frame = frame.f_back
    return frame
