"""A scan over layers costs what the same layers cost unrolled, in memory and in time.

Seconds are those of the cost model and peaks those of the plan, both the same on every machine.
"""

from __future__ import annotations

import jax
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
