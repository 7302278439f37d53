"""Simulations: the same decisions as real runs, without running; searches over budgets."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.ir import cost_model as cost_models
from coop_jax._src.run import planned_call
from tests.testing import models
from tests.testing.comparison import assert_same_bits

POLICIES = [
    "coop",
    "dtr",
    "dte",
    "lookahead",
    coop_jax.Policy("dtr", "exact"),
    coop_jax.Policy("coop", sliding_window=False),
    coop_jax.Policy("coop", cheap_partitioning=False),
    coop_jax.Policy("coop", in_place=False),
]


def shapes_of(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), tree)


deep = models.tanh_layers(12)
W, X = (jax.ShapeDtypeStruct(s, jnp.float32) for s in [(64, 64), (256, 64)])


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans that are carried out, in order."""
    taken: list[Any] = []
    compile_plan = planned_call.compile_plan

    def recorded(plan: Any, *args: Any, **kwargs: Any) -> Any:
        taken.append(plan)
        return compile_plan(plan, *args, **kwargs)

    monkeypatch.setattr(planned_call, "compile_plan", recorded)
    return taken


@pytest.mark.parametrize(
    ("program", "policy"),
    [
        *((models.mlp, policy) for policy in POLICIES),
        pytest.param(models.gpt, "coop", marks=pytest.mark.slow),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
@pytest.mark.no_recomputation("what is compared are plans")
def test_simulated_and_real_runs_decide_the_same(
    program: Callable[[], models.TrainingProgram], policy: Any, plans: list[Any]
) -> None:
    training = program()
    state, batch = training.init, training.batch(0)
    peak = coop_jax.simulate(
        training.step, shapes_of(state), shapes_of(batch), donate_argnums=0
    ).unbudgeted_peak_bytes
    runtime = coop_jax.Runtime(int(0.75 * peak), policy)
    step = coop_jax.run(training.step, donate_argnums=0, runtime=runtime)
    plans.clear()
    state, _ = step(jax.tree.map(jnp.asarray, state), batch)
    ran = plans[-1]
    stats = runtime.stats()
    assert stats.evictions > 0
    simulations = [
        coop_jax.simulate(
            training.step,
            shapes_of(training.init),
            shapes_of(batch),
            budget=int(0.75 * peak),
            policy=runtime.policy,
            donate_argnums=0,
            workspace=stats.workspace_bytes,
        ),
        step.simulate(training.init, batch),
    ]
    for simulation in simulations:
        assert simulation.actions == ran.actions
        assert simulation.feasible
        assert simulation.evictions == stats.evictions
        assert simulation.rematerialisations == stats.rematerialisations
        assert simulation.operations == stats.operations
        assert simulation.peak_bytes == stats.peak_bytes
        assert simulation.fragmentation == stats.fragmentation


def test_nothing_is_executed_or_compiled(backend_compilations: Callable[[], int]) -> None:
    before = backend_compilations()
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 14), jnp.float32)  # 64 GiB
    square = jax.ShapeDtypeStruct((1 << 14, 1 << 14), jnp.float32)
    simulation = coop_jax.simulate(deep, square, huge, budget=0.6, device_profile="h200")
    assert simulation.feasible
    assert simulation.evictions > 0
    assert simulation.overhead > 0
    assert simulation.peak_bytes <= (simulation.budget_bytes or 0)
    assert backend_compilations() == before


def test_the_executor_is_not_imported() -> None:
    """No chain of imports leads from the simulator to what runs programs."""
    sources = pathlib.Path(coop_jax.__file__).parent
    reached: set[str] = set()
    todo = [
        f"simulate.{name}"
        for name in (
            "simulator",
            "simulation",
            "budget_search",
            "program_files",
            "dtr.log_simulator",
        )
    ]
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached.add(name)
        path = sources / "_src" / (name.replace(".", "/") + ".py")
        if not path.exists():
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coop_jax._src"):
                module = (node.module or "").removeprefix("coop_jax._src").lstrip(".")
                names = [f"{module}.{a.name}".lstrip(".") for a in node.names]
                todo += [module, *names] if module else names
    assert "planning" in reached
    assert not reached & {"executor", "instructions", "memory", "session", "run", "runtime"}


def test_more_memory_costs_less() -> None:
    found = [
        coop_jax.run(deep, b, donate_argnums=0, fusion=False).simulate(W, X)
        for b in (None, 0.5, 0.3)
    ]
    # Of a plan that does not fit the overhead says nothing.
    assert all(simulation.feasible for simulation in found)
    assert found[0].overhead == 0
    assert 0 < found[1].overhead < found[2].overhead


def test_arrays_pytrees_and_keywords() -> None:
    def step(params: dict[str, Any], *, batch: Any) -> Any:
        return deep(params["w"], batch[0])

    w, x = jnp.ones(W.shape), np.ones(X.shape, np.float32)
    found = coop_jax.simulate(step, {"w": w}, batch=(x,), budget=0.6)
    assert found.plan.actions == coop_jax.simulate(deep, W, X, budget=0.6).plan.actions


def test_what_does_not_fit_says_what_would() -> None:
    simulation = coop_jax.simulate(deep, W, X, budget="100KiB")
    assert not simulation.feasible
    least = simulation.smallest_budget_bytes
    assert least is not None
    assert coop_jax.simulate(deep, W, X, budget=least).feasible


def test_metrics_agree_with_each_other() -> None:
    s = coop_jax.simulate(deep, W, X, budget=0.5, policy="coop")
    assert s.overhead == s.recompute_seconds / s.compute_seconds
    assert s.searches == len(s.plan.search_seconds) > 0
    assert s.search_seconds == pytest.approx(sum(s.plan.search_seconds))
    assert 0 < s.mean_search_seconds <= s.max_search_seconds
    assert s.p99_search_seconds <= s.max_search_seconds
    assert 0 <= s.fragmentation <= s.max_fragmentation < 1
    assert s.rematerialisations == sum(
        isinstance(a, coop_jax.Run) and a.recompute for a in s.actions
    )


