"""Mutable references: cells whose contents are values like any other.

Model: a `RefCell` stands where JAX has a reference; it names the value that is its contents now. A
write makes a new value and lets the cell name that. So every version is a value of its own: it may
be read, kept, evicted and made again, and a new version takes the memory of the old one when nobody
else reads that (recomputable in-place, paper section 3.4). References of the caller's are inputs,
and get their last contents when the call ends.

Invariant: a cell is the only one that names its contents on behalf of the program.
Thread rule: none shared. Cost: O(operands) per access.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coop_jax._src.compat import jaxprs
from coop_jax._src.compat import refs as compat

# (jaxpr, its constants, operands; the list is emptied) -> results. Each front end has its own.
Call = Callable[[Any, Sequence[Any], list[Any]], Sequence[Any]]

_MAKING = frozenset(("new_ref", "empty_ref"))
PRIMITIVES = frozenset((*_MAKING, "free_ref", "freeze", "get", "swap", "addupdate", "run_state"))


LOST = object()


class RefCell:
    """A reference while a program runs.

    Attributes:
      aval: the type of the reference.
      current: the front end's value of its contents; None once it was frozen, LOST once an
        operation failed that wrote to it.
    """

    __slots__ = ("aval", "current")

    def __init__(self, aval: Any, current: Any):
        self.aval = aval
        self.current = current


class CallersRefs:
    """References of the caller's in a call: the cells that stand for them."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: dict[int, tuple[Any, RefCell, Any]] = {}

    def cell_of(self, ref: Any, value_of: Callable[[Any], Any]) -> RefCell:
        """The cell of a reference; at first it names the value of its contents."""
        known = self._cells.get(id(ref))
        if known is None:
            cell = RefCell(ref.aval, value_of(compat.contents(ref)))
            known = self._cells[id(ref)] = (ref, cell, cell.current)
        return known[1]

    def take_written(self) -> list[tuple[Any, Any]]:
        """Each reference that was written to, with the value of its last contents; once."""
        written = [
            (ref, cell.current)
            for ref, cell, first in self._cells.values()
            if cell.current is not first and cell.current is not LOST
        ]
        self.clear()
        return written

    def clear(self) -> None:
        """Forgets them all."""
        self._cells.clear()


def inner_aval(cell: RefCell) -> Any:
    """The abstract value of what a cell holds."""
    return compat.inner_aval(cell.aval)


def contents_aval(aval: Any) -> Any:
    """The abstract value of a program's input: that of its contents if it is a reference."""
    return compat.inner_aval(aval) if compat.is_ref_aval(aval) else aval


def wrapped(aval: Any, value: Any) -> Any:
    """A program's input as the program sees it: in a cell if it is a reference."""
    return RefCell(aval, value) if compat.is_ref_aval(aval) else value


def equation(
    primitive: Any,
    params: dict[str, Any],
    operands: list[Any],
    avals: Sequence[Any],
    call: Call,
    *,
    is_read: bool = True,
) -> list[Any]:
    """Carries out one of `PRIMITIVES`.

    Args:
      primitive: the equation's.
      params: the equation's.
      operands: cells and values; the list is emptied.
      avals: abstract values of the operands, of cells that of their contents.
      call: runs a jaxpr on values.
      is_read: whether anybody reads the result of a swap.

    Returns:
      The results: a new cell, values, or nothing.
    """
    name = primitive.name
    given = list(operands)
    operands.clear()
    if name in _MAKING:
        aval = compat.made_by(primitive, avals, params)
        jaxpr = compat.initial(aval, avals[0]) if given else compat.zeros(aval)
        return [RefCell(aval, _run(call, jaxpr, given))]
    if name == "run_state":
        return _run_state(params, given, call)
    cell: RefCell = given[0]
    if cell.current is None:
        raise ValueError(f"a reference of type {cell.aval} was used after it was frozen")
    if cell.current is LOST:
        raise RuntimeError(
            f"the contents of a reference of type {cell.aval} are lost: a write to it failed"
        )
    if name in ("freeze", "free_ref"):
        last, cell.current = cell.current, None
        return [last] if name == "freeze" else []
    results = []
    if name == "get" or (name == "swap" and is_read):
        index = slice(1, None) if name == "get" else slice(2, None)
        reading = compat.read(params, avals[0], avals[index])
        results.append(_run(call, reading, [cell.current, *given[index]]))
    if name != "get":
        writing = compat.written(name, params, avals[0], avals[1:])
        arguments = [cell.current, *given[1:]]
        given.clear()
        cell.current = LOST  # so that nobody but the write holds the contents: it may be in place
        cell.current = _run(call, writing, arguments)
    return results


def _run(call: Call, traced: Any, operands: list[Any]) -> Any:
    jaxpr, constants = jaxprs.open_closed(traced)
    return call(jaxpr, constants, operands)[0]


def _run_state(params: dict[str, Any], given: list[Any], call: Call) -> list[Any]:
    jaxpr, constants = jaxprs.open_closed(params["jaxpr"])
    cells = [
        RefCell(variable.aval, value) if compat.is_ref_aval(variable.aval) else value
        for variable, value in zip(jaxpr.invars, given, strict=True)
    ]
    given.clear()
    call(jaxpr, constants, list(cells))
    return [c.current if isinstance(c, RefCell) else c for c in cells]
