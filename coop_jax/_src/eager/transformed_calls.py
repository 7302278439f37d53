"""`remat_eager` functions under JAX's transformations: from a call to a `BudgetedCall`.

Model: `remat_eager` hands its Python function on, to run it under JAX's transformations in its own
session: so it still sees values under `jax.grad`; what its closure holds of them becomes operands,
too (see `closures`). While JAX traces a program it is `jax.checkpoint`. Inside another
`remat_eager` call it is a plain function call: the budget is that of the call it is part of.

Threads: as the front end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax

from coop_jax._src.compat import transforms as compat
from coop_jax._src.execution.function_settings import FunctionSettings
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.transforms import residuals
from coop_jax._src.transforms.budgeted_call import BudgetedCall, Fits, Flat, refuse_references
from coop_jax._src.util.calling_convention import Convention
from coop_jax._src.util.closures import Closure
from coop_jax._src.util.droppable import Droppable
from coop_jax._src.util.errors import BudgetExceededError
from coop_jax._src.util.mutations import Watch
from coop_jax._src.util.recent import Recent


class EagerCall(Protocol):
    """A `remat_eager` function, as far as it serves parts of another one."""

    def call_flat(self, leaves: Sequence[Any], needed: Callable[[], int] | None) -> list[Any]:
        """A call with these arguments; results beyond the `needed` may be left out."""

    def make_runtime(self, leaves: list[Any], tree: Any) -> Runtime:
        """Makes the runtime, for a call with these arguments."""


Make = Callable[[FunctionSettings], EagerCall]


class EagerFrontEnd:
    """Runs functions of leaves as a `remat_eager` function does, in its runtime."""

    repeatable = True
    donates = False
    stageable = True

    def __init__(self, settings: FunctionSettings, make: Make, fits: Recent[Fits]) -> None:
        self._settings, self._make, self._fits = settings, make, fits

    def split(self, call: BudgetedCall, is_vjp: bool, nonzero: tuple[bool, ...]) -> residuals.Split:
        """What linearization runs first, and the rest."""
        return residuals.Split(call, is_vjp, nonzero)

    def budgeted(self, fn: Flat, donate: int, needed: Callable[[], int] | None) -> Flat:
        """An eager function; results beyond the `needed` are left out where they do not fit."""
        del donate
        own = self._settings
        sibling = self._make(own.sibling(Convention(fn)))

        def run(*operands: Any) -> list[Any]:
            try:
                return sibling.call_flat(operands, needed)
            except BudgetExceededError:
                if not own.runtime().drop_residuals():
                    raise
                return sibling.call_flat(operands, needed)

        return run

    def prepare(self, fn: Flat, operands: Sequence[Any]) -> None:
        """Makes the runtime for `fn` if there is none."""
        own = self._settings
        if own.home.here() is None:
            leaves, tree = jax.tree_util.tree_flatten((tuple(operands), {}))
            same = own.sibling(Convention(fn), budget=own.budget, home=own.home)
            self._make(same).make_runtime(leaves, tree)

    def fits(self, key: Hashable) -> Fits:
        """What earlier calls for such operands found."""
        known = self._fits.get(key)
        if known is None:
            known = self._fits[key] = Fits()
        return known

    def watch(self, memo: Droppable) -> None:
        """Residuals go when a call of `run` in this runtime needs their room."""
        self._settings.runtime().keep_residuals(memo)


class TransformedCalls:
    """Calls of one `remat_eager` function under transformations."""

    def __init__(self, settings: FunctionSettings, make: Make) -> None:
        """`make`: makes functions of the front end for parts of this one."""
        self._settings, self._make = settings, make
        self._fits: Recent[Fits] = Recent(256)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call."""
        function = self._settings.convention.fn
        where = compat.place()
        if where is compat.Place.EAGER:
            return function(*args, **kwargs)
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        is_array = [hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves]
        fixed = [None if a else x for a, x in zip(is_array, leaves, strict=True)]
        staged = where is compat.Place.STAGED  # there JAX sees to what is closed over
        closure = None if staged else Closure(function)
        closed = closure.tracers if closure else []
        structure: Any = None
        others: list[Any] = []

        def fn(*operands: Any) -> list[Any]:
            nonlocal structure, others
            given = iter(operands[len(closed) :])
            full = [next(given) if a else x for a, x in zip(is_array, fixed, strict=True)]
            called = closure.function(operands[: len(closed)]) if closure else function
            positional, named = jax.tree_util.tree_unflatten(tree, full)
            watch = Watch(positional, named)
            result = called(*positional, **named)
            watch.check(function, result)
            results, structure = jax.tree_util.tree_flatten(result)
            others = [_Result if isinstance(x, jax.Array) else x for x in results]
            return [x for x, other in zip(results, others, strict=True) if other is _Result]

        operands = [*closed, *(x for a, x in zip(is_array, leaves, strict=True) if a)]
        if staged:
            arrays = iter(jax.checkpoint(fn)(*operands))
        else:
            refuse_references(operands)
            front_end = EagerFrontEnd(self._settings, self._make, self._fits)
            arrays = iter(compat.bind(BudgetedCall(front_end, fn), operands))
        return jax.tree_util.tree_unflatten(
            structure, [next(arrays) if other is _Result else other for other in others]
        )


class _Result:
    """Stands for a result that is an array."""
