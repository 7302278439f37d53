"""Parts of JAX that take no traced values: an eager value is known, and is as good as an array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import error_check  # has no public name yet
from jax.experimental import random as stateful

import coop_jax

ONES = np.ones(4, np.float32)


def _checked(x: Any) -> Any:
    error_check.set_error_if(x[0] < 0, "negative")
    return x * 2


@pytest.mark.parametrize("jitted", [False, True])
def test_an_error_is_raised_inside_an_eager_call(jitted: bool) -> None:
    check = jax.jit(_checked) if jitted else _checked

    def program(x: Any) -> Any:
        y = check(x)
        error_check.raise_if_error()
        return y

    budgeted = coop_jax.remat_eager(program)
    for _ in range(2):
        np.testing.assert_array_equal(budgeted(ONES), 2 * ONES)
        with pytest.raises(error_check.JaxValueError, match="negative"):
            budgeted(-ONES)
        error_check.raise_if_error()  # it was raised, and is not any more


@pytest.mark.parametrize("front_end", [coop_jax.run, coop_jax.remat_eager])
def test_an_error_of_a_call_is_raised_after_it(front_end: Any) -> None:
    budgeted = front_end(_checked)
    budgeted(-ONES)
    with pytest.raises(error_check.JaxValueError, match="negative"):
        error_check.raise_if_error()
    budgeted(ONES)
    error_check.raise_if_error()


def test_an_error_is_not_raised_while_jax_traces() -> None:
    def program(x: Any) -> Any:
        @jax.jit
        def inner(x: Any) -> Any:
            y = _checked(x)
            error_check.raise_if_error()
            return y

        return inner(x)

    with pytest.raises(ValueError, match="should not be called within a traced context"):
        coop_jax.remat_eager(program)(ONES)


def test_a_generator_of_random_numbers_seeds_itself() -> None:
    def program(x: Any) -> Any:
        generator = stateful.stateful_rng()
        return x + generator.uniform(size=4), generator.uniform(size=4)

    budgeted = coop_jax.remat_eager(program)
    first, second = budgeted(ONES)
    again, _ = budgeted(ONES)
    assert not np.array_equal(first - 1, second)
    assert not np.array_equal(first, again)

    with pytest.raises(TypeError, match="requires an explicit seed"):
        coop_jax.remat_eager(lambda x: jax.jit(program)(x))(ONES)


def test_a_generator_of_the_callers_goes_on() -> None:
    expected = stateful.stateful_rng(3)
    generator = stateful.stateful_rng(3)
    budgeted = coop_jax.remat_eager(lambda x: x + generator.uniform(size=4))
    for _ in range(3):
        np.testing.assert_array_equal(budgeted(ONES), jnp.asarray(ONES) + expected.uniform(size=4))
