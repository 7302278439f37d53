"""Types of 64 bits in blocks of a program, and as arguments, while x64 is off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits

FRONT_ENDS: list[Callable[..., Any]] = [coop_jax.run, coop_jax.remat_eager]
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)
X = np.linspace(0, 1, 1000, dtype=np.float32)


def arithmetic(x: Any) -> Any:
    with jax.enable_x64(True):
        y = jnp.sin(x.astype("float64")) * 2.5 + np.arange(1000)
        return (y @ y).astype("float32"), y.astype("float32")


def derivative(x: Any) -> Any:
    def loss(x: Any) -> Any:
        with jax.enable_x64(True):
            return (jnp.sin(x.astype("float64")) * 3.0).sum().astype("float32")

    return jax.grad(loss)(x)


def wide_result(x: Any) -> Any:
    with jax.enable_x64(True):
        return x.astype("float64") * 2, x.astype("float64").sum()


def scanned(x: Any) -> Any:
    with jax.enable_x64(True):
        first = jnp.float64(0)
        total, products = jax.lax.scan(lambda c, e: (c + e, c * e), first, x[:20].astype("float64"))
        return total.astype("float32"), products.astype("float32")


def looped(x: Any) -> Any:
    with jax.enable_x64(True):
        y = jax.lax.while_loop(lambda c: c.sum() < 1e4, lambda c: c * 2.0, x.astype("float64"))
        return y.astype("float32")


def reference(x: Any) -> Any:
    with jax.enable_x64(True):
        ref = jax.new_ref(x.astype("float64"))
        ref[3] += 2.0
        return ref[...].astype("float32")


@front_ends
@pytest.mark.parametrize(
    "program", [arithmetic, derivative, wide_result, scanned, looped, reference]
)
def test_a_block_with_x64(front_end: Any, program: Any) -> None:
    expected = jax.jit(program)(X)
    budgeted = front_end(program)
    for _ in range(2):
        found = budgeted(X)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)
    forced = front_end(program, policy=coop_jax.Policy("coop", evict_always=True))
    assert_same_bits(forced(X), found)


@front_ends
def test_wide_arguments_while_x64_is_off(front_end: Any) -> None:
    with jax.enable_x64(True):
        reals, numbers = jnp.linspace(0, 1, 300, dtype="float64"), jnp.arange(300)

    def program(a: Any, n: Any) -> Any:
        return jax.lax.sin(jax.lax.mul(a, a)), jax.lax.add(n, n), jax.lax.slice(a, (2,), (9,))

    found = front_end(program)(reals, numbers)
    assert [str(x.dtype) for x in found] == ["float64", "int64", "float64"]
    assert_same_bits(found, jax.jit(program)(reals, numbers))


@front_ends
def test_numpy_arguments_are_still_narrowed(front_end: Any) -> None:
    offsets = np.arange(4.0)
    result = front_end(lambda x: x * offsets)(np.ones(4))
    assert result.dtype == jnp.float32


def test_reading_wide_values_inside_a_call() -> None:
    def program(x: Any) -> Any:
        with jax.enable_x64(True):
            y = x.astype("float64")
            return float(y.sum()), str(y[:2].dtype), np.asarray(y).dtype.name

    found = coop_jax.remat_eager(program)(X)
    assert found[0] == pytest.approx(500)
    assert found[1:] == ("float64", "float64")