def test_profiles() -> None:
    fast = coop_jax.simulate(deep, W, X, device_profile="h200").compute_seconds
    assert fast < coop_jax.simulate(deep, W, X, device_profile="rtx-2080ti").compute_seconds
    own = cost_models.DeviceProfile("mine", 1e30, 1e30, launch_seconds=1.0)
    simulation = coop_jax.simulate(deep, W, X, device_profile=own)
    assert simulation.compute_seconds == pytest.approx(simulation.operations)
    with pytest.raises(ValueError, match="a100-80gb"):
        coop_jax.simulate(deep, W, X, device_profile="abacus")


def test_this_cpu_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("COOP_JAX_CACHE_DIR", str(tmp_path))
    first = coop_jax.simulate(deep, W, X, device_profile="cpu").compute_seconds
    assert len(list(tmp_path.iterdir())) == 1
    assert coop_jax.simulate(deep, W, X, device_profile="cpu").compute_seconds == first > 0


def test_unknown_order_is_refused() -> None:
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x.sum() < 3, lambda x: jnp.tanh(x @ x), x)

    with pytest.raises(ValueError, match="cannot be simulated"):
        coop_jax.simulate(loop, W)


@pytest.mark.parametrize("policy", ["coop", "dtr"])
def test_minimum_and_cutoff_budgets(policy: str) -> None:
    traced = coop_jax.trace_program(deep, W, X, donate_argnums=0)
    least = coop_jax.min_budget(traced, policy=policy)
    cheap = coop_jax.min_budget(traced, policy=policy, max_overhead=0.1)
    most = coop_jax.cutoff_budget(traced, policy=policy)
    assert 0 < least < cheap < most
    at = {b: coop_jax.simulate(traced, budget=b, policy=policy) for b in (least, cheap, most)}
    assert all(s.feasible for s in at.values())
    assert at[cheap].overhead <= 0.1 < at[least].overhead
    assert at[most].evictions > 0
    peak = at[least].unbudgeted_peak_bytes
    above = coop_jax.simulate(traced, budget=most + int(0.002 * peak) + 64, policy=policy)
    assert above.feasible
    assert above.evictions == 0
    below = coop_jax.simulate(traced, budget=least - int(0.004 * peak) - 64, policy=policy)
    assert not below.feasible
    with pytest.raises(ValueError, match="max_overhead"):
        coop_jax.min_budget(traced, max_overhead=-1)


def test_a_sweep_is_many_simulations(capsys: pytest.CaptureFixture[str]) -> None:
    traced = coop_jax.trace_program(deep, W, X)
    budgets = [0.9, 0.6, 200_000]
    found = coop_jax.sweep(traced, budget=budgets, policy=["coop", "dtr"], progress=True)
    assert "6/6" in capsys.readouterr().err
    assert [s.policy.heuristic for s in found] == ["coop"] * 3 + ["dtr"] * 3
    for s, (policy, b) in zip(
        found, [(p, b) for p in ("coop", "dtr") for b in budgets], strict=True
    ):
        alone = coop_jax.simulate(traced, budget=b, policy=policy)
        assert (s.feasible, s.actions) == (alone.feasible, alone.actions)
    coop_jax.sweep(traced, budget=budgets, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.no_recomputation("the first runs have no budget")
def test_measured_costs_price_what_was_decided(tmp_path: pathlib.Path) -> None:
    runtime = coop_jax.Runtime(None)
    step = coop_jax.run(deep, runtime=runtime)
    w, x = jnp.full(W.shape, 0.01), jnp.ones(X.shape)
    step(w, x)
    with coop_jax.record_costs(runtime) as costs:
        first = step(w, x)
        assert_same_bits(step(w, x), first)
    counted = len(costs)
    assert counted > 2
    step(w, x)
    assert len(costs) == counted  # no longer recorded
    costs.save(tmp_path / "costs.json")
    loaded = coop_jax.MeasuredCosts.load(tmp_path / "costs.json")
    priced = coop_jax.simulate(deep, w, x, budget=0.5, costs=loaded)
    plain = coop_jax.simulate(deep, w, x, budget=0.5, workspace=loaded.workspace_bytes)
    assert priced.actions == plain.actions
    assert priced.recompute_seconds > 0
    assert priced.compute_seconds != plain.compute_seconds
    assert loaded.device == costs.device
    with pytest.raises(ValueError, match="another program"):
        coop_jax.simulate(lambda x: jnp.sort(x, axis=0), X, costs=loaded)


def test_costs_are_measured_in_eager_calls_too() -> None:
    step = coop_jax.remat_eager(deep, budget=0.7)
    w, x = jnp.full(W.shape, 0.01), jnp.ones(X.shape)
    expected = step(w, x)
    with coop_jax.record_costs(step.runtime) as costs:
        assert_same_bits(step(w, x), expected)
        before = step.runtime.stats().calls
        assert_same_bits(step(w, x), expected)
        assert step.runtime.stats().calls == before + 1
    counted = len(costs)
    assert counted > 2
    step(w, x)
    assert len(costs) == counted


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ('{\n"format": ', 2), ("[]", 1), ('{"format": "coop_jax costs", "version": 9}', 1)],
)
def test_broken_costs_are_refused(tmp_path: pathlib.Path, text: str, line: int) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(coop_jax.ProgramFileError, match=f"line {line}") as caught:
        coop_jax.MeasuredCosts.load(path)
    assert caught.value.line == line
