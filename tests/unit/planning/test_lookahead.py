"""`policy="lookahead"`: plans that know what is read when; never worse than Coop, nor than what
DTE and DTR plan by themselves (without the variants that `run` tries beside them).
"""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.planning import policies, portfolio
from coop_jax._src.simulate import simulator as simulators
from tests.testing import models, optima
from tests.testing.comparison import bits_of

PROFILE = "a100-80gb-fp32"
RATIOS = (0.9, 0.7, 0.5, 0.4, 0.3, 0.2)
pytestmark = [
    pytest.mark.no_recomputation("nothing runs, or what is compared are plans"),
    pytest.mark.usefixtures("full_search"),
]


@functools.cache
def program(name: str, *, fusion: bool = False) -> coop_jax.TracedProgram:
    training = {"cnn": models.cnn, "mlp": models.mlp, "gpt": models.gpt}[name]()
    arguments = training.init, training.batch(0)
    return coop_jax.trace_program(training.step, *arguments, donate_argnums=0, fusion=fusion)


@functools.cache
def simulated(name: str, policy: str) -> list[coop_jax.Simulation]:
    traced = program(name)
    peak = coop_jax.simulate(traced, device_profile=PROFILE).unbudgeted_peak_bytes
    return coop_jax.sweep(
        traced,
        budget=[int(ratio * peak) for ratio in RATIOS],
        policy=policy_of(100_000) if policy == "lookahead" else policy,
        device_profile=PROFILE,
        alternatives=policy in ("lookahead", "coop"),
        progress=False,
    )


@pytest.mark.parametrize("name", ["cnn", "mlp", "gpt"])
def test_it_is_never_worse_than_a_policy_that_guesses(name: str) -> None:
    evicted = 0
    for rival in ("coop", "dte", "dtr"):
        for ahead, other in zip(simulated(name, "lookahead"), simulated(name, rival), strict=True):
            evicted += other.evictions
            assert ahead.feasible or not other.feasible
            if other.feasible:
                assert ahead.overhead <= other.overhead
                assert ahead.peak_bytes <= (ahead.budget_bytes or 0)
    assert evicted > 0


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_it_recomputes_less_than_coop(name: str) -> None:
    ahead, coop = simulated(name, "lookahead"), simulated(name, "coop")
    both = [(a.overhead, c.overhead) for a, c in zip(ahead, coop, strict=True) if c.feasible]
    assert sum(a for a, _ in both) < 0.9 * sum(c for _, c in both)


def policy_of(effort: int) -> coop_jax.Policy:
    return coop_jax.Policy("lookahead", search_effort=effort)


@functools.cache
def searched(name: str, effort: int) -> list[coop_jax.Simulation]:
    traced = program(name, fusion=True)  # fewer operations, so that more is tried
    simulator = simulators.Simulator(traced, policy_of(effort), PROFILE, None, None)
    return [simulator.simulate(ratio, find_smallest=False) for ratio in RATIOS]


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_searching_finds_better_plans_and_never_worse_ones(name: str) -> None:
    own, some, more = (searched(name, effort) for effort in (0, 5_000, 100_000))
    for a, b, c in zip(own, some, more, strict=True):
        assert b.feasible >= a.feasible
        assert c.feasible >= b.feasible
        if a.feasible:
            assert b.overhead <= a.overhead
            assert c.overhead <= b.overhead
        if c.feasible:
            assert c.peak_bytes <= (c.budget_bytes or 0)
    fit = [(a.overhead, c.overhead) for a, c in zip(own, more, strict=True) if a.feasible]
    assert sum(c for _, c in fit) < 0.95 * sum(a for a, _ in fit)


