"""What every library must pass: a few train steps at half memory, bit for bit as without a budget.

`check_training` trains with plain `jax.jit` (close), without a budget, and at half of the peak of
that or the least feasible above it (equal bits, something rematerialised, within the budget).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import coop_jax
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits, bits_of

Step = Callable[[Any, Any], tuple[Any, Any]]
FRONT_ENDS = ["run", "remat_eager"]
both_front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)


def to_numpy(tree: Any) -> Any:
    """The tree with NumPy arrays of its own memory for arrays; keys stay arrays."""

    def one(x: Any) -> Any:
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        return np.array(x) if isinstance(x, (jax.Array, np.ndarray)) else x

    return jax.tree.map(one, tree)


def make(front_end: str, step: Step, budget: int | None, *, donate: bool) -> Any:
    if front_end == "run":
        return coop_jax.run(step, budget=budget, donate_argnums=0 if donate else ())
    return coop_jax.remat_eager(step, budget=budget)


def train(step: Any, init: Any, batches: Sequence[Any]) -> tuple[Any, list[Any]]:
    # Keys are arrays of the device, which a step that is donated them deletes.
    state, outputs = jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, init), []
    for batch in batches:
        state, out = step(state, batch)
        outputs.append(to_numpy(out))
    return to_numpy(state), outputs


def check_training(
    front_end: str,
    step: Step,
    init: Any,
    batches: Sequence[Any],
    *,
    donate: bool = True,
    plain: Callable[[Step], Step] = jax.jit,
    tolerance: float = 2e-3,
) -> tuple[Any, list[Any]]:
    """Trains in every way and compares; returns the last state and what each step gave besides."""
    init = to_numpy(init)
    unbudgeted = make(front_end, step, None, donate=donate)
    expected = train(unbudgeted, init, batches)
    usual = train(plain(step), init, batches)
    assert jax.tree.structure(expected) == jax.tree.structure(usual)
    for a, b in zip(bits_of(expected[1]), bits_of(usual[1]), strict=True):
        assert a[:2] == b[:2]
    for x, y in zip(jax.tree.leaves(expected[1]), jax.tree.leaves(usual[1]), strict=True):
        if np.asarray(x).dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
    peak_bytes = unbudgeted.runtime.stats().peak_bytes
    found: list[Any] = []

    def attempt(budget_bytes: int) -> None:
        budgeted = make(front_end, step, budget_bytes, donate=donate)
        found[:] = [budgeted, train(budgeted, init, batches)]

    budget_bytes = smallest_feasible(attempt, peak_bytes // 2, peak_bytes)
    assert budget_bytes < 0.9 * peak_bytes
    budgeted, result = found
    assert_same_bits(result, expected)
    stats = budgeted.runtime.stats()
    assert stats.rematerialisations > 0
    assert stats.peak_bytes <= budget_bytes
    return result
