"""Budgets that do not suffice: what the error says, and that everything works afterwards."""

from __future__ import annotations

import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits
from tests.testing.faults import FRONT_ENDS, Operations, data, first_params, in_use, make, step_fn

# --- Budgets that do not suffice ---

TOO_SMALL_BYTES = 120_000


def check_report(report: coop_jax.BudgetReport, message: str, budget_bytes: int) -> None:
    assert report.budget_bytes == budget_bytes
    assert report.requested_bytes > 0
    assert 0 <= report.pinned_bytes <= report.in_use_bytes <= budget_bytes
    assert 0 <= report.largest_free_block_bytes <= budget_bytes - report.in_use_bytes
    assert report.largest_free_block_bytes <= report.largest_window_bytes
    assert report.largest_window_bytes <= budget_bytes - report.pinned_bytes
    for value in (
        report.requested_bytes,
        report.budget_bytes,
        report.in_use_bytes,
        report.pinned_bytes,
        report.largest_free_block_bytes,
        report.largest_window_bytes,
    ):
        assert f"({value} bytes)" in message
    assert report.operation in message
    assert report.source in message
    assert "What to change" in message


@pytest.mark.parametrize("fusion", [False, True])
def test_it_says_that_single_operations_need_less_at_once(fusion: bool) -> None:
    step = coop_jax.run(step_fn, TOO_SMALL_BYTES, fusion=fusion)
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        step(first_params(), data())
    assert caught.value.report.fused == fusion
    assert ("fusion=False" in str(caught.value)) == fusion


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte"])
def test_run_knows_before_it_begins_that_a_budget_is_too_small(
    policy: str, donate: bool, operations: Operations
) -> None:
    runtime = coop_jax.Runtime(TOO_SMALL_BYTES, policy=policy)
    step = coop_jax.run(step_fn, runtime=runtime, donate_argnums=0 if donate else ())
    small = coop_jax.run(lambda params: [p * 2 for p in params], runtime=runtime)
    params = small(first_params())
    blocks = in_use(runtime)
    operations.restart()
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        step(params, data())
    assert operations.count == 0, "an operation ran before the error"
    error = caught.value
    assert isinstance(error, MemoryError)
    check_report(error.report, str(error), TOO_SMALL_BYTES)
    # A request that no window can hold: that is why it failed.
    assert error.report.requested_bytes > error.report.largest_window_bytes
    assert re.search(r"faults\.py:\d+", error.report.source), error.report.source
    assert "'" in error.report.operation
    smallest = error.report.smallest_budget_bytes
    assert smallest is not None
    assert smallest > TOO_SMALL_BYTES
    assert f"({smallest} bytes)" in str(error)
    # The same runtime, the same arrays.
    assert in_use(runtime) == blocks
    assert_same_bits(
        jax.tree.map(np.asarray, small(params)), [p * np.float32(4) for p in first_params()]
    )


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte"])
def test_the_smallest_budget_that_the_error_names_does(policy: str, donate: bool) -> None:
    def attempt(budget: int | None) -> Any:
        step = coop_jax.run(
            step_fn, budget=budget, policy=policy, donate_argnums=0 if donate else ()
        )
        out = step(first_params(), data())
        if budget is not None:
            assert step.runtime.stats().peak_bytes <= budget
        return jax.tree.map(np.array, out)

    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        attempt(TOO_SMALL_BYTES)
    smallest = caught.value.report.smallest_budget_bytes
    assert smallest is not None
    assert_same_bits(attempt(smallest), attempt(None))
    with pytest.raises(coop_jax.BudgetExceededError):
        attempt(int(0.85 * smallest))


def test_an_eager_program_that_does_not_fit_says_where_and_the_runtime_goes_on() -> None:
    runtime = coop_jax.Runtime(TOO_SMALL_BYTES)
    step = coop_jax.remat_eager(step_fn, runtime=runtime)
    small = coop_jax.remat_eager(lambda params: [p * 2 for p in params], runtime=runtime)
    params = small(first_params())
    blocks = in_use(runtime)
    for _ in range(2):
        with pytest.raises(coop_jax.BudgetExceededError) as caught:
            step(params, data())
        check_report(caught.value.report, str(caught.value), TOO_SMALL_BYTES)
        assert re.search(r"faults\.py:\d+", caught.value.report.source)
        assert in_use(runtime) == blocks
    assert_same_bits(
        jax.tree.map(np.asarray, small(params)), [p * np.float32(4) for p in first_params()]
    )


def test_arguments_larger_than_the_budget() -> None:
    x = np.ones(100_000, np.float32)
    for front_end in FRONT_ENDS:
        step = make(front_end, 100_000, fn=lambda x: x.sum())
        with pytest.raises(coop_jax.BudgetExceededError) as caught:
            step(x)
        assert caught.value.report.budget_bytes == 100_000
        assert str(caught.value)
        assert float(step(x[:1000])) == 1000


def test_one_operation_larger_than_the_budget() -> None:
    for front_end in FRONT_ENDS:
        step = make(front_end, 100_000, fn=lambda x: jnp.sin(x[:, None] + x[None, :]).sum())
        with pytest.raises(coop_jax.BudgetExceededError) as caught:
            step(np.ones(400, np.float32))
        assert caught.value.report.requested_bytes >= 640_000
        assert np.isfinite(float(step(np.ones(50, np.float32))))


def test_the_error_can_be_pickled() -> None:
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        make("run", TOO_SMALL_BYTES)(first_params(), data())
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.report == caught.value.report
    assert str(again) == str(caught.value)


def test_workspace_counts() -> None:
    x = np.ones((64, 64), np.float32)
    fits = coop_jax.Runtime(4 * x.nbytes, workspace=0 or None)
    coop_jax.run(lambda x: x * 2, runtime=fits)(x)
    kept = coop_jax.Runtime(4 * x.nbytes, workspace=3 * x.nbytes)
    with pytest.raises(coop_jax.BudgetExceededError):
        coop_jax.run(lambda x: x * 2, runtime=kept)(x)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_results_that_were_ready_go_where_the_next_does_not_fit(front_end: str) -> None:
    def fn(x: jax.Array) -> list[jax.Array]:
        x = jax.lax.cond(x[0, 0] < 99, lambda x: x @ x, jnp.cos, x)  # not known ahead
        return [jnp.sin(x + i) for i in range(6)]

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    refused = 0
    for budget in range(3 * x.nbytes, 7 * x.nbytes, x.nbytes // 2):
        runtime = coop_jax.Runtime(budget)
        wrap = coop_jax.run if front_end == "run" else coop_jax.remat_eager
        try:
            wrap(fn, runtime=runtime)(x)
        except coop_jax.BudgetExceededError as error:
            refused += error.report.operation == "reading a value"
            assert in_use(runtime) == []
    assert refused > 0
