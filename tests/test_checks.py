"""Checks of values: `checkify` inside and around, and NaN checks that change inside a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import coop_jax

FRONT_ENDS: list[Callable[..., Any]] = [coop_jax.run, coop_jax.remat_eager]
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)
ONES = np.ones(4, np.float32)


def checked(x: Any) -> Any:
    checkify.check(jnp.all(x > 0), "negative: {first}", first=x[0])
    return x * 2


def test_an_error_value_is_thrown_inside_a_call() -> None:
    def program(x: Any) -> Any:
        error, y = checkify.checkify(checked)(x)
        error.throw()
        return y

    budgeted = coop_jax.remat_eager(program)
    np.testing.assert_array_equal(budgeted(ONES), 2 * ONES)
    with pytest.raises(Exception, match=r"negative: -1\.0"):
        budgeted(-ONES)
    np.testing.assert_array_equal(budgeted(ONES), 2 * ONES)


def test_an_error_value_is_read_inside_a_call() -> None:
    def program(x: Any) -> Any:
        error, _ = jax.jit(checkify.checkify(checked))(x)
        return error.get()

    budgeted = coop_jax.remat_eager(program)
    assert budgeted(ONES) is None
    assert "negative" in budgeted(-ONES)


@front_ends
def test_an_error_value_is_returned(front_end: Any) -> None:
    def looped(x: Any) -> Any:
        def body(carry: Any, e: Any) -> Any:
            checkify.check(e > 0, "negative")
            return carry + e, e

        return jax.lax.scan(body, 0.0, x)

    def derivative(x: Any) -> Any:
        return jax.grad(lambda x: checked(x).sum())(x)

    for function in (checked, looped, derivative):
        budgeted = front_end(checkify.checkify(function))
        error, found = budgeted(-ONES)
        wanted = checkify.checkify(function)(jnp.asarray(-ONES))[1]
        assert "negative" in error.get()
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(a, b)
        assert budgeted(ONES)[0].get() is None


def test_checkify_around_an_eager_function() -> None:
    error, _ = checkify.checkify(coop_jax.remat_eager(checked))(-ONES)
    assert "negative" in error.get()


def test_what_was_made_unchecked_is_not_checked_when_it_is_made_again() -> None:
    def program(x: Any) -> Any:
        kept = []
        for i in range(8):
            with jax.debug_nans(False):
                bad = x * jnp.nan
                kept.append(jnp.where(jnp.isnan(bad), x + i, bad))
        return sum((h * h).sum() for h in reversed(kept))

    x = jnp.ones((100, 100))
    expected = coop_jax.remat_eager(program)(x)
    budgeted = coop_jax.remat_eager(program, budget="400KiB")
    with jax.debug_nans(True):
        assert float(budgeted(x)) == float(expected)
    assert budgeted.runtime.stats().rematerialisations > 0


def test_checks_that_begin_inside_a_call() -> None:
    def program(x: Any) -> Any:
        made = jnp.log(x - 2)
        with jax.debug_nans(True):
            good = jnp.log(x)
            with pytest.raises(FloatingPointError):
                jnp.log(x - 2)
        return made, good, jnp.log(x - 2)

    budgeted = coop_jax.remat_eager(program)
    x = jnp.ones(100_000)
    for _ in range(3):
        made, good, after = budgeted(x)
        assert np.isnan(made).all()
        assert np.isnan(after).all()
        assert not good.any()
