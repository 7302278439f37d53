"""A scan over layers costs what the same layers cost unrolled, in memory and in time.

Seconds are those of the cost model and peaks those of the plan, both the same on every machine.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import scanned_layers
from conftest import assert_same_bits

SIZES = scanned_layers.Sizes(layers=24)
TOLERANCE = 1.10


def test_a_scan_over_24_layers_costs_what_they_cost_unrolled() -> None:
    forms = scanned_layers.steps(SIZES)
    expected, unrolled = scanned_layers.measure(forms["unrolled"], None)
    whole, scanned = scanned_layers.measure(forms["scanned"], None)
    assert scanned["peak_bytes"] <= TOLERANCE * unrolled["peak_bytes"]
    assert scanned["compute_seconds"] <= TOLERANCE * unrolled["compute_seconds"]
    # No slice of a parameter is copied: that would be five operations a layer and pass.
    assert scanned["operations"] <= unrolled["operations"] + SIZES.layers
    layers, loss = expected
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *layers)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole[0], stacked)
    np.testing.assert_allclose(whole[1], loss, rtol=1e-5)

    budget = int(0.4 * unrolled["peak_bytes"])
    again, unrolled = scanned_layers.measure(forms["unrolled"], budget)
    assert_same_bits(again, expected)
    again, scanned = scanned_layers.measure(forms["scanned"], budget)
    assert_same_bits(again, whole)
    assert scanned["rematerialisations"] > 0
    assert scanned["peak_bytes"] <= min(budget, TOLERANCE * unrolled["peak_bytes"])
    assert scanned["total_seconds"] <= TOLERANCE * unrolled["total_seconds"]
    assert scanned["overhead"] <= unrolled["overhead"] + TOLERANCE - 1


@pytest.mark.parametrize("donated", [True, False])
def test_scanned_parameters_keep_their_address_where_they_are_donated(donated: bool) -> None:
    import coop_jax

    step, parameters, x = scanned_layers.steps(scanned_layers.Sizes(layers=4))["scanned"]
    budgeted = coop_jax.run(step, donate_argnums=0 if donated else ())
    state, _ = budgeted(parameters, x)
    before = [w.unsafe_buffer_pointer() for w in jax.tree.leaves(state)]
    after, _ = budgeted(state, x)
    same = [
        a.unsafe_buffer_pointer() == b for a, b in zip(jax.tree.leaves(after), before, strict=True)
    ]
    assert all(same) if donated else not any(same)


def test_moments_of_small_stacked_parameters_keep_their_places() -> None:
    """What scales a moment runs with what squares all layers' gradients, in one operation."""
    import coop_jax

    def loss(biases: jax.Array, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, bias: (jnp.tanh(x + bias), None), x, biases)
        return (x * x).sum()

    def step(state: Any, x: jax.Array) -> Any:
        biases, mu, nu = state
        value, g = jax.value_and_grad(loss)(biases, x)
        mu, nu = 0.1 * g + 0.9 * mu, 0.01 * g**2 + 0.99 * nu
        return (biases - 0.1 * mu / (jnp.sqrt(nu) + 1e-3), mu, nu), value

    # With the moments in new places each step finds another pool, and has to be planned.
    budgeted = coop_jax.run(step, donate_argnums=0, fusion=True)
    state: Any = tuple(jnp.zeros((6, 96)) for _ in range(3))
    budgeted(state, jnp.arange(256 * 96, dtype=jnp.float32).reshape(256, 96) / 25000)
    (signature,) = budgeted._signatures.values()
    made = [
        in_place
        for op in signature.program.operations
        for value, in_place in zip(op.results, op.in_place, strict=True)
        if signature.program.values[value].aval.shape == (6, 96)
    ]
    assert len(made) == 3 + 2 * 6
    assert -1 not in made
