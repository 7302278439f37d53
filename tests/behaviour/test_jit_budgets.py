"""Budgets of `coop_jax.jit` before a call: the least is accepted, sweeps say what is planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from tests.testing import models
from tests.testing.processes import TWO_DEVICES, output_of

LAYERS, WIDTH, ROWS = 8, 64, 1024


def loss(params: Any, x: Any) -> Any:
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def scanned(params: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0] ** 2).mean()


def training(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, x: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def shapes(kind: str = "layers") -> tuple[Any, Any]:
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    if kind == "scanned":
        return jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32), x
    return [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS, x


STEPS = {"layers": training(loss), "scanned": training(scanned)}


def overhead(report: coop_jax.PlanReport) -> float:
    """Recompute seconds / compute seconds."""
    return report.recompute_share / (1 - report.recompute_share)


@pytest.mark.parametrize("kind", list(STEPS))
@pytest.mark.parametrize("donated", [(), (0,)])
def test_the_least_budget_is_accepted_and_a_byte_less_is_refused(
    kind: str, donated: tuple[int, ...]
) -> None:
    step, args = STEPS[kind], shapes(kind)
    options: dict[str, Any] = {"donate_argnums": donated}
    least = coop_jax.min_budget(step, *args, front_end="jit", **options)
    report = coop_jax.jit(step, budget=least, **options).plan(*args)
    assert report.needed_bytes == least < 0.7 * report.jit_bytes
    # Another plan could need less than the smallest one; of these programs none does.
    for budget in (least - 1, int(0.95 * least)):
        with pytest.raises(coop_jax.BudgetExceededError) as info:
            coop_jax.jit(step, budget=budget, **options).plan(*args)
        refusal = info.value.report
        assert isinstance(refusal, coop_jax.CompiledBudgetReport)
        assert refusal.smallest_budget_bytes == least


def test_results_within_the_least_budget_are_those_of_jit() -> None:
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    params = [0.1 * jax.random.normal(k, (WIDTH, WIDTH)) for k in keys[1:]]
    x = jax.random.normal(keys[0], (ROWS, WIDTH))
    least = coop_jax.min_budget(STEPS["layers"], params, x, front_end="jit")
    planned = coop_jax.jit(STEPS["layers"], budget=least)
    found, expected = planned(params, x), jax.jit(STEPS["layers"])(params, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert planned.plan(params, x).needed_bytes <= least


@pytest.mark.parametrize("kind", list(STEPS))
@pytest.mark.parametrize("most", [0.1, 0.25])
def test_the_least_budget_within_an_overhead(kind: str, most: float) -> None:
    step, args = STEPS[kind], shapes(kind)
    budget = coop_jax.min_budget(step, *args, front_end="jit", max_overhead=most)
    report = coop_jax.jit(step, budget=budget).plan(*args)
    assert report.needed_bytes <= budget <= report.jit_bytes
    assert overhead(report) <= most
    below = coop_jax.jit(step, budget=int(0.93 * budget)).plan(*args)  # found to some percent
    assert overhead(below) > most


def test_any_overhead_is_no_limit_and_none_is_the_program_of_jit() -> None:
    planned = coop_jax.jit(STEPS["layers"])
    least = planned.min_budget(*shapes())
    assert planned.min_budget(*shapes(), max_overhead=100) == least
    jit_bytes = planned.plan(*shapes()).jit_bytes
    assert planned.min_budget(*shapes(), max_overhead=0) == jit_bytes
    # What keeps nothing needs what `jax.jit` says.
    simple = coop_jax.jit(lambda x: x + 1)
    assert simple.min_budget(shapes()[1]) == simple.plan(shapes()[1]).jit_bytes


def test_a_planned_function_has_its_options() -> None:
    def scaled(params: Any, x: Any, power: int, *, scale: Any) -> Any:
        return jax.grad(lambda p: loss(p, x) ** power * scale)(params)

    options: dict[str, Any] = {"static_argnames": "power", "donate_argnums": 0}
    planned = coop_jax.jit(scaled, budget="1KiB", **options)  # its own budget does not matter
    args, scale = (*shapes(), 2), jnp.float32(1)
    least = planned.min_budget(*args, scale=scale)
    assert coop_jax.min_budget(planned, *args, front_end="jit", scale=scale) == least
    assert coop_jax.min_budget(scaled, *args, front_end="jit", scale=scale, **options) == least
    assert coop_jax.jit(scaled, budget=least, **options).plan(*args, scale=scale)
    for other in ({"donate_argnums": 1}, {"policy": "dtr"}, {"device_profile": "h200"}):
        with pytest.raises(ValueError, match=r"give .* to coop_jax\.jit"):
            coop_jax.min_budget(planned, *args, front_end="jit", scale=scale, **other)


def test_checkpoints_that_are_respected_need_what_they_say() -> None:
    @jax.checkpoint
    def half(params: Any, x: Any) -> Any:
        for w in params:
            x = jnp.tanh(x @ w)
        return x

    def checkpointed(params: Any, x: Any) -> Any:
        x = half(params[LAYERS // 2 :], half(params[: LAYERS // 2], x))
        return (x**2).mean()

    step = training(checkpointed)
    least = [
        coop_jax.jit(step, respect_checkpoints=respected).min_budget(*shapes())
        for respected in (True, False)
    ]
    assert least[1] < least[0]


def test_a_sweep_says_what_the_first_plans_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a sweep compiles nothing")

    step, budgets = STEPS["layers"], [None, 1.0, 0.8, 2**21, 0.1]
    reports = [coop_jax.jit(step, budget=share).plan(*shapes()) for share in (0.8, 0.65)]
    with monkeypatch.context() as patched:
        patched.setattr(jax.stages.Lowered, "compile", compiled)
        found = coop_jax.sweep(step, *shapes(), front_end="jit", budget=budgets, progress=False)
    peak = found[0].peak_bytes
    assert peak == pytest.approx(reports[0].jit_bytes, rel=0.2)
    assert [s.budget_bytes for s in found] == [None, peak, int(0.8 * peak), 2**21, int(0.1 * peak)]
    assert [s.feasible for s in found] == [True, True, True, True, False]
    assert all(s.unbudgeted_peak_bytes == peak for s in found)
    assert not any(s.workspace_is_known for s in found)
    assert [s.rematerialisations > 0 for s in found[:4]] == [False, False, True, True]
    for s in found[:4]:
        assert s.budget_bytes is None or s.peak_bytes <= s.budget_bytes
        assert s.overhead == pytest.approx(s.recompute_seconds / s.compute_seconds)
    # What is compiled at a budget is what is said of it, if XLA needs no more than expected.
    for report in reports:
        assert report.budget_bytes is not None
        (said,) = coop_jax.sweep(step, *shapes(), front_end="jit", budget=[report.budget_bytes])
        first = report.attempts[0]
        assert said.peak_bytes == first.predicted_bytes
        share = said.recompute_seconds / (said.compute_seconds + said.recompute_seconds)
        assert share == pytest.approx(first.recompute_share)


def test_a_sweep_goes_through_policies() -> None:
    budgets, names = [0.9, 0.7], ["dtr", "lookahead"]
    found = coop_jax.sweep(
        STEPS["layers"], *shapes(), front_end="jit", budget=budgets, policy=names
    )
    assert [s.policy.heuristic for s in found] == ["dtr"] * 2 + ["lookahead"] * 2
    for dtr, lookahead in zip(found[:2], found[2:], strict=True):
        assert lookahead.overhead <= dtr.overhead
    planned = coop_jax.jit(STEPS["layers"], policy="dtr")
    own = coop_jax.sweep(planned, *shapes(), front_end="jit", budget=budgets)
    assert [s.policy.heuristic for s in own] == ["dtr"] * 2
    assert coop_jax.sweep(planned, *shapes(), front_end="jit", budget=[]) == []


def test_a_sweep_counts_what_loops_compute_again() -> None:
    found = coop_jax.sweep(
        STEPS["scanned"], *shapes("scanned"), front_end="jit", budget=[1.0, 0.6], progress=False
    )
    assert found[0].recompute_seconds == 0 < found[1].recompute_seconds
    assert found[1].rematerialisations == 0  # the backward scan does it in its body


def test_run_is_the_front_end_unless_told() -> None:
    step = models.tanh_layers(8)
    w, x = jnp.eye(64) * 0.5, jnp.ones((256, 64))
    least = coop_jax.min_budget(step, w, x)
    assert coop_jax.min_budget(step, w, x, front_end="run") == least
    assert coop_jax.run(step).min_budget(w, x) == least
    said, same = (
        coop_jax.sweep(step, w, x, budget=[0.7], **front_end)
        for front_end in ({}, {"front_end": "run"})
    )
    assert [s.peak_bytes for s in said] == [s.peak_bytes for s in same]


_OF_RUN = [{"costs": 3}, {"workspace": "1MiB"}, {"alternatives": False}]


@pytest.mark.parametrize(
    ("call", "options"),
    [
        *((coop_jax.min_budget, o) for o in (*_OF_RUN, {"resolution": 0.1}, {"compile": False})),
        *((coop_jax.sweep, {"budget": [0.5], **o}) for o in (*_OF_RUN, {"give_up": 2.0})),
    ],
    ids=lambda v: getattr(v, "__name__", None) or next(reversed(v)),
)
def test_options_of_run_are_refused(call: Any, options: dict[str, Any]) -> None:
    name = next(reversed(options))
    with pytest.raises(ValueError, match=rf'{name}= is for front_end="run"'):
        call(STEPS["layers"], *shapes(), front_end="jit", **options)


def test_arguments_that_make_no_sense() -> None:
    step = STEPS["layers"]
    for front_end in ("remat_eager", 3):
        for call in (coop_jax.min_budget, lambda *a, **o: coop_jax.sweep(*a, budget=[0.5], **o)):
            with pytest.raises(ValueError, match='front_end must be "run" or "jit"'):
                call(step, *shapes(), front_end=front_end)
    for overhead in (-1, "little"):
        with pytest.raises((TypeError, ValueError), match="max_overhead"):
            coop_jax.min_budget(step, *shapes(), front_end="jit", max_overhead=overhead)
    with pytest.raises(TypeError, match="policy"):
        coop_jax.min_budget(step, *shapes(), front_end="jit", policy=["dtr"])
    with pytest.raises(TypeError, match="TracedProgram"):
        coop_jax.min_budget(coop_jax.trace_program(step, *shapes()), front_end="jit")
    with pytest.raises(TypeError, match=r"not_an_array|path"):
        coop_jax.sweep(step, shapes()[0], "not_an_array", front_end="jit", budget=[0.5])


# Prints the least budget of some layers on all devices, and what is said of others.
SHARDED = """
import json, sys
import coop_jax, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from test_jit_budgets import LAYERS, ROWS, STEPS, WIDTH

