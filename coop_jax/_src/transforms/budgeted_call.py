"""Budgeted functions under JAX's transformations: `jax.grad(step)`, `jax.vmap(step)` and the rest.

Model: under differentiation or batching a front end binds a `BudgetedCall`, a pure function of
arrays and the front end that runs it. A transformation of it is another pure function, made with
JAX's own transformations, that the same front end runs in the same runtime. Linearization is in
`residuals`.

Invariants: a function is executed by its front end only, in the runtime of the call that it is
derived from. Calls are compared by identity; what is derived from a call is kept with it.
Threads: as the front ends. Cost: for `run` transformed functions are kept per signature, so a
training loop traces each once; `remat_eager` makes them anew with every call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from coop_jax._src.compat import jaxprs, refs
from coop_jax._src.compat import transforms as compat
from coop_jax._src.util.droppable import Droppable

Flat = Callable[..., list[Any]]
T = TypeVar("T")


@dataclasses.dataclass(slots=True, eq=False)
class Fits:
    """What is known of the residuals of one function: it is not tried twice what did not fit."""

    kept: bool = True  # they fit as results of the first part
    beside: bool = True  # the second part fits beside them


class Linearizable(Protocol):
    """A call taken apart into what linearization runs first, and the rest: `residuals.Split`."""

    def linearized(self, operands: Sequence[Any]) -> tuple[list[Any], list[bool], Any]:
        """Runs the first part; gives the results, which have tangents, and the second part."""
        ...


class FrontEnd(Protocol):
    """What runs functions of leaves under a budget."""

    repeatable: bool  # running a function again, after it failed, does nothing twice
    donates: bool
    stageable: bool

    def split(self, call: BudgetedCall, is_vjp: bool, nonzero: tuple[bool, ...]) -> Linearizable:
        """Takes a call apart: `residuals.Split`."""
        ...

    def budgeted(self, fn: Flat, donate: int, needed: Callable[[], int] | None) -> Flat:
        """`fn` under the budget; it may dispose of its first `donate` operands.

        With `needed`, results beyond that number may be left out where they do not fit.
        """
        ...

    def prepare(self, fn: Flat, operands: Sequence[Any]) -> None:
        """Makes the runtime if there is none: its budget may be a fraction of what `fn` needs."""
        ...

    def fits(self, key: Hashable) -> Fits:
        """What is known of the residuals for operands of this kind."""
        ...

    def watch(self, memo: Droppable) -> None:
        """Lets the runtime drop a memo when another call does not fit beside it."""
        ...


class BudgetedCall:
    """A pure function of arrays and the front end that runs it; see `compat.transforms.Call`."""

    def __init__(
        self, front_end: FrontEnd, fn: Flat, needed: Callable[[], int] | None = None
    ) -> None:
        self.front_end = front_end
        self.fn = fn
        self._needed = needed
        self._budgeted: dict[int, Flat] = {}
        self._derived: dict[Hashable, Any] = {}
        self._dims: list[int | None] = []
        self._smooth: list[bool] = []

    def execute(self, operands: Sequence[Any], donate: int = 0) -> list[jax.Array]:
        """Runs it now, under the budget."""
        if not self.front_end.donates:
            donate = 0
        if donate not in self._budgeted:
            self.front_end.prepare(self.fn, operands)
            self._budgeted[donate] = self.front_end.budgeted(self.fn, donate, self._needed)
        return self._budgeted[donate](*operands)

    def results(self, avals: Sequence[Any]) -> list[Any]:
        """The abstract values of its results, from tracing it."""
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
        return [jaxprs.aval_of(x) for x in jax.eval_shape(self.fn, *specs)]

    def batched(self, axis: Any, dims: Sequence[int | None]) -> BudgetedCall:
        """The call of batched operands."""

        def make() -> BudgetedCall:
            def note(found: list[int | None]) -> None:
                call._dims = found

            call = BudgetedCall(
                self.front_end, compat.batched_function(self.fn, axis, dims, note), self._needed
            )
            return call

        return self._derive(("batched", axis, tuple(dims)), make)

    def batched_dims(self) -> list[int | None]:
        """The batched axis of each result."""
        return self._dims

    def pushforward(self, nonzero: Sequence[bool]) -> BudgetedCall:
        """Results, then tangents of the smooth ones, of operands, then tangents."""

        def make() -> BudgetedCall:
            def pushed(*operands: Any) -> list[Any]:
                results, tangents, call._smooth = push(self.fn, nonzero, operands)
                return [*results, *tangents]

            call = BudgetedCall(self.front_end, pushed)
            return call

        return self._derive(("pushforward", tuple(nonzero)), make)

    def smooth_results(self) -> list[bool]:
        """Which results have tangents."""
        return self._smooth

    def linearized(
        self, is_vjp: bool, nonzero: Sequence[bool], operands: Sequence[Any]
    ) -> tuple[list[Any], list[bool], Any]:
        """Runs the first part; the second is a call of operands and tangents."""
        key = (is_vjp, tuple(nonzero))
        split: Linearizable = self._derive(
            ("split", *key), lambda: self.front_end.split(self, *key)
        )
        return split.linearized(operands)

    def transposed(
        self, linear: Sequence[Any], given: Sequence[bool], cotangents: Sequence[Any]
    ) -> BudgetedCall:
        """Cotangents of the linear operands, of the other operands and the cotangents given."""
        is_linear = tuple(aval is not None for aval in linear)
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in linear if a is not None]

        def make() -> BudgetedCall:
            def transposed(*operands: Any) -> list[Any]:
                known = operands[: len(linear) - len(specs)]
                cts = fill(given, operands[len(known) :], cotangents)

                def of_linear(*xs: Any) -> list[Any]:
                    return self.fn(*merge(is_linear, xs, known))

                return list(jax.linear_transpose(of_linear, *specs)(cts))

            return BudgetedCall(self.front_end, transposed)

        return self._derive(("transposed", is_linear, tuple(given)), make)

    def staged(self) -> Flat:
        """The function itself, for `remat_eager`.

        Raises:
          RuntimeError: `run` does not work while a program is traced.
        """
        if not self.front_end.stageable:
            raise RuntimeError(STAGED.format(what="a derivative of a coop_jax.run function"))
        return self.fn

    def _derive(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]  # type: ignore[no-any-return]


compat.weakly_cached(BudgetedCall)

STAGED = (
    "{what} was called while JAX traces a program (inside jit, scan, while_loop, cond, checkpoint,"
    " make_jaxpr, eval_shape, or another function given to run). It executes operations itself and"
    " needs values, so call it outside of them: put the jit, scan or loop inside the function that"
    " is given to coop_jax.run; or use coop_jax.remat_eager, which behaves as jax.checkpoint there."
)


def merge(chosen: Sequence[bool], yes: Sequence[Any], no: Sequence[Any]) -> list[Any]:
    """Puts two lists together: an element of `yes` wherever chosen."""
    first, second = iter(yes), iter(no)
    return [next(first) if c else next(second) for c in chosen]


def part(chosen: Sequence[bool], items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The items that are chosen, and the others."""
    both = list(zip(chosen, items, strict=True))
    return [x for c, x in both if c], [x for c, x in both if not c]


