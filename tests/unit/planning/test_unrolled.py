"""A plan as a program: the same bits, in segments that hold recomputations too."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.execution.stats import CallCounts
from coop_jax._src.ir import cost_model
from coop_jax._src.planning import planner as planning
from coop_jax._src.planning import policies
from coop_jax._src.planning.rematerialized import room_before, unrolled
from coop_jax._src.run import constants, segment_candidates, tiering
from coop_jax._src.simulate.simulator import Simulator
from coop_jax._src.util.incremental_work import GradualWork
from tests.testing import models
from tests.testing.comparison import assert_same_bits
from tests.testing.segmented import launches, signature_of, trained

NAMES = ["cnn", "mlp", "gpt"]


def simulator_of(name: str, policy: str) -> Simulator:
    program = getattr(models, name)()
    step, state, batch = program.step, program.init, program.batch(0)
    traced = coop_jax.trace_program(step, state, batch, donate_argnums=0, fusion=True)
    return Simulator(traced, policy, None, None, None)


@pytest.mark.parametrize("policy", ["coop", "lookahead"])
@pytest.mark.parametrize("name", NAMES)
def test_it_does_what_the_plan_does(name: str, policy: str) -> None:
    simulator = simulator_of(name, policy)
    budget = int(0.5 * simulator.unbudgeted_peak_bytes)
    plan = simulator.plan(budget)
    assert plan.feasible
    found = unrolled(simulator.program, plan)
    operations = simulator.program.operations
    assert [op.kernel for op in found.program.operations] == [
        operations[number].kernel for number in plan.execution_order
    ]
    assert found.recomputations == plan.stats.recomputations > 0
    once = CallCounts.of(plan.stats, peak_bytes=8, external_bytes=1, workspace_bytes=2)
    twice = once.with_unrolled(recomputations=found.recomputations, evictions=found.evictions)
    assert twice == dataclasses.replace(
        once,
        rematerialisations=2 * plan.stats.recomputations,
        evictions=2 * plan.stats.evictions,
    )
    share = plan.stats.recompute_seconds / (
        plan.stats.recompute_seconds + plan.stats.compute_seconds
    )
    assert found.recompute_share == pytest.approx(share)


@pytest.mark.parametrize("name", NAMES)
def test_what_lives_in_it_is_what_the_plan_holds(name: str) -> None:
    simulator = simulator_of(name, "coop")
    budget = int(0.5 * simulator.unbudgeted_peak_bytes)
    found = unrolled(simulator.program, simulator.plan(budget)).program
    assert min(room_before(found, budget)) >= 0
    whole = room_before(simulator.program, budget)
    assert min(whole) < 0  # without the plan it does not fit
    # And nothing has to go where the pool has no gaps, or some room for them.
    residency = planning.first_residency(found)
    plan = planning.make_plan(
        found,
        planning.core_program(found, residency.donated),
        residency,
        simulator.settings,
        capacity_bytes=int(1.25 * budget),
        workspace_bytes=0,
    )
    assert plan.feasible
    assert plan.stats.recomputations <= 0.05 * len(found.operations)


def test_where_launches_cost_nothing_small_operations_run_again_instead_of_a_product() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        small = x
        for _ in range(4):
            small = small * 1.01
        product = x @ w
        last = jnp.tanh(small) + jnp.tanh(product)
        for _ in range(3):
            last = jnp.tanh(last @ w)  # both wait meanwhile
        return last * small * product

    shape = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    program = coop_jax.trace_program(fn, shape, shape, fusion=False).program
    policy = policies.resolve_policy("lookahead")
    settings = planning.PlanSettings(policy, 64, cost_model.CPU)
    residency = planning.first_residency(program)
    engine_program = planning.core_program(program, residency.donated)
    needed = [0] * len(program.operations)
    budget = planning.unbudgeted_peak(program, engine_program, settings, 0) - shape.size * 4
    planner = planning.WorkspacePlanner(program, lambda _: engine_program, residency, budget, 0)
    together = planning.plan_without_launches(
        program, residency, settings, needed, capacity_bytes=budget, kept_bytes=0
    )
    each = planning.work_seconds(program, cost_model.CPU)
    alone, _ = planner.plan(settings, needed)

    def products(plan: _core.Plan) -> int:
        kernels = (program.operations[n].kernel for n in plan.execution_order)
        return sum(kernel.label == "dot_general" for kernel in kernels)

    assert products(alone) == 5
    assert products(together) == 4
    assert len(together.execution_order) > len(alone.execution_order)
    assert sum(each[n] for n in together.execution_order) < sum(
        each[n] for n in alone.execution_order
    )

    # What is written as segments is the one that takes less, whichever is known.
    runtime = SimpleNamespace(settings=settings, workspace_bytes=0, capacity_bytes=lambda: budget)
    signature = SimpleNamespace(program=program, workspaces=needed)
    for known in (alone, together):
        work: GradualWork[Any] = GradualWork(
            segment_candidates._plan_of_segments(
                cast(Any, runtime),
                cast(Any, signature),
                residency,
                cast(Any, SimpleNamespace(plan=known)),
            )
        )
        work.finish()
        assert work.result.execution_order == together.execution_order


@pytest.mark.unless_forced("no plan is written down as segments then")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="segments are for XLA's CPU compiler")
@pytest.mark.usefixtures("by_estimates")
@pytest.mark.parametrize(
    ("name", "budget"),
    [("cnn", 0.6), ("mlp", 0.75), pytest.param("gpt", 0.6, marks=pytest.mark.slow)],
)
def test_training_in_segments_of_a_plan_gives_the_same_bits(
    name: str, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = getattr(models, name)()
    expected, _ = trained(program, 8)
    forms_of = tiering.forms_of

    def of_the_plan(*args: Any) -> Any:
        found = yield from forms_of(*args)
        return [form for form in found if form.unrolled]

    monkeypatch.setattr(tiering, "forms_of", of_the_plan)
    whatever_it_costs = dataclasses.replace(constants.TUNED, worthwhile_factor=1e9)
    monkeypatch.setattr(constants, "TUNED", whatever_it_costs)
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "1")
    got, step = trained(program, 8, budget=budget)
    form = signature_of(step).tier.segmented
    assert form is not None
    assert form.unrolled is not None
    now, _ = launches(step)
    assert now < len(form.unrolled.program.operations)
    assert_same_bits(got, expected)
    stats = step.runtime.stats()
    assert stats.peak_bytes <= stats.budget_bytes
    assert 0 < stats.overhead < 2
    # The first calls run each operation by itself, by a plan that may compute other values again.
    step(got[0], program.batch(8))
    again = step.runtime.stats().rematerialisations - stats.rematerialisations
    assert again >= form.unrolled.recomputations > 0
