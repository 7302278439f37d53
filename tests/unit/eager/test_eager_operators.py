"""Operators of eager values: what is remembered of them gives what JAX gives."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.eager.trace import operators
from tests.testing.comparison import assert_same_bits

_OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
]

_OPERANDS = {
    "float32": jnp.linspace(0.5, 2, 600).reshape(30, 20),
    "row": jnp.linspace(1, 3, 20),
    "scalar": jnp.float32(1.5),
    "weak": jnp.asarray(1.25),
    "bfloat16": jnp.linspace(0.5, 2, 600, dtype=jnp.bfloat16).reshape(30, 20),
    "int32": jnp.arange(1, 601).reshape(30, 20),
    "bool": jnp.arange(600).reshape(30, 20) % 3 == 0,
    "complex64": jnp.linspace(1, 2, 600).reshape(30, 20) * (1 + 2j),
    "0.9": 0.9,
    "3": 3,
    "-2": -2,
    "True": True,
    "numpy": np.float64(1.1),
    "numpy array": np.linspace(1, 2, 20),
}


def _same(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    assert getattr(found, "weak_type", False) == getattr(wanted, "weak_type", False)
    assert_same_bits(found, wanted)


@pytest.mark.parametrize("second", _OPERANDS)
@pytest.mark.parametrize("first", [k for k, x in _OPERANDS.items() if isinstance(x, jax.Array)])
def test_an_operator_is_what_it_is_of_arrays(first: str, second: str) -> None:
    x, y = _OPERANDS[first], _OPERANDS[second]
    for op in _OPERATORS:
        for a, b in ((x, y), (y, x)):
            try:
                wanted = op(a, b)
            except TypeError as error:
                with pytest.raises(TypeError, match=str(error)[:20]):
                    coop_jax.remat_eager(op)(a, b)
                continue
            numbers = not (isinstance(a, jax.Array) and isinstance(b, jax.Array))

            def f(a: Any, b: Any, op: Any = op, x: Any = x, y: Any = y) -> Any:
                return op(a, b)

            def with_number(
                v: Any, op: Any = op, a: Any = a, b: Any = b, left: bool = isinstance(a, jax.Array)
            ) -> Any:
                return op(v, b) if left else op(a, v)

            for _ in range(3):  # asked of JAX, remembered, remembered
                if numbers:
                    found = coop_jax.remat_eager(with_number)(x)
                else:
                    found = coop_jax.remat_eager(f)(a, b)
                _same(found, wanted)


def test_the_second_time_jax_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = jnp.ones((13, 7)), jnp.full((13, 7), 2.0)

    def f(x: jax.Array, y: jax.Array) -> Any:
        return x * y + 0.5 * x - y / 3 + x**2

    wanted = f(x, y)
    coop_jax.remat_eager(f)(x, y)

    def unexpected(*_: Any) -> Any:
        raise AssertionError("what an operator comes down to was not remembered")

    monkeypatch.setattr(operators, "_remember", unexpected)
    assert_same_bits(coop_jax.remat_eager(f)(x, y), wanted)


def test_each_exponent_is_an_operation_of_its_own() -> None:
    x = jnp.linspace(0.1, 2, 50)

    def f(x: jax.Array) -> list[jax.Array]:
        return [x**n for n in (2, 3, 2, -1, 0, 0.5, 2.0, 3)]

    wanted = f(x)
    for _ in range(2):
        assert_same_bits(coop_jax.remat_eager(f)(x), wanted)


def test_a_number_may_be_another_one_each_time() -> None:
    x = jnp.linspace(0.1, 2, 50)
    scaled = coop_jax.remat_eager(lambda x: [x * n for n in (0.1, 0.2, float("nan"), -0.0, 1e30)])
    wanted = [x * n for n in (0.1, 0.2, float("nan"), -0.0, 1e30)]
    for _ in range(2):
        assert_same_bits(scaled(x), wanted)


def test_an_integer_that_jax_refuses_is_refused_each_time() -> None:
    x = jnp.arange(40)

    def f(x: jax.Array, n: int) -> jax.Array:
        return x * n

    assert_same_bits(coop_jax.remat_eager(lambda x: f(x, 7))(x), x * 7)
    for _ in range(2):
        with pytest.raises(OverflowError):
            x * 10**12
        with pytest.raises(OverflowError):
            coop_jax.remat_eager(lambda x: f(x, 10**12))(x)


def test_configurations_are_remembered_apart() -> None:
    x, y = jnp.ones((5, 6), jnp.float32), jnp.ones((5, 6), jnp.int32)
    both = coop_jax.remat_eager(lambda x, y: x + y)
    both(x, y)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion"):
        both(x, y)
    assert both(x, y).dtype == jnp.float32

    def inside(x: jax.Array, y: jax.Array) -> jax.Array:
        with jax.numpy_dtype_promotion("strict"):
            return x + y

    with pytest.raises(Exception, match="promotion"):
        coop_jax.remat_eager(inside)(x, y)


def test_under_grad_operators_are_jaxs() -> None:
    x = jnp.linspace(0.1, 2, 50)

    def loss(x: jax.Array) -> jax.Array:
        return (x * x + 2.0 * x - x / 3).sum()

    for _ in range(2):
        assert_same_bits(coop_jax.remat_eager(jax.grad(loss))(x), jax.grad(loss)(x))


def test_an_error_while_jax_is_asked_leaves_nothing_behind() -> None:
    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        try:
            x + y[:3]
        except TypeError:
            pass
        else:
            raise AssertionError
        return x + y

    x = jnp.ones((8, 4))
    for _ in range(2):
        assert_same_bits(coop_jax.remat_eager(f)(x, x * 2), x * 3)
