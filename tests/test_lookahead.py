"""`policy="lookahead"`: plans that know what is read when; never worse than Coop, nor than what
DTE and DTR plan by themselves (without the variants that `run` tries beside them).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from conftest import bits_of

import coop_jax
from coop_jax._src import policies

PROFILE = "a100-80gb-fp32"
RATIOS = (0.9, 0.7, 0.5, 0.4, 0.3, 0.2)
pytestmark = pytest.mark.no_recomputation("nothing runs, or what is compared are plans")


@functools.cache
def program(name: str) -> coop_jax.TracedProgram:
    training = {"cnn": models.cnn, "mlp": models.mlp, "gpt": models.gpt}[name]()
    return coop_jax.trace_program(training.step, training.init, training.batch(0), donate_argnums=0)


@functools.cache
def simulated(name: str, policy: str) -> list[coop_jax.Simulation]:
    traced = program(name)
    peak = coop_jax.simulate(traced, device_profile=PROFILE).unbudgeted_peak_bytes
    return coop_jax.sweep(
        traced,
        budget=[int(ratio * peak) for ratio in RATIOS],
        policy=policy,
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


def test_remat_eager_says_that_it_cannot_look_ahead() -> None:
    with pytest.raises(ValueError, match="needs to know the program"):
        coop_jax.remat_eager(lambda x: x, policy="lookahead")


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
