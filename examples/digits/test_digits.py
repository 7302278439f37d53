"""The digits example: steps at half of the memory equal those without a budget, bit by bit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import coop_jax
from examples.digits import train as digits


def few_steps(step: Any, steps: int = 3, batch: int = 64) -> tuple[Any, coop_jax.Stats]:
    """Parameters (NumPy) and statistics after a few steps of training."""
    data = digits.load_digits(seed=0)
    params, opt_state = digits.create_state(0)
    todo = digits.batches_of(data.train_images, data.train_labels, batch, seed=0)
    for images, labels in todo[:steps]:
        params, opt_state, _ = step(params, opt_state, images, labels)
    return jax.tree.map(np.array, params), step.runtime.stats()


@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
@pytest.mark.parametrize(
    "settings", [{}, {"eager": True}, {"fusion": True}], ids=["run", "eager", "fused"]
)
def test_little_memory_gives_the_same_bits(settings: dict[str, bool]) -> None:
    wanted, free = few_steps(digits.budgeted(None, **settings))
    # Who does not know what comes needs more at least.
    budget_bytes = int(free.peak_bytes * (0.6 if settings.get("eager") else 0.5))
    params, stats = few_steps(digits.budgeted(budget_bytes, **settings))
    assert digits.same_bits(params, wanted)
    assert stats.peak_bytes <= budget_bytes
    assert stats.evictions > 0
    assert free.evictions == 0


def test_the_data_is_split_into_distinct_images_of_both_kinds() -> None:
    data = digits.load_digits(seed=0)
    assert data.train_images.shape == (1437, 16, 16, 1)
    assert data.test_images.shape == (360, 16, 16, 1)
    assert set(data.test_labels) == set(data.train_labels) == set(range(10))
    again = digits.load_digits(seed=1)
    assert not np.array_equal(data.test_labels, again.test_labels)


@pytest.mark.parametrize(
    ("text", "budget"),
    [("none", None), ("0.5", 0.5), ("1.0", 1.0), ("4096", 4096), ("48MiB", "48MiB")],
)
def test_the_budget_flag_is_read_as_run_takes_it(text: str, budget: Any) -> None:
    parsed = digits.parse_budget(text)
    assert parsed == budget
    assert type(parsed) is type(budget)


def test_same_bits_tells_zeros_of_different_sign_apart() -> None:
    zero = {"w": np.zeros(2, np.float32)}
    assert digits.same_bits(zero, {"w": np.zeros(2, np.float32)})
    assert not digits.same_bits(zero, {"w": -np.zeros(2, np.float32)})
