"""Training under a budget gives the bits that training without one gives, within the budget."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

import coop_jax
from tests.testing import models
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits, bits_of

pytestmark = pytest.mark.unless_forced(
    "whole models: recomputation is quadratic in the length of a program"
)

STEPS = 3
POLICIES: dict[str, str | coop_jax.Policy] = {
    "coop": "coop",
    "dtr": "dtr",
    "dte": "dte",
    "coop, no window": coop_jax.Policy("coop", sliding_window=False),
    "coop, no partitioning": coop_jax.Policy("coop", cheap_partitioning=False),
    "coop, no in-place": coop_jax.Policy("coop", in_place=False),
    "coop, exact neighbourhood": coop_jax.Policy("coop", neighborhood="exact"),
}
FRACTIONS = (1.0, 0.75, 0.5, 0.4)
PROGRAMS = {
    "cnn": models.cnn,
    "mlp": models.mlp,
    "gpt": models.gpt,
    "data_dependent": models.data_dependent,
}
NAMED, SWITCHED = list(POLICIES)[:3], list(POLICIES)[3:]
# Every named policy at every fraction; every switch at half.
CASES = [(p, f) for p in NAMED for f in FRACTIONS] + [(p, 0.5) for p in SWITCHED]
POLICIES["lookahead"] = "lookahead"  # it is for `run`, where the program is known
AHEAD = [("lookahead", f) for f in FRACTIONS]


@dataclasses.dataclass(frozen=True)
class Outcome:
    state: Any
    losses: Any
    stats: coop_jax.Stats


def train(
    front_end: str, program: models.TrainingProgram, budget: int | None, policy: Any = "coop"
) -> Outcome:
    if front_end == "run":
        step: Any = coop_jax.run(program.step, budget=budget, policy=policy, donate_argnums=0)
    else:
        step = coop_jax.remat_eager(program.step, budget=budget, policy=policy)
    state, losses = program.init, []
    for number in range(STEPS):
        state, loss = step(state, program.batch(number))
        losses.append(loss)
    return Outcome(state, losses, step.runtime.stats())


@functools.cache
def unbudgeted(front_end: str, name: str) -> Outcome:
    outcome = train(front_end, PROGRAMS[name](), None)
    assert outcome.stats.evictions == 0
    assert outcome.stats.rematerialisations == 0
    return outcome


def check(front_end: str, name: str, policy: str, fraction: float) -> None:
    reference = unbudgeted(front_end, name)
    peak_bytes = reference.stats.peak_bytes
    outcome = None

    def attempt(budget_bytes: int) -> None:
        nonlocal outcome
        outcome = train(front_end, PROGRAMS[name](), budget_bytes, POLICIES[policy])

    budget_bytes = smallest_feasible(attempt, int(fraction * peak_bytes), peak_bytes)
    assert outcome is not None
    assert_same_bits((outcome.state, outcome.losses), (reference.state, reference.losses))
    assert outcome.stats.peak_bytes <= budget_bytes == outcome.stats.budget_bytes
    assert outcome.stats.operations == reference.stats.operations
    # A minimum budget above the wanted one must not make the test empty.
    assert budget_bytes <= max(fraction, 0.9) * peak_bytes or fraction == 1.0
    if fraction <= 0.5:
        assert outcome.stats.evictions > 0
        assert outcome.stats.rematerialisations > 0


@pytest.mark.parametrize(
    ("policy", "fraction"),
    [
        pytest.param(p, f, marks=pytest.mark.slow if p in ("dtr", "dte") or ", no" in p else ())
        for p, f in [*CASES, *AHEAD]
    ],
)
@pytest.mark.parametrize("name", ["cnn", "mlp", "gpt"])
def test_run_trains_to_the_same_bits(name: str, policy: str, fraction: float) -> None:
    check("run", name, policy, fraction)


@pytest.mark.parametrize(("policy", "fraction"), CASES)
def test_a_net_whose_depth_depends_on_the_data_trains_to_the_same_bits(
    policy: str, fraction: float
) -> None:
    check("eager", "data_dependent", policy, fraction)


@pytest.mark.parametrize("policy", NAMED)
@pytest.mark.parametrize("name", ["cnn", "mlp", "gpt"])
def test_remat_eager_trains_to_the_same_bits_at_half(name: str, policy: str) -> None:
    check("eager", name, policy, 0.5)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_unbudgeted_training_agrees_with_plain_jax(name: str) -> None:
    program = PROGRAMS[name]()
    state, losses = program.init, []
    for number in range(STEPS):
        state, loss = program.step(state, program.batch(number))
        losses.append(loss)
    front_ends = ["eager"] if name == "data_dependent" else ["run", "eager"]
    for front_end in front_ends:
        found = unbudgeted(front_end, name)
        # Other groupings round otherwise, and Adam divides by small numbers: loosely.
        np.testing.assert_allclose(np.asarray(found.losses), np.asarray(losses), rtol=1e-3)
        pairs = zip(jax.tree.leaves(found.state), jax.tree.leaves(state), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=0.02, atol=2e-3)


def test_the_depth_of_the_data_dependent_net_varies() -> None:
    program = models.data_dependent()
    depths = {models.data_dependent_depth(program.init, program.batch(n)) for n in range(STEPS)}
    assert len(depths) == STEPS
    assert max(depths) - min(depths) >= 3


def test_plans_are_the_same_from_run_to_run() -> None:
    program = models.mlp()
    half = unbudgeted("run", "mlp").stats.peak_bytes // 2
    first, second = (train("run", program, half) for _ in range(2))
    assert bits_of(first.state) == bits_of(second.state)
    for field in ("operations", "evictions", "rematerialisations", "peak_bytes", "fragmentation"):
        assert getattr(first.stats, field) == getattr(second.stats, field)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_fraction_is_of_the_unbudgeted_peak(name: str) -> None:
    program = PROGRAMS[name]()
    reference = unbudgeted("run", name)
    step = coop_jax.run(program.step, budget=1.0, donate_argnums=0)
    state, _ = step(program.init, program.batch(0))
    budget_bytes = step.runtime.budget_bytes
    assert budget_bytes is not None
    assert abs(budget_bytes - reference.stats.peak_bytes) <= 0.02 * reference.stats.peak_bytes
    assert step.runtime.stats().peak_bytes <= budget_bytes
    del state
