"""`run` functions under JAX's transformations: from a call of theirs to a `BudgetedCall`.

Model: `run` traces its function once per signature, as it does at the top level; what the function
closes over and is being transformed becomes an operand. While JAX traces a program, `run` raises.
Inside a `remat_eager` call it is a plain function call: the budget is that of the call it is part
of.

Invariant: donation is ignored under transformations, as JAX's own is.
Threads: as the front end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax

from coop_jax._src.compat import contexts, jaxprs, transfers
from coop_jax._src.compat import transforms as compat
from coop_jax._src.execution.function_settings import FunctionSettings
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir import primitives
from coop_jax._src.run.argument_passing import leaf_key
from coop_jax._src.transforms import residuals
from coop_jax._src.transforms.budgeted_call import (
    STAGED,
    BudgetedCall,
    Fits,
    Flat,
    refuse_references,
)
from coop_jax._src.util.call_arguments import check_leaves
from coop_jax._src.util.calling_convention import Convention
from coop_jax._src.util.droppable import Droppable
from coop_jax._src.util.recent import Recent


class RunFunction(Protocol):
    """A `run` function, as far as it serves parts of another one."""

    def __call__(self, *operands: Any) -> list[Any]:
        """Runs it."""

    def runtime_for(self, leaves: Sequence[Any]) -> Runtime:
        """The runtime, made for a call with these leaves as its arguments."""


Make = Callable[[FunctionSettings], RunFunction]


class RunFrontEnd:
    """Runs functions of leaves as a `run` function does, in its runtime."""

    donates = True
    stageable = False

    def __init__(self, settings: FunctionSettings, make: Make, repeatable: bool) -> None:
        # Not fused: whether first and second part run as one program depends on the budget, and the
        # bits must not.
        self._settings, self._make = settings, make
        self.repeatable = repeatable

    def split(self, call: BudgetedCall, is_vjp: bool, nonzero: tuple[bool, ...]) -> residuals.Split:
        """What linearization runs first, and the rest."""
        return residuals.Split(call, is_vjp, nonzero)

    def budgeted(self, fn: Flat, donate: int, needed: Callable[[], int] | None) -> Flat:
        """A `run` function; all of its results are kept, or it raises before anything ran."""
        del needed
        return self._make(self._settings.sibling(Convention(fn, tuple(range(donate)))))

    def prepare(self, fn: Flat, operands: Sequence[Any]) -> None:
        """Makes the runtime for `fn` if there is none."""
        own = self._settings
        if own.home.here() is None:
            same = own.sibling(Convention(fn), budget=own.budget, home=own.home)
            self._make(same).runtime_for(operands)

    def fits(self, key: Hashable) -> Fits:
        """Nothing is known yet: what is learnt is kept with the split."""
        del key
        return Fits()

    def watch(self, memo: Droppable) -> None:
        """Residuals go when another call needs their room."""
        self._settings.runtime().keep_residuals(memo)


class TransformedCalls:
    """Calls of one `run` function under transformations, by kinds of arguments."""

    def __init__(self, settings: FunctionSettings, make: Make) -> None:
        """`make`: makes functions of the front end for parts of this one."""
        self._settings, self._make = settings, make
        self._known: Recent[tuple[BudgetedCall, list[Any], Any]] = Recent(64)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call.

        Raises:
          RuntimeError: while JAX traces a program.
        """
        convention, home = self._settings.convention, self._settings.home
        where = compat.place()
        if where is compat.Place.EAGER:
            return convention.fn(*args, **kwargs)
        if where is compat.Place.STAGED:
            raise RuntimeError(STAGED.format(what="a coop_jax.run function"))
        static, leaves, tree = convention.flatten(args, kwargs)
        check_leaves(leaves)
        convention.check(static, leaves, tree)
        refuse_references(leaves)
        transfers.check_places(leaves, home.device())
        key = (tree, static, tuple(map(leaf_key, leaves)), contexts.current())
        known = self._known.get(key)
        if known is None:
            jaxpr, constants, out_tree = convention.trace(
                static, leaves, tree, under_transformations=True
            )
            refuse_references(constants)
            transfers.check_places(constants, home.device())
            call, closed = self._call_of(jaxpr, constants)
            known = call, closed, out_tree
            if not closed:  # what is closed over here is another tracer the next time
                self._known[key] = known
        call, closed, structure = known
        return jax.tree_util.tree_unflatten(structure, compat.bind(call, [*closed, *leaves]))

    def _call_of(self, jaxpr: Any, constants: Sequence[Any]) -> tuple[BudgetedCall, list[Any]]:
        closed = [c for c in constants if isinstance(c, jaxprs.Tracer)]

        def fn(*operands: Any) -> list[Any]:
            given = iter(operands[: len(closed)])
            values = [next(given) if isinstance(c, jaxprs.Tracer) else c for c in constants]
            return compat.evaluate(jaxpr, values, operands[len(closed) :])

        repeatable = all(
            primitives.is_recomputable(e.primitive, e.params, e.effects) for e in jaxpr.eqns
        )
        return BudgetedCall(RunFrontEnd(self._settings, self._make, repeatable), fn), closed
