"""`coop_jax.memory` of functions of `run` and `remat_eager`: the plan of a first call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import coop_jax
from coop_jax._src.report.buffers import Buffer

HERE = "test_memory_planned.py"
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def abstract(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def train_step(state: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for w in params:
            y = jnp.tanh(y @ w)  # activations
        return (y**2).mean()

    grads = jax.grad(loss)(state["params"])
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}


def example() -> tuple[Any, Any]:
    params = [abstract(64, 64) for _ in range(8)]
    state = {"params": params, "opt_state": jax.eval_shape(OPTIMIZER.init, params)}
    return state, abstract(1024, 64)


def apart(a: Buffer, b: Buffer) -> bool:
    """Whether no address is in both at one time, but when one is written over the other."""
    if a.allocation != b.allocation or a.last <= b.first or b.last <= a.first:
        return True
    return a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


@pytest.mark.parametrize("budget", [None, 0.6])
def test_the_peak_is_that_of_the_plan_and_the_buffers_sum_up_to_it(budget: float | None) -> None:
    step = coop_jax.run(train_step, budget=budget, donate_argnums=0)
    args = example()
    report, simulation = coop_jax.memory(step, *args), step.simulate(*args)
    assert report.peak_bytes == simulation.peak_bytes
    assert sum(b.nbytes for b in report.buffers) == report.peak_bytes
    assert 0 <= report.by_kind.get("unused", 0) <= 64 * len(report.buffers)
    assert report.by_kind["parameters"] == 8 * 64 * 64 * 4
    assert report.by_kind["optimizer state"] == 8 * 64 * 64 * 4
    assert report.by_kind["residuals"] > 0.5 * report.peak_bytes
    lines = str(report).splitlines()
    assert f"{HERE}:" in lines[1]
    assert any("state['opt_state'][0].trace" in line for line in lines)


@pytest.mark.unless_fused("operations are named after the first of those fused")
def test_what_is_computed_again_is_in_memory_several_times() -> None:
    step = coop_jax.run(train_step, budget=0.6, donate_argnums=0)
    report = coop_jax.memory(step, *example())
    simulation = step.simulate(*example())
    assert simulation.rematerialisations > 0
    assert report.moments == len(simulation.actions)
    pool = [b for b in report.lifetimes if b.allocation == 0]
    assert all(apart(a, b) for n, a in enumerate(pool) for b in pool[:n])
    assert any("tanh" in b.operation for b in pool)


def test_of_modules_it_is_the_plan_of_the_pure_function() -> None:
    model = nnx.Linear(32, 32, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(model: Any, x: Any) -> Any:
        grads = nnx.grad(lambda m: (jnp.tanh(m(x)) ** 2).mean())(model)
        return jax.tree.map(lambda g: g * 2, grads)

    report = coop_jax.memory(coop_jax.run(step), model, jnp.ones((256, 32)))
    assert sum(b.nbytes for b in report.buffers) == report.peak_bytes
    assert report.name == "step"


def test_of_remat_eager_it_is_the_plan_that_run_would_have() -> None:
    args = example()
    eager = coop_jax.memory(coop_jax.remat_eager(train_step), *args)
    planned = coop_jax.memory(coop_jax.run(train_step), *args)
    assert eager.peak_bytes == planned.peak_bytes
    assert eager.by_kind == planned.by_kind


def test_a_budget_without_a_plan_is_named() -> None:
    step = coop_jax.run(train_step, budget="100KiB", donate_argnums=0)
    assert coop_jax.memory(step, *example()).refusal.startswith("does not fit into 100.00 KiB")
    with pytest.raises(TypeError, match="give the function itself"):
        coop_jax.memory(step, *example(), budgets=True)
