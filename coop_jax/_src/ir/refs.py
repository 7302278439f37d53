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
# Without results and effects, and still not to be left out: what is used afterwards is an error.
ENDING = frozenset(("free_ref",))
PRIMITIVES = frozenset((*_MAKING, *ENDING, "freeze", "get", "swap", "addupdate", "run_state"))


LOST = object()


class RefCell:
    """A reference while a program runs.

    Attributes:
      aval: the type of the reference.
      current: the front end's value of its contents; None once it was frozen or freed, LOST once an
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
    _contents(cell)
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


def _contents(cell: RefCell) -> Any:
    if cell.current is None:
        raise ValueError(f"a reference of type {cell.aval} was used after it was frozen or freed")
    if cell.current is LOST:
        raise RuntimeError(
            f"the contents of a reference of type {cell.aval} are lost: a write to it failed"
        )
    return cell.current


def _run(call: Call, traced: Any, operands: list[Any]) -> Any:
    jaxpr, constants = jaxprs.open_closed(traced)
    return call(jaxpr, constants, operands)[0]


def _run_state(params: dict[str, Any], given: list[Any], call: Call) -> list[Any]:
    """A reference from outside is the same one inside, and its own result."""
    jaxpr, constants = jaxprs.open_closed(params["jaxpr"])
    if not all(params["is_initialized"]):
        values = iter(list(given))
        given[:] = [
            next(values) if known else _run(call, compat.uninitialized(contents_aval(x.aval)), [])
            for known, x in zip(params["is_initialized"], jaxpr.invars, strict=True)
        ]
    outer = [type(value) is RefCell for value in given]
    cells = [
        value if is_outer else wrapped(variable.aval, value)
        for variable, value, is_outer in zip(jaxpr.invars, given, outer, strict=True)
    ]
    given.clear()
    call(jaxpr, constants, list(cells))
    return [
        cell.current if type(cell) is RefCell and not is_outer else cell
        for cell, is_outer in zip(cells, outer, strict=True)
    ]


def written_by_test(
    test: Any, body: Any, test_fixed: Sequence[Any], fixed: Sequence[Any]
) -> list[RefCell]:
    """The cells that the condition of a `while` writes to; `fixed`: constants of its two programs.

    As JAX compiles it, what the last test wrote, after which the loop ends, is not kept.

    Raises:
      NotImplementedError: the body writes to one of them, too; as JAX says.
    """
    if RefCell not in map(type, test_fixed):
        return []
    written, by_body = (
        [x for n, x in enumerate(given) if n in numbers and type(x) is RefCell]
        for given, numbers in (
            (test_fixed, compat.inputs_written(test)),
            (fixed, compat.inputs_written(body)),
        )
    )
    if any(x is y for x in written for y in by_body):
        raise NotImplementedError(
            "Cannot write to the same ref in both cond and body of while loop."
        )
    return written


def rows_of(stacked: Sequence[Any], variables: Sequence[Any], call: Call) -> dict[int, Rows]:
    """Of the operands that a scan goes over the references; `variables`: its body's inputs."""
    own = variables[len(variables) - len(stacked) :]
    pairs = enumerate(zip(stacked, own, strict=True))
    return {k: Rows(x, v.aval, call) for k, (x, v) in pairs if type(x) is RefCell}


class Rows:
    """A reference that a scan goes over: each step has a reference to one row.

    What a step writes into its row is written into the whole when the step is done.
    """

    __slots__ = ("_aval", "_call", "_cell", "_first", "_row")

    def __init__(self, cell: RefCell, aval: Any, call: Call):
        """`aval`: the type of the reference to a row."""
        self._cell = cell
        self._aval = aval
        self._call = call

    def take(self, row_of: Callable[[Any], Any]) -> RefCell:
        """The reference of a step; `row_of` gives the row of the contents."""
        self._first = row_of(_contents(self._cell))
        self._row = RefCell(self._aval, self._first)
        return self._row

    def put_back(self, position: Any) -> None:
        """After the step at this position (a value)."""
        row, first = self._row.current, self._first
        del self._row, self._first
        if row is first:
            return
        inner = compat.inner_aval(self._aval)
        writing = compat.row_written(inner_aval(self._cell), inner)
        arguments = [_contents(self._cell), row, position]
        row = first = None
        self._cell.current = LOST
        self._cell.current = _run(self._call, writing, arguments)