mesh = jax.make_mesh((2,), ("d",))


def spread(shape, spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


params = [spread((WIDTH, WIDTH), P("d"))] * LAYERS
x = spread((2 * ROWS, WIDTH), P("d"))
options = {"donate_argnums": 0, "out_shardings": ([p.sharding for p in params], None)}
planned = coop_jax.jit(STEPS["layers"], **options)
least = planned.min_budget(params, x)
report = coop_jax.jit(STEPS["layers"], budget=least, **options).plan(params, x)
try:
    coop_jax.jit(STEPS["layers"], budget=least - 1, **options).plan(params, x)
    refused = 0
except coop_jax.BudgetExceededError as error:
    refused = error.report.smallest_budget_bytes
swept = coop_jax.sweep(planned, params, x, front_end="jit", budget=[None, 0.7], progress=False)
print(json.dumps({
    "least": least, "needed": report.needed_bytes, "jit": report.jit_bytes, "refused": refused,
    "peaks": [s.peak_bytes for s in swept], "again": [s.overhead for s in swept],
}))
"""


def test_budgets_are_those_of_one_device() -> None:
    found = json.loads(output_of(SHARDED, environment=TWO_DEVICES).splitlines()[-1])
    assert found["needed"] == found["least"] == found["refused"] < 0.7 * found["jit"]
    assert found["jit"] == pytest.approx(found["peaks"][0], rel=0.2)
    assert found["peaks"][1] <= 0.7 * found["peaks"][0]
    assert found["again"][0] == 0 < found["again"][1]