@pytest.mark.parametrize("cores", [1, 3])
def test_what_is_found_does_not_depend_on_the_machine(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = searched("mlp", 20_000)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    found = searched.__wrapped__("mlp", 20_000)
    assert [x.actions for x in found] == [x.actions for x in expected]
    assert any(x.evictions > 0 for x in found)


def test_effort_bounds_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    make = coop_jax._core.make_plan

    def counted(engine_program: Any, **options: Any) -> Any:
        plan = make(engine_program, **options)
        planned.append(plan.stats.operations + plan.stats.recomputations)
        return plan

    monkeypatch.setattr(coop_jax._core, "make_plan", counted)
    counts = []
    for effort in (0, 10_000, 40_000):
        policy = policy_of(effort)
        simulator = simulators.Simulator(program("cnn"), policy, PROFILE, None, None)
        planned.clear()
        assert simulator.simulate(0.5, find_smallest=False).evictions > 0
        counts.append(sum(planned))
    assert counts[0] < counts[1] < counts[2]
    assert counts[2] - counts[0] < 1.5 * 40_000
    with pytest.raises(ValueError, match="search_effort"):
        policy_of(-1)


def test_what_is_undone_is_effort_too() -> None:
    """Where plans hardly fit, most of what is planned is undone again."""
    training = models.mlp()
    args = training.init, training.batch(0)
    peak = coop_jax.simulate(training.step, *args, donate_argnums=0).unbudgeted_peak_bytes
    found = [
        coop_jax.simulate(
            training.step, *args, donate_argnums=0, budget=int(share * peak), alternatives=False
        ).plan
        for share in (2.0, 0.6, 0.2, 0.15, 0.1)
    ]
    tried = [plan.tried_recomputations for plan in found]
    assert tried[0] == 0
    assert all(t >= plan.stats.recomputations for t, plan in zip(tried, found, strict=True))
    assert any(t > plan.stats.recomputations for t, plan in zip(tried, found, strict=True))


@pytest.mark.unless_forced("nothing is searched for then")
def test_only_the_first_plans_of_a_program_are_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller that keeps what each step returns changes the pool for the next plan."""
    searches = []
    original = portfolio.Candidates.improved

    def counting(self: portfolio.Candidates, *args: Any) -> Any:
        if self._settings.policy.search_effort:
            searches.append(1)
        return original(self, *args)

    monkeypatch.setattr(portfolio.Candidates, "improved", counting)

    def fn(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        layers = [x]
        for _ in range(6):
            layers.append(jnp.sin(layers[-1] @ x))
        return layers[-1], sum(layers)

    policy = coop_jax.Policy("lookahead", search_effort=200)
    step = coop_jax.run(fn, budget=32 * 64 * 64 * 4, policy=policy, fusion=False)
    x = np.ones((64, 64), np.float32)
    kept = [step(x) for _ in range(9)]
    assert 0 < len(searches) <= 4, len(searches)
    del kept


@pytest.mark.parametrize("speed", [1.0, 1e6])
def test_how_fast_the_device_is_does_not_end_the_search(speed: float) -> None:
    profile = coop_jax.DeviceProfile("any", speed * 2e13, speed * 2e12, 3e-6 / speed)
    overheads = []
    for effort in (0, 100_000):
        traced = program("cnn", fusion=True)
        simulator = simulators.Simulator(traced, policy_of(effort), profile, None, None)
        overheads.append(simulator.simulate(0.5, find_smallest=False).overhead)
    assert 0 < overheads[1] < overheads[0]


def test_where_no_policy_fits_the_search_may_find_a_plan() -> None:
    found = 0
    for seed in range(40):
        graph = optima.random_graph(seed)
        budget = graph.least() * optima.UNIT_BYTES
        fits = []
        for effort in (0, 100_000):
            simulator = simulators.Simulator(graph.traced(), policy_of(effort), None, None, None)
            fits.append(simulator.simulate(budget, find_smallest=False).feasible)
        assert fits[1] >= fits[0]
        found += fits[1] > fits[0]
    assert found > 0


def test_what_is_simulated_is_what_runs() -> None:
    training = models.cnn()
    budget = "7MiB"
    step = coop_jax.run(training.step, budget, "lookahead", donate_argnums=0)
    state = jax.tree.map(jnp.array, training.init)
    step(state, training.batch(0))
    simulated = step.simulate(training.init, training.batch(0))  # knows the workspace now
    assert simulated.feasible
    stats = step.runtime.stats()
    assert simulated.rematerialisations == stats.rematerialisations > 0
    assert simulated.evictions == stats.evictions


def test_its_forms_differ_and_keep_the_switches() -> None:
    policy = coop_jax.Policy("lookahead", in_place=False, keep_demanded=False)
    forms = [policy, *policies.lookaheads(policy)]
    assert len(set(forms)) == len(forms)
    assert not any(form.in_place or form.keep_demanded for form in forms)
    assert {form.heuristic for form in forms} == {"lookahead", "coop", "dte", "dtr"}


def test_without_evictions_no_other_form_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = coop_jax._core.make_plan
    monkeypatch.setattr(
        coop_jax._core, "make_plan", lambda *a, **k: made.append(make(*a, **k)) or made[-1]
    )
    counts = []
    for policy in ("coop", "lookahead"):
        made.clear()
        simulation = coop_jax.simulate(program("mlp"), policy=policy, device_profile=PROFILE)
        assert simulation.overhead == 0
        counts.append(len(made))
    assert counts[0] == counts[1] > 0


def test_where_values_decide_what_runs_it_goes_on_as_coop() -> None:
    def step(x: jax.Array) -> jax.Array:
        def halve(x: jax.Array) -> jax.Array:
            return jnp.sin(x) * 0.5

        return jax.lax.while_loop(lambda x: jnp.abs(x).max() > 0.1, halve, x)

    x = np.linspace(0, 1, 4096, dtype=np.float32)
    results = [
        bits_of(coop_jax.run(step, budget="64KiB", policy=policy)(x))
        for policy in ("coop", "lookahead")
    ]
    assert results[0] == results[1]
