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


@pytest.mark.parametrize("policy", ["coop", coop_jax.Policy("coop", evict_always=True)])
def test_checks_that_begin_inside_a_call_leave_alone_what_is_made_again(policy: Any) -> None:
    def program(x: Any) -> Any:
        bad = [jnp.log(x - 2 - i) for i in range(4)]
        kept = [jnp.where(jnp.isnan(b), x + i, b) for i, b in enumerate(bad)]
        with jax.debug_nans(True):
            total = sum((k * k).sum() for k in kept)
            with pytest.raises(FloatingPointError, match="encountered in log"):
                jnp.log(x - 2)
        jnp.log(x - 2)
        return total

    x = jnp.ones(20_000)
    expected = jax.jit(lambda x: sum(((x + i) ** 2).sum() for i in range(4)))(x)
    budgeted = coop_jax.remat_eager(program, budget="400KiB", policy=policy)
    for _ in range(3):
        assert float(budgeted(x)) == float(expected)
    assert budgeted.runtime.stats().rematerialisations > 0


@pytest.mark.parametrize("setting", [jax.debug_nans, jax.debug_infs])
@front_ends
def test_results_that_no_operation_makes_are_checked(front_end: Any, setting: Any) -> None:
    bad = np.nan if setting is jax.debug_nans else np.inf
    constant = np.array([1, bad], np.float32)

    def branch(x: Any) -> Any:
        return jax.lax.cond(x[0] > 0, lambda: bad, lambda: 2.0)

    programs = [
        lambda x: (bad, x + 2),
        lambda x: (constant, x + 2),
        branch,
        lambda x: jax.lax.scan(lambda c, y: (c, bad), x[0], x),
    ]
    for program in programs:
        budgeted = front_end(lambda x, program=program: jax.jit(program)(x))
        unchecked = budgeted(ONES)
        with setting(True):
            with pytest.raises(FloatingPointError, match="invalid value"):
                jax.jit(program)(jnp.asarray(ONES))
            with pytest.raises(FloatingPointError, match="invalid value"):
                budgeted(ONES)
        for a, b in zip(jax.tree.leaves(unchecked), jax.tree.leaves(budgeted(ONES)), strict=True):
            np.testing.assert_array_equal(a, b)


@front_ends
def test_constants_that_are_no_results_are_not_checked(front_end: Any) -> None:
    def program(x: Any) -> Any:
        return jnp.where(x > 0, x, np.nan), jnp.where(jnp.isnan(constant), x[:2], 0)

    constant = np.array([1, np.nan], np.float32)
    budgeted = front_end(lambda x: jax.jit(program)(x))
    with jax.debug_nans(True):
        for a, b in zip(budgeted(ONES), jax.jit(program)(ONES), strict=True):
            np.testing.assert_array_equal(a, b)


def masked(x: Any, until: Any) -> Any:
    """Makes NaNs that no result has, in an operation of its own."""
    logs = jax.lax.linalg.cholesky(jnp.where(x > 0, x, -jnp.eye(len(x))))
    return jnp.where(x > until, 1.0, jnp.where(jnp.isnan(logs), 0.0, logs))


def counting(x: Any, until: Any) -> Any:
    """The same in a program whose operations depend on values."""
    return jax.lax.while_loop(lambda s: s[0] < until, lambda s: (s[0] + 1, masked(s[1], 9)), (0, x))


@pytest.mark.parametrize("program", [masked, counting])
def test_run_refuses_what_jit_refuses(program: Any) -> None:
    x = -jnp.ones((64, 64))
    budgeted = coop_jax.run(program)
    with jax.debug_nans(True):
        for _ in range(3):
            found, expected = budgeted(x, 2), jax.jit(program)(x, 2)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("loops", [False, True])
def test_run_names_the_operation_that_made_what_a_result_has(loops: bool) -> None:
    def program(x: Any, until: Any) -> Any:
        made = jnp.linalg.cholesky(x) @ x
        if loops:
            made = jax.lax.while_loop(lambda s: s.max() > until, lambda s: s * 0.5, made)
        return made.sum(), x + 1

    budgeted = coop_jax.run(program)
    x = -jnp.ones((64, 64))
    budgeted(x, 1.0)
    with jax.debug_nans(True):
        for _ in range(2):
            with pytest.raises(FloatingPointError, match=r"invalid value \(nan\).*cholesky"):
                budgeted(x, 1.0)
    assert np.isnan(budgeted(x, 1.0)[0])
    assert budgeted(-x, 1.0)[0].dtype == np.float32
