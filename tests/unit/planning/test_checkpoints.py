"""Plans around checkpoints: what is not kept is made again, bit by bit what it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import coop_jax
from coop_jax._src.planning import constants, portfolio
from tests.testing import models
from tests.testing.comparison import assert_same_bits

STEPS = 3


class NoPlan:
    """A plan that found no room."""

    feasible = False

    def __init__(self, plan: Any):
        self.stats = plan.stats
        self.failed_operation = 0
        self.tried_recomputations = 0


def train(program: models.TrainingProgram, budget: int | None, *, fusion: bool) -> tuple[Any, Any]:
    step = coop_jax.run(program.step, budget=budget, donate_argnums=0, fusion=fusion)
    state, losses = program.init, []
    for number in range(STEPS):
        state, loss = step(state, program.batch(number))
        losses.append(loss)
    return (state, losses), step.runtime.stats()


@pytest.mark.parametrize(
    ("name", "fusion", "is_long"),
    [
        ("mlp", False, False),
        ("cnn", False, False),
        ("cnn", True, False),
        ("gpt", False, False),
        ("gpt", True, False),
        ("mlp", False, True),
        ("gpt", False, True),
        ("cnn", False, True),
    ],
)
@pytest.mark.unless_forced("what is checked are plans that evict for themselves")
def test_steps_around_checkpoints_give_the_same_bits(
    name: str, fusion: bool, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = {"mlp": models.mlp, "cnn": models.cnn, "gpt": models.gpt}[name]()
    expected, plain = train(program, None, fusion=fusion)
    make, carried = portfolio._core.make_plan, []
    if is_long:  # then it is divided at narrow places only
        tuned = dataclasses.replace(constants.TUNED, large_operations=0)
        monkeypatch.setattr(constants, "TUNED", tuned)

    def only_around_checkpoints(engine_program: Any, **options: Any) -> Any:
        plan = make(engine_program, **options)
        if not plan.feasible or plan.stats.recomputations == 0:
            return plan
        if not options["checkpoints"]:
            return NoPlan(plan)
        carried.append(plan.stats.recomputations)
        return plan

    monkeypatch.setattr(portfolio._core, "make_plan", only_around_checkpoints)
    recomputed = 0
    for share in (0.8, 0.6, 0.5):
        budget = int(share * plain.peak_bytes)
        try:
            found, stats = train(program, budget, fusion=fusion)
        except coop_jax.BudgetExceededError:
            continue  # checkpoints alone need not do
        assert_same_bits(found, expected)
        assert stats.peak_bytes <= budget
        recomputed += stats.rematerialisations
    assert carried
    assert recomputed > 0