def fill(given: Sequence[bool], values: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """The values, and zeros where none is given."""
    _, missing = part(given, avals)
    return merge(given, values, [jnp.zeros(a.shape, a.dtype) for a in missing])


def smooth_parts(
    fn: Flat, varying: Sequence[bool], fixed: Sequence[Any], smooth: list[bool]
) -> Callable[..., tuple[list[Any], list[Any]]]:
    """`fn` of the operands that vary; gives the results that have tangents, then the others."""

    def of_varying(*xs: Any) -> tuple[list[Any], list[Any]]:
        results = fn(*merge(varying, xs, fixed))
        smooth[:] = [compat.is_smooth(x) for x in results]
        return part(smooth, results)

    return of_varying


def push(
    fn: Flat, nonzero: Sequence[bool], operands: Sequence[Any]
) -> tuple[list[Any], list[Any], list[bool]]:
    """Results, tangents of those that have some, and which these are."""
    primals, tangents = operands[: len(nonzero)], operands[len(nonzero) :]
    varying, fixed = part(nonzero, primals)
    smooth: list[bool] = []
    moving, moved, still = jax.jvp(
        smooth_parts(fn, nonzero, fixed, smooth), tuple(varying), tuple(tangents), has_aux=True
    )
    return merge(smooth, moving, still), list(moved), smooth


def refuse_references(values: Sequence[Any]) -> None:
    """Raises NotImplementedError if one of them is a mutable reference."""
    if any(
        refs.is_ref(x) or (isinstance(x, jaxprs.Tracer) and refs.is_ref_aval(x.aval))
        for x in values
    ):
        raise NotImplementedError(
            "a mutable reference (jax.new_ref) reaches a coop_jax function under jax.grad, vmap or"
            " the like: put the transformation inside the function, or pass the contents, ref[...],"
            " and return the new ones"
        )
