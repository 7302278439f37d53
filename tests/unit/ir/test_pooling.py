"""The gradient of max pooling: JAX's bits, at a fraction of the workspace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax
from coop_jax._src.ir import max_pool_gradient
from tests.testing.comparison import assert_same_bits

WINDOWS = {
    "tiles": ((1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "overlapping": ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "everywhere": ((1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    "gaps": ((1, 2, 2, 1), (1, 3, 3, 1), "VALID"),
    "uneven": ((2, 3, 1, 2), (1, 2, 4, 1), ((1, 0), (2, 1), (0, 3), (0, 1))),
}
SHAPE = (3, 9, 9, 4)


def selected(dtype: Any, kind: str, counts: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """An operand to select from, and what to add, with what is hard to get right."""
    random = np.random.default_rng(0)
    if kind == "ties":
        return (
            jnp.asarray(random.integers(-1, 2, SHAPE), dtype),
            jnp.asarray(random.standard_normal(counts), dtype),
        )
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1.0, -1.0]
    return jnp.asarray(random.choice(odd, SHAPE), dtype), jnp.asarray(
        random.choice(odd, counts), dtype
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("kind", ["ties", "odd"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("least", [False, True])
def test_the_bits_are_those_of_jax(dtype: Any, kind: str, name: str, least: bool) -> None:
    window, strides, padding = WINDOWS[name]
    pads = (
        tuple(lax.padtype_to_pads(SHAPE, window, strides, padding))
        if isinstance(padding, str)
        else padding
    )
    (eqn,) = (
        e
        for e in jax.make_jaxpr(
            jax.grad(lambda x: pooled(x, window, strides, pads, least).astype(jnp.float32).sum())
        )(jnp.zeros(SHAPE, dtype)).eqns
        if e.primitive.name == "select_and_scatter_add"
    )
    operand, source = selected(dtype, kind, eqn.invars[0].aval.shape)
    assert max_pool_gradient.is_known(eqn.primitive, eqn.params, [source, operand])
    expected = jax.jit(lambda s, x: eqn.primitive.bind(s, x, **eqn.params))(source, operand)
    found = jax.jit(lambda s, x: max_pool_gradient.select_and_scatter_add(s, x, **eqn.params))
    result = found(source, operand)
    if name == "everywhere":  # which of several NaNs a sum is depends on the machine code
        result, expected = (jnp.where(jnp.isnan(x), jnp.nan, x) for x in (result, expected))
    assert_same_bits(result, expected)


def pooled(x: jax.Array, window: Any, strides: Any, pads: Any, least: bool = False) -> jax.Array:
    if least:
        return lax.reduce_window(x, np.array(np.inf, x.dtype), lax.min, window, strides, pads)
    return lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, window, strides, pads)


@pytest.mark.parametrize("x64", [False, True])
def test_a_gradient_takes_a_fraction_of_the_workspace(x64: bool) -> None:
    with jax.enable_x64(x64):
        x = jax.random.normal(
            jax.random.key(0), (8, 32, 32, 8), jnp.float64 if x64 else jnp.float32
        )

        def gradient(x: jax.Array) -> jax.Array:
            window, strides, padding = WINDOWS["tiles"]
            return jax.grad(lambda x: pooled(x, window, strides, padding).sum())(x)

        found = coop_jax.run(gradient, fusion=False)
        assert_same_bits(found(x), jax.jit(gradient)(x))
        needed = jax.jit(gradient).lower(x).compile().memory_analysis().temp_size_in_bytes
    assert needed > 2 * x.nbytes, "XLA got better: look whether this is still needed"
    assert found.runtime.stats().workspace_bytes < x.nbytes / 4


def test_what_is_not_known_is_left_to_jax() -> None:
    x = jnp.arange(8 * 36.0).reshape(8, 6, 6)

    def gradient(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: pooled(x, (1, 6, 6), (1, 6, 6), "VALID").sum())(x)

    assert_same_bits(coop_jax.run(gradient)(x), jax.jit(gradient)(x))
