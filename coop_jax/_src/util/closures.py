"""Values of transformations that a Python function closes over, as arguments of it.

Model: what a function reaches through its closure, its defaults, `functools.partial`, a bound
method or pytrees of those is looked through for tracers. `Closure.function` is the function with
other values for them: functions are made again, with cells of their own where a cell holds a tracer
and with the same cells elsewhere.
Not found: what lies in globals, or in attributes of objects that are no pytrees.
Invariant: nothing of the caller's is changed. Cost: linear in what is reached.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat import jaxprs

_PLAIN = (jax.Array, np.ndarray, str, bytes, int, float, complex, type(None))


class Closure:
    """A function, and the tracers that it closes over.

    Attributes:
      tracers: each of them once.
    """

    __slots__ = ("_fn", "_numbers", "tracers")

    def __init__(self, fn: Callable[..., Any]):
        self._fn = fn
        self.tracers: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._look(fn, {})

    def function(self, values: Sequence[Any]) -> Callable[..., Any]:
        """The function with these values in the place of its tracers."""
        if not self.tracers:
            return self._fn
        return self._made(self._fn, values, {})  # type: ignore[no-any-return]

    def _look(self, x: Any, seen: dict[int, Any]) -> bool:
        """Notes the tracers in x; returns whether there are any."""
        if isinstance(x, jaxprs.Tracer):
            if self._numbers.setdefault(id(x), len(self.tracers)) == len(self.tracers):
                self.tracers.append(x)
            return True
        if isinstance(x, _PLAIN) or id(x) in seen:
            return False
        seen[id(x)] = x
        found = [self._look(part, seen) for part in _parts(x)]  # all of them
        return any(found)

    def _made(self, x: Any, values: Sequence[Any], made: dict[int, Any]) -> Any:
        """X with values for its tracers; itself where it has none."""
        if isinstance(x, jaxprs.Tracer):
            return values[self._numbers[id(x)]]
        if id(x) in made:
            return made[id(x)]
        if not self._has_tracers(x):
            return x

        def again(part: Any) -> Any:
            return self._made(part, values, made)

        if isinstance(x, types.FunctionType):
            return self._made_function(x, again, made)
        if isinstance(x, types.MethodType):
            return types.MethodType(again(x.__func__), again(x.__self__))
        if isinstance(x, functools.partial):
            keywords = {name: again(value) for name, value in x.keywords.items()}
            return functools.partial(again(x.func), *map(again, x.args), **keywords)
        leaves, tree = _children(x)
        return jax.tree_util.tree_unflatten(tree, map(again, leaves))

    def _made_function(
        self, x: types.FunctionType, again: Callable[[Any], Any], made: dict[int, Any]
    ) -> Any:
        cells = x.__closure__ or ()
        new = tuple(
            types.CellType() if self._has_tracers(_contents(cell)) else cell for cell in cells
        )
        function = types.FunctionType(x.__code__, x.__globals__, x.__name__, None, new)
        made[id(x)] = function  # before its cells: it may close over itself
        function.__defaults__ = again(x.__defaults__)
        function.__kwdefaults__ = again(x.__kwdefaults__)
        function.__dict__.update(x.__dict__)
        for cell, old in zip(new, cells, strict=True):
            if cell is not old:
                cell.cell_contents = again(_contents(old))
        return function

    def _has_tracers(self, x: Any) -> bool:
        if isinstance(x, jaxprs.Tracer):
            return True
        seen: dict[int, Any] = {}
        return self._look(x, seen)


def _parts(x: Any) -> Sequence[Any]:
    if isinstance(x, types.FunctionType):
        cells = map(_contents, x.__closure__ or ())
        return [*cells, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
    if isinstance(x, types.MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    return _children(x)[0]


def _children(x: Any) -> tuple[Sequence[Any], Any]:
    """Leaves of a pytree, and its structure; none of what is a leaf itself."""
    leaves, tree = jax.tree_util.tree_flatten(x)
    if len(leaves) == 1 and leaves[0] is x:
        return [], tree
    return leaves, tree


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty still
        return None
