"""Reverse mode around a budgeted function, and what it keeps in the pool from forward to backward.

Model: linearization splits a function in two: a first part that gives the results and what the
second needs (the residuals), and a second, linear part. Residuals live in the pool as results of
the first part: nothing evicts them one by one while the function that needs them may be called. So
they are a memo, not operands: the second part takes the *operands* of the first and is, as a
function, "the first part, then the second". It uses the memo where there is one, and computes the
residuals again where there is none, as `jax.checkpoint` would:
- the first part does not fit with its residuals as results: they are not kept;
- the second part does not fit beside them: it may dispose of them as it goes (`run` only; a second
  use of the same function recomputes them), and if it does not fit then, they are dropped first;
- another call of `run` does not fit beside them: they are dropped (see `Runtime.drop_residuals`).
What did not fit once is not tried again for operands of that kind. Under several transformations
(`jax.vmap(jax.grad(step))`, second derivatives) nothing is kept.

Invariants:
- Whatever is kept, the same operations run: the two parts are traced alike in all cases, so the
  bits do not depend on the budget.
- A memo serves the very arrays that it was made from; for others the residuals are computed anew.
- A `run` function with effects (callbacks) is not run again to save room: it raises. What is inside
  a `remat_eager` function is not known beforehand: where it recomputes, its effects are repeated.
Threads: as the front ends. Source: not in the paper, whose framework differentiates inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from coop_jax._src.compat import jaxprs
from coop_jax._src.compat import transforms as compat
from coop_jax._src.transforms.budgeted_call import (
    BudgetedCall,
    Fits,
    merge,
    part,
    push,
    smooth_parts,
)
from coop_jax._src.transforms.residual_form import Constant, Form
from coop_jax._src.util.errors import BudgetExceededError


class Split:
    """A function in two parts."""

    def __init__(self, call: BudgetedCall, is_vjp: bool, nonzero: tuple[bool, ...]) -> None:
        self.call = call
        self.is_vjp = is_vjp
        self.nonzero = nonzero
        self.form: Form | None = None  # of the last trace of `full`
        self.fits: Fits | None = None
        self.full = BudgetedCall(call.front_end, self._full, self._count)
        self.plain = BudgetedCall(call.front_end, lambda *xs: self.first(xs)[0])
        self._again: dict[Any, BudgetedCall] = {}
        self._quick: dict[Any, tuple[Form, BudgetedCall]] = {}

    def _count(self) -> int:
        assert self.form is not None, "invariant: the first part was traced"
        return len(self.form.smooth)

    def first(self, primals: Sequence[Any]) -> tuple[list[Any], Form, list[Any]]:
        """Results, form, residuals; under the trace of a front end."""
        varying, fixed = part(self.nonzero, primals)
        smooth: list[bool] = []
        transform: Callable[..., Any] = jax.vjp if self.is_vjp else jax.linearize
        moving, linear, still = transform(
            smooth_parts(self.call.fn, self.nonzero, fixed, smooth), *varying, has_aux=True
        )
        leaves, tree = jax.tree_util.tree_flatten(linear)
        numbers = {id(x): ~i for i, x in enumerate(primals)}
        kept: list[Any] = []
        sources: list[Any] = []
        for leaf in leaves:
            if not isinstance(leaf, jaxprs.Tracer):
                sources.append(Constant(leaf))
                continue
            if id(leaf) not in numbers:
                numbers[id(leaf)] = len(kept)
                kept.append(leaf)
            sources.append(numbers[id(leaf)])
        read = dict.fromkeys(~s for s in sources if isinstance(s, int) and s < 0)
        avals = tuple(compat.tangent_aval(jaxprs.aval_of(x)) for x in moving)
        form = Form(tuple(smooth), avals, tree, tuple(sources), tuple(read), len(kept))
        return merge(smooth, moving, still), form, kept

    def _full(self, *primals: Any) -> list[Any]:
        results, self.form, kept = self.first(primals)
        return [*results, *kept]

    def again(self, given: tuple[bool, ...] | None) -> BudgetedCall:
        """The second part of operands and tangents, or of operands and the given cotangents."""
        if given not in self._again:
            count = len(self.nonzero)

            def second(*operands: Any) -> list[Any]:
                primals, rest = operands[:count], operands[count:]
                if given is None and self.is_vjp:  # the parts of a vjp only go backward
                    return push(self.call.fn, self.nonzero, operands)[1]
                _, form, kept = self.first(primals)
                read = [primals[i] for i in form.operands]
                return form.apply(kept, read, rest, given)

            self._again[given] = BudgetedCall(self.call.front_end, second)
        return self._again[given]

    def quick(self, given: tuple[bool, ...] | None, form: Form) -> BudgetedCall:
        """The second part of residuals, operands that it reads, and (co)tangents."""
        known = self._quick.get(given)
        if known is None or known[0] is not form:
            read = len(form.operands)

            def second(*operands: Any) -> list[Any]:
                kept, rest = operands[: form.residuals], operands[form.residuals :]
                return form.apply(kept, rest[:read], rest[read:], given)

            known = form, BudgetedCall(self.call.front_end, second)
            self._quick[given] = known
        return known[1]

    def linearized(self, operands: Sequence[Any]) -> tuple[list[Any], list[bool], Any]:
        """Runs the first part; gives the results, which have tangents, and the second part."""
        memo = None
        front_end = self.call.front_end
        if compat.at_top():
            front_end.prepare(_whole(self), operands)
            results, memo = _first_part(self, operands)
        else:
            results = compat.bind(self.plain, operands)
        smooth = [compat.is_smooth(x) for x in results]
        avals = [
            compat.tangent_aval(jaxprs.aval_of(x))
            for x, s in zip(results, smooth, strict=True)
            if s
        ]
        return results, smooth, _Linear(self, memo, avals)


class Memo:
    """The residuals of one execution of a first part, until there is no room for them."""

    def __init__(
        self, form: Form, fits: Fits, operands: Sequence[Any], residuals: Sequence[Any]
    ) -> None:
        self.form = form
        self.fits = fits
        self.operands = tuple(operands)
        self.residuals: list[jax.Array] | None = list(residuals)

    def serves(self, operands: Sequence[Any]) -> bool:
        """Whether it holds the residuals for these operands."""
        mine = zip(self.operands, operands, strict=False)
        return self.residuals is not None and all(a is b for a, b in mine)

    def drop(self) -> bool:
        """Gives up the residuals; whether there were any."""
        had = bool(self.residuals)
        self.residuals = None
        return had


class _Second(BudgetedCall):
    """A second part: of operands and more, with a memo that may serve instead of the operands."""

    def __init__(self, again: BudgetedCall, memo: Memo | None, quick: BudgetedCall | None) -> None:
        super().__init__(again.front_end, again.fn)
        self._again = again
        self._memo = memo
        self._quick = quick
        self._ran = again

    def execute(self, operands: Sequence[Any], donate: int = 0) -> list[jax.Array]:
        """Runs it from the memo where there is one."""
        found = self._from_memo(operands)
        if found is None:
            self._ran = self._again
            found = self._again.execute(operands, donate)
        return found

    def _from_memo(self, operands: Sequence[Any]) -> list[jax.Array] | None:
        memo, quick = self._memo, self._quick
        if memo is None or quick is None or not memo.serves(operands):
            return None
        self._ran = quick
        fits, front_end = memo.fits, self.front_end
        read = [memo.operands[i] for i in memo.form.operands]
        rest = [*read, *operands[len(memo.operands) :]]
        residuals, memo.residuals = memo.residuals, None  # nobody else drops them meanwhile
        assert residuals is not None
        if fits.beside:
            try:
                found = quick.execute([*residuals, *rest])
            except BudgetExceededError:
                if not front_end.repeatable:
                    raise
                fits.beside = False
            else:
                memo.residuals = residuals
                return found
        if front_end.donates:
            try:
                return quick.execute([*residuals, *rest], donate=len(residuals))
            except BudgetExceededError:
                if not front_end.repeatable:
                    raise
        fits.kept = False
        return None

    def batched(self, axis: Any, dims: Sequence[int | None]) -> BudgetedCall:
        """Keeps the memo where only (co)tangents are batched."""
        again, memo, quick = self._again.batched(axis, dims), self._memo, self._quick
        if memo is None or quick is None or not memo.residuals:
            return again
        first, rest = dims[: len(memo.operands)], dims[len(memo.operands) :]
        if any(d is not None for d in first):
            return again
        fixed = [None] * (memo.form.residuals + len(memo.form.operands))
        return _Second(again, memo, quick.batched(axis, [*fixed, *rest]))

    def batched_dims(self) -> list[int | None]:
        """Those of the form that ran."""
        return self._ran.batched_dims()

    def pushforward(self, nonzero: Sequence[bool]) -> BudgetedCall:
        """Of the function of all operands."""
        return self._again.pushforward(nonzero)

    def linearized(
        self, is_vjp: bool, nonzero: Sequence[bool], operands: Sequence[Any]
    ) -> tuple[list[Any], list[bool], Any]:
        """Of the function of all operands."""
        return self._again.linearized(is_vjp, nonzero, operands)

    def transposed(
        self, linear: Sequence[Any], given: Sequence[bool], cotangents: Sequence[Any]
    ) -> BudgetedCall:
        """Of the function of all operands."""
        return self._again.transposed(linear, given, cotangents)


class _Linear(_Second):
    """The linear function of a split: of operands and tangents."""

    def __init__(self, split: Split, memo: Memo | None, avals: Sequence[Any]) -> None:
        quick = None if memo is None or split.is_vjp else split.quick(None, memo.form)
        super().__init__(split.again(None), memo, quick)
        self._split = split
        self._avals = list(avals)

    def results(self, avals: Sequence[Any]) -> list[Any]:
        """The abstract values of its results, known from the first part."""
        return self._avals

    def transposed(
        self, linear: Sequence[Any], given: Sequence[bool], cotangents: Sequence[Any]
    ) -> BudgetedCall:
        """The backward pass."""
        split, memo = self._split, self._memo
        count, asked = len(split.nonzero), tuple(given)
        backward = all((aval is None) == (i < count) for i, aval in enumerate(linear))
        if not split.is_vjp or not backward:
            return super().transposed(linear, given, cotangents)
        quick = None if memo is None else split.quick(asked, memo.form)
        return _Second(split.again(asked), memo, quick)


compat.weakly_cached(_Second)
compat.weakly_cached(_Linear)


def _first_part(split: Split, operands: Sequence[Any]) -> tuple[list[Any], Memo | None]:
    front_end = split.call.front_end
    if split.fits is None:
        avals = tuple(jaxprs.aval_of(x) for x in operands)
        split.fits = front_end.fits((split.is_vjp, split.nonzero, avals))
    fits = split.fits
    if fits.kept:
        try:
            found = split.full.execute(operands)
        except BudgetExceededError:
            if not front_end.repeatable:
                raise
            fits.kept = False
        else:
            form = split.form
            assert form is not None
            count = len(form.smooth)
            results, residuals = list(found[:count]), found[count:]
            if len(residuals) < form.residuals:
                fits.kept = False
                return results, None
            memo = Memo(form, fits, operands, residuals)
            front_end.watch(memo)
            return results, memo
    return split.plain.execute(operands), None


def _whole(split: Split) -> Callable[..., list[Any]]:
    """Both parts: what a budget that is a fraction is a fraction of."""

    def whole(*operands: Any) -> list[Any]:
        results, form, kept = split.first(operands)
        read = [operands[i] for i in form.operands]
        if split.is_vjp:
            rest = [jnp.ones(a.shape, a.dtype) for a in form.cotangents]
        else:
            rest = [jnp.ones_like(x) for x in part(split.nonzero, operands)[0]]
        given = (True,) * len(rest) if split.is_vjp else None
        return [*results, *form.apply(kept, read, rest, given)]

    return whole
