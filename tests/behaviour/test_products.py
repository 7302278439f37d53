"""Matrix products in the order of operands in which their result is read."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax


def equations_of(fn: Any, *args: Any) -> tuple[list[Any], Any]:
    """The equations of all operations of the fused program, and what it returns."""
    budgeted = coop_jax.run(fn, fusion=True)
    result = budgeted(*args)
    (signature,) = budgeted._signatures.values()
    return [e for op in signature.program.operations for e in op.kernel.equations], result


def names_of(fn: Any, *args: Any) -> list[str]:
    return [e.primitive.name for e in equations_of(fn, *args)[0]]


def numbers(*shape: int, seed: int = 0) -> jax.Array:
    """Whole numbers, whose products and sums are exact in any order."""
    return jnp.asarray(np.random.default_rng(seed).integers(-8, 9, shape), jnp.float32)


def test_the_gradient_of_a_layer_is_a_product_and_no_transposition() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    args = numbers(24, 8) / 16, numbers(4, 6, 24, seed=1)
    assert "transpose" in str(jax.make_jaxpr(jax.grad(loss))(*args))
    equations, result = equations_of(jax.grad(loss), *args)
    assert "transpose" not in [e.primitive.name for e in equations]
    np.testing.assert_allclose(result, jax.grad(loss)(*args), rtol=1e-5, atol=1e-5)


# Dimensions of the first operand, of the second, and pairs of those that are contracted and of
# those that are batches.
PRODUCTS = {
    "matrices": ((3, 4), (4, 5), ((1,), (0,)), ((), ())),
    "contracted first": ((4, 6, 3), (4, 6, 5), ((0, 1), (0, 1)), ((), ())),
    "contracted crosswise": ((4, 6, 3), (6, 4, 5), ((0, 1), (1, 0)), ((), ())),
    "more on the left": ((2, 3, 4), (4, 5), ((2,), (0,)), ((), ())),
    "batches": ((2, 7, 3, 4), (2, 4, 7, 5), ((3,), (1,)), ((0, 1), (0, 2))),
    "a vector on the left": ((4,), (4, 5, 6), ((0,), (0,)), ((), ())),
    "a vector on the right": ((3, 6, 4), (4,), ((2,), (0,)), ((), ())),
    "batches of vectors": ((2, 4), (2, 4, 5), ((1,), (1,)), ((0,), (0,))),
    "an outer product": ((3, 2), (5,), ((), ()), ((), ())),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_all_transpositions_of_a_product_give_what_they_gave(name: str) -> None:
    left, right, contracted, batches = PRODUCTS[name]
    a, b = numbers(*left), numbers(*right, seed=1)
    dims = (contracted, batches)
    batch = len(batches[0])
    of_left = len(left) - batch - len(contracted[0])
    of_right = len(right) - batch - len(contracted[1])
    exchanged = 0
    for order in itertools.permutations(range(batch + of_left + of_right)):

        def fn(a: jax.Array, b: jax.Array, order: Any = order) -> jax.Array:
            return lax.transpose(lax.dot_general(a, b, dims), order)

        equations, result = equations_of(fn, a, b)
        np.testing.assert_array_equal(result, fn(a, b))
        (product,) = [e for e in equations if e.primitive.name == "dot_general"]
        if product.operands == (1, 0):
            assert product.params["dimension_numbers"] == (contracted[::-1], batches[::-1])
            exchanged += 1
            # What is last is one of the left operand: whoever reads the result reads its rows.
            assert batch <= order[-1] < batch + of_left
    assert bool(exchanged) == (of_left > 0 and of_right > 0)


def test_what_says_something_of_each_operand_is_exchanged_with_them() -> None:
    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        precision = (lax.Precision.HIGHEST, lax.Precision.DEFAULT)
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision=precision).T

    equations, result = equations_of(fn, numbers(3, 4), numbers(4, 5, seed=1))
    (product,) = equations
    assert product.params["precision"] == (lax.Precision.DEFAULT, lax.Precision.HIGHEST)
    np.testing.assert_array_equal(result, fn(numbers(3, 4), numbers(4, 5, seed=1)))


def test_an_algorithm_stays_with_its_operands() -> None:
    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        dims = (((1,), (0,)), ((), ()))
        return lax.dot_general(a, b, dims, precision=lax.DotAlgorithmPreset.F32_F32_F32).T

    assert "transpose" in names_of(fn, numbers(3, 4), numbers(4, 5))


@pytest.mark.parametrize("which", ["returned", "read twice", "read in another shape"])
def test_a_product_that_is_also_read_as_it_is_stays(which: str) -> None:
    def fn(a: jax.Array, b: jax.Array) -> Any:
        product = a @ b
        if which == "returned":
            return product.T, product
        if which == "read twice":
            return product.T, jnp.cos(product)
        return product.T, product.reshape(-1)[:3]

    args = numbers(30, 40), numbers(40, 50, seed=1)
    equations, results = equations_of(fn, *args)
    assert "transpose" in [e.primitive.name for e in equations]
    jax.tree.map(np.testing.assert_array_equal, results, fn(*args))


def test_a_product_with_itself() -> None:
    def fn(a: jax.Array) -> jax.Array:
        return lax.dot_general(a, a, (((0,), (1,)), ((), ()))).T

    a = numbers(6, 6)
    equations, result = equations_of(fn, a)
    assert [e.primitive.name for e in equations] == ["dot_general"]
    np.testing.assert_array_equal(result, fn(a))


def test_of_a_sum_all_products_are_exchanged() -> None:
    def fn(pairs: list[Any]) -> jax.Array:
        return sum((a @ b).T for a, b in pairs[1:])  # type: ignore[return-value]

    pairs = [(numbers(6, 4, seed=k), numbers(4, 5, seed=k + 9)) for k in range(5)]
    equations, result = equations_of(fn, pairs)
    assert "transpose" not in [e.primitive.name for e in equations]
    assert {e.out_avals[0].shape for e in equations} == {(5, 6)}
    np.testing.assert_array_equal(result, fn(pairs))


@pytest.mark.parametrize("which", ["another layout", "not a product", "read twice"])
def test_a_sum_of_others_too_stays(which: str) -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
        product = a @ b
        if which == "another layout":  # that one comes out as it is read
            return (product + lax.dot_general(b, a, (((0,), (1,)), ((), ()))).T).T
        if which == "not a product":
            return (product + jnp.sort(c)).T
        return (product + a @ jnp.sort(b)).T, product

    args = numbers(30, 40), numbers(40, 50, seed=1), numbers(30, 50, seed=2)
    equations, results = equations_of(fn, *args)
    assert "transpose" in [e.primitive.name for e in equations]
    jax.tree.map(np.testing.assert_array_equal, results, fn(*args))


def test_products_of_a_sum_that_would_come_out_otherwise_stay() -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> jax.Array:
        # Exchanged, the first is as it is read, the second is not.
        total = lax.dot_general(a, b, (((1,), (0,)), ((), ())))
        total += lax.dot_general(c, d, (((2,), (0,)), ((), ())))
        return total.transpose(1, 2, 0)

    args = numbers(3, 2), numbers(2, 4, 5, seed=1), numbers(3, 4, 2, seed=2), numbers(2, 5, seed=3)
    equations, result = equations_of(fn, *args)
    assert "transpose" in [e.primitive.name for e in equations]
    np.testing.assert_array_equal(result, fn(*args))


def test_long_sums() -> None:
    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        total = (a @ b).T
        for k in range(1200):  # beyond what Python nests
            total = total + (a @ (b + k)).T
        return total

    traced = coop_jax.trace_program(fn, numbers(2, 3), numbers(3, 4), fusion=True)
    names = {e.primitive.name for op in traced.program.operations for e in op.kernel.equations}
    assert "transpose" not in names


def test_single_operations_stay_as_they_are() -> None:
    budgeted = coop_jax.run(lambda a, b: (a @ b).T, fusion=False)
    budgeted(numbers(30, 40), numbers(40, 50))
    (signature,) = budgeted._signatures.values()
    labels = [op.kernel.label for op in signature.program.operations]
    assert labels == ["dot_general", "transpose"]
