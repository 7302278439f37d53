"""The two front ends under JAX's transformations: from a call of theirs to a `BudgetedCall`.

Model: `run` traces its function once per signature, as it does at the top level; what the function
closes over and is being transformed becomes an operand. `remat_eager` hands its Python function on,
to run it under JAX's transformations in its own session: so it still sees values under `jax.grad`;
what its closure holds of them becomes operands, too (see `closures`).
While JAX traces a program, `run` raises and `remat_eager` is `jax.checkpoint`. Inside a
`remat_eager` call both are plain function calls: the budget is that of the call they are part of.

Invariant: donation is ignored under transformations, as JAX's own is.
Threads: as the front ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from coop_jax._src import primitives
from coop_jax._src.calling import Convention
from coop_jax._src.closures import Closure
from coop_jax._src.compat import contexts, jaxprs, refs, transfers
from coop_jax._src.compat import transforms as compat
from coop_jax._src.homes import Home
from coop_jax._src.mutations import Watch
from coop_jax._src.passing import leaf_key
from coop_jax._src.transforms import STAGED, BudgetedCall, Fits, Flat
from coop_jax._src.util.call_arguments import check_leaves
from coop_jax._src.util.errors import BudgetExceededError

if TYPE_CHECKING:
    from coop_jax._src.eager import EagerFunction
    from coop_jax._src.run import BudgetedFunction


class RunFrontEnd:
    """Runs functions of leaves as a `run` function does, in its runtime."""

    donates = True
    stageable = False

    def __init__(self, owner: BudgetedFunction[..., Any], repeatable: bool) -> None:
        self._owner = owner
        self.repeatable = repeatable

    def budgeted(self, fn: Flat, donate: int, needed: Callable[[], int] | None) -> Flat:
        """A `run` function; all of its results are kept, or it raises before anything ran."""
        del needed
        home = Home(None, self._owner._home.here())
        return self._sibling(Convention(fn, tuple(range(donate))), None, home)  # type: ignore[no-any-return]

    def _sibling(self, convention: Convention, budget: int | float | None, home: Home) -> Any:
        # Not fused: whether first and second part run as one program depends on the budget, and the
        # bits must not.
        owner = self._owner
        return type(owner)(convention, budget, owner._policy, home, fusion=False)

    def prepare(self, fn: Flat, operands: Sequence[Any]) -> None:
        """Makes the runtime for `fn` if there is none."""
        owner = self._owner
        if owner._home.here() is None:
            self._sibling(Convention(fn), owner._budget, owner._home)._runtime_for(operands)

    def fits(self, key: Hashable) -> Fits:
        """Nothing is known yet: what is learnt is kept with the split."""
        del key
        return Fits()

    def watch(self, memo: Any) -> None:
        """Residuals go when another call needs their room."""
        self._owner.runtime._memos.add(memo)


def call_run(
    owner: BudgetedFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of a `run` function under transformations.

    Raises:
      RuntimeError: while JAX traces a program.
    """
    where = compat.place()
    if where is compat.Place.EAGER:
        return owner._convention.fn(*args, **kwargs)
    if where is compat.Place.STAGED:
        raise RuntimeError(STAGED.format(what="a coop_jax.run function"))
    convention = owner._convention
    static, leaves, tree = convention.flatten(args, kwargs)
    check_leaves(leaves, tracers=True)
    convention.check(static, leaves, tree)
    _refuse_references(leaves)
    transfers.check_places(leaves, owner._home.device())
    key = (tree, static, tuple(map(leaf_key, leaves)), contexts.current())
    known = owner._calls.get(key)
    if known is None:
        jaxpr, constants, out_tree = convention.trace(
            static, leaves, tree, under_transformations=True
        )
        _refuse_references(constants)
        transfers.check_places(constants, owner._home.device())
        call, closed = _call_of(owner, jaxpr, constants)
        known = call, closed, out_tree
        if not closed:  # what is closed over here is another tracer the next time
            owner._calls[key] = known
    call, closed, structure = known
    return jax.tree_util.tree_unflatten(structure, compat.bind(call, [*closed, *leaves]))


