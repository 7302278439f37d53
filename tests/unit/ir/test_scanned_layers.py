"""A scan over layers costs what the same layers cost unrolled, in memory and in time.

Seconds are those of the cost model and peaks those of the plan, both the same on every machine.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.ir import constants
from tests.benchmarks import scanned_layers
from tests.testing.comparison import assert_same_bits

SIZES = scanned_layers.Sizes(layers=24)
TOLERANCE = 1.10


@pytest.mark.unless_forced("asserts peaks or counts, which evictions change")
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


def test_small_stacks_are_updated_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias of each layer would be an operation for each layer, moment and parameter."""
    layers, width = 6, 384

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ p["weights"] + p["bias"]), None

        return (jax.lax.scan(layer, x, parameters)[0] ** 2).mean()

    def step(state: Any, x: jax.Array) -> Any:
        parameters, momentum = state
        value, g = jax.value_and_grad(loss)(parameters, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momentum, g)
        return (jax.tree.map(lambda p, m: p - 0.1 * m, parameters, momentum), momentum), value

    rng = np.random.default_rng(0)
    weights = rng.standard_normal((layers, width, width), np.float32) / np.sqrt(width)
    zeros = {"weights": np.zeros_like(weights), "bias": np.zeros((layers, width), np.float32)}
    x = rng.standard_normal((8, width), np.float32)

    def trained(budget: float | None = None) -> tuple[Any, list[Any], int]:
        budgeted = coop_jax.run(step, budget, donate_argnums=0, fusion=True)
        state: Any = jax.tree.map(jnp.array, (zeros | {"weights": weights}, zeros))
        for _ in range(3):
            state, _ = budgeted(state, x)
        (signature,) = budgeted._signatures.values()
        program = signature.program
        # Of each result of the shape of the biases, whether it is written over something.
        over = [
            in_place >= 0
            for op in program.operations
            for value, in_place in zip(op.results, op.in_place, strict=True)
            if program.values[value].aval.shape == (layers, width)
        ]
        return state, over, budgeted.runtime.stats().peak_bytes

    found, over, peak_bytes = trained()
    assert over.count(True) == 2
    assert len(over) <= 3  # and the gradient, if it is not made within the update
    again, _, less_bytes = trained(0.9)
    assert_same_bits(again, found)
    assert less_bytes <= peak_bytes
    tuned = dataclasses.replace(constants.TUNED, small_stack_fraction=0)
    monkeypatch.setattr(constants, "TUNED", tuned)
    expected, over, unstacked_bytes = trained()
    assert len(over) > layers
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)
    assert peak_bytes <= 1.01 * unstacked_bytes


@pytest.mark.parametrize("donated", [True, False])
def test_scanned_parameters_keep_their_address_where_they_are_donated(donated: bool) -> None:
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
