"""Real runs beside simulated ones: decisions are the same, and the file has numbers."""

from __future__ import annotations

import csv
import itertools
import math
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import coop_jax
from coop_jax._src.run import planned_call
from examples.paper import real
from examples.paper.networks import NETWORKS


@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte"])
def test_a_real_step_takes_the_actions_that_were_simulated(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NETWORKS["bert"]
    step = network.make_step("small")
    free = coop_jax.run(step.fn, budget=None, donate_argnums=step.donate_argnums, fusion=False)
    state: Any = jax.tree.map(np.array, network.init("small"))
    batch = network.setting("small").task.sample(0)
    free(state, batch)
    workspaces = free.workspaces(*step.arguments)
    budget_bytes = int(0.5 * free.runtime.stats().peak_bytes)
    program = coop_jax.trace_program(
        step.fn, *step.arguments, donate_argnums=step.donate_argnums, fusion=False
    )
    simulation = coop_jax.simulate(
        program, budget=budget_bytes, policy=policy, workspace=workspaces
    )
    assert simulation.rematerialisations > 50

    plans: list[Any] = []

    def compile_plan(plan: Any, *args: Any, **kwargs: Any) -> Any:
        plans.append(plan)
        return make(plan, *args, **kwargs)

    make = planned_call.compile_plan
    monkeypatch.setattr(planned_call, "compile_plan", compile_plan)
    budgeted = coop_jax.run(
        step.fn,
        budget=budget_bytes,
        policy=policy,
        donate_argnums=step.donate_argnums,
        fusion=False,
    )
    budgeted(state, batch)
    assert plans[-1].actions == simulation.actions


@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
@pytest.mark.parametrize(
    "network",
    ["bert", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt3", "resnet50", "unet"))],
)
def test_later_steps_of_a_training_do_what_was_simulated(network: str) -> None:
    """Parameters and optimizer state stay where the first step put them."""
    step = NETWORKS[network].make_step("small")
    training = real.Training(NETWORKS[network], step, None, "coop")
    workspace = training.step.workspaces(*step.arguments)
    program = coop_jax.trace_program(step.fn, *step.arguments, donate_argnums=0, fusion=False)
    simulation = coop_jax.simulate(program, budget=0.7, policy="coop", workspace=workspace)
    budgeted = real.Training(NETWORKS[network], step, simulation.budget_bytes, "coop")
    contender = real.Contender(budgeted, training, simulation)
    for _ in range(2):
        contender.advance()
    assert contender.same_decisions
    assert simulation.rematerialisations > 0


@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
def test_the_file_has_a_line_for_each_budget_that_suffices(tmp_path: pathlib.Path) -> None:
    rows = real.measure(tmp_path / "new", ["bert"], ratios=(0.7, 0.05), rounds=2)
    assert [(row.policy, row.ratio) for row in rows] == [(p, 0.7) for p in ("coop", "dtr", "dte")]
    with (tmp_path / "new" / "real.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["policy"] for line in lines] == [row.policy for row in rows]
    assert len({line["budget_bytes"] for line in lines}) == 1
    for line, column in itertools.product(lines, ("simulated", "measured")):
        assert 0 < float(line[f"{column}_overhead"]) < 10
    for line in lines:
        assert math.isfinite(float(line["wall_overhead"]))
        assert int(line["evictions"]) > 0
        assert line["same_decisions"] == "True"