def _call_of(
    owner: BudgetedFunction[..., Any], jaxpr: Any, constants: Sequence[Any]
) -> tuple[BudgetedCall, list[Any]]:
    closed = [c for c in constants if isinstance(c, jaxprs.Tracer)]

    def fn(*operands: Any) -> list[Any]:
        given = iter(operands[: len(closed)])
        values = [next(given) if isinstance(c, jaxprs.Tracer) else c for c in constants]
        return compat.evaluate(jaxpr, values, operands[len(closed) :])

    repeatable = all(
        primitives.is_recomputable(e.primitive, e.params, e.effects) for e in jaxpr.eqns
    )
    return BudgetedCall(RunFrontEnd(owner, repeatable), fn), closed


class EagerFrontEnd:
    """Runs functions of leaves as a `remat_eager` function does, in its runtime."""

    repeatable = True
    donates = False
    stageable = True

    def __init__(self, owner: EagerFunction[..., Any]) -> None:
        self._owner = owner

    def budgeted(self, fn: Flat, donate: int, needed: Callable[[], int] | None) -> Flat:
        """An eager function; results beyond the `needed` are left out where they do not fit."""
        del donate
        owner = self._owner
        sibling = self._sibling(fn, None, Home(None, owner._home.here()))

        def run(*operands: Any) -> list[Any]:
            try:
                return sibling._call_flat(operands, needed)  # type: ignore[no-any-return]
            except BudgetExceededError:
                if not owner.runtime.drop_residuals():
                    raise
                return sibling._call_flat(operands, needed)  # type: ignore[no-any-return]

        return run

    def _sibling(self, fn: Flat, budget: int | float | None, home: Home) -> Any:
        return type(self._owner)(fn, budget, self._owner._policy, home)

    def prepare(self, fn: Flat, operands: Sequence[Any]) -> None:
        """Makes the runtime for `fn` if there is none."""
        owner = self._owner
        if owner._home.here() is None:
            leaves, tree = jax.tree_util.tree_flatten((tuple(operands), {}))
            self._sibling(fn, owner._budget, owner._home)._make_runtime(leaves, tree)

    def fits(self, key: Hashable) -> Fits:
        """What earlier calls for such operands found."""
        known: Fits | None = self._owner._fits.get(key)
        if known is None:
            known = self._owner._fits[key] = Fits()
        return known

    def watch(self, memo: Any) -> None:
        """Residuals go when a call of `run` in this runtime needs their room."""
        self._owner.runtime._memos.add(memo)


def call_eager(
    owner: EagerFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of a `remat_eager` function under transformations."""
    where = compat.place()
    if where is compat.Place.EAGER:
        return owner._fn(*args, **kwargs)
    leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
    is_array = [hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves]
    fixed = [None if a else x for a, x in zip(is_array, leaves, strict=True)]
    staged = where is compat.Place.STAGED  # there JAX sees to what is closed over
    closure = None if staged else Closure(owner._fn)
    closed = closure.tracers if closure else []
    structure: Any = None
    others: list[Any] = []

    def fn(*operands: Any) -> list[Any]:
        nonlocal structure, others
        given = iter(operands[len(closed) :])
        full = [next(given) if a else x for a, x in zip(is_array, fixed, strict=True)]
        function = closure.function(operands[: len(closed)]) if closure else owner._fn
        positional, named = jax.tree_util.tree_unflatten(tree, full)
        watch = Watch(positional, named)
        result = function(*positional, **named)
        watch.check(owner._fn, result)
        results, structure = jax.tree_util.tree_flatten(result)
        others = [_Result if isinstance(x, jax.Array) else x for x in results]
        return [x for x, other in zip(results, others, strict=True) if other is _Result]

    operands = [*closed, *(x for a, x in zip(is_array, leaves, strict=True) if a)]
    if staged:
        arrays = iter(jax.checkpoint(fn)(*operands))
    else:
        _refuse_references(operands)
        arrays = iter(compat.bind(BudgetedCall(EagerFrontEnd(owner), fn), operands))
    return jax.tree_util.tree_unflatten(
        structure, [next(arrays) if other is _Result else other for other in others]
    )


def _refuse_references(values: Sequence[Any]) -> None:
    if any(
        refs.is_ref(x) or (isinstance(x, jaxprs.Tracer) and refs.is_ref_aval(x.aval))
        for x in values
    ):
        raise NotImplementedError(
            "a mutable reference (jax.new_ref) reaches a coop_jax function under jax.grad, vmap or"
            " the like: put the transformation inside the function, or pass the contents, ref[...],"
            " and return the new ones"
        )


class _Result:
    """Stands for a result that is an array."""
