"""Measured costs: what is kept of many samples."""

from __future__ import annotations

import dataclasses

import pytest

from coop_jax import MeasuredCosts


@dataclasses.dataclass(frozen=True)
class Operation:
    """Stands for a compiled operation: all that is looked at is its key."""

    key: str


@pytest.mark.parametrize("count", [1, 2, 100, 128, 129, 5000])
def test_samples_of_all_recorded_steps_count_alike(count: int) -> None:
    costs, ramp = MeasuredCosts(), Operation("ramp:1")
    for k in range(count):
        costs.add(ramp, float(k + 1))
    assert costs.seconds_of(ramp) == pytest.approx((count + 1) / 2, rel=0.02)
    kept = costs._samples["ramp:1"]
    assert min(count, 64) <= len(kept) <= 128
    assert kept == sorted(kept)


def test_an_outlier_does_not_move_the_cost() -> None:
    costs, steady = MeasuredCosts(), Operation("steady:1")
    for seconds in (1e-3, 1e-3, 5.0, 1e-3, 1.1e-3):
        costs.add(steady, seconds)
    assert costs.seconds_of(steady) == 1e-3
