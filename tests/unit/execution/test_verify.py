"""Forced eviction recomputes everything; verification sees a recomputed value that differs."""

from __future__ import annotations

import ctypes
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.compat import arrays
from tests.testing.comparison import assert_same_bits
from tests.testing.faults import (
    BUDGET_BYTES,
    FRONT_ENDS,
    Operations,
    data,
    first_params,
    in_use,
    step_fn,
)


def make(front_end: str, runtime: coop_jax.Runtime, fn: Any = step_fn) -> Any:
    wrap = coop_jax.run if front_end == "run" else coop_jax.remat_eager
    return wrap(fn, runtime=runtime)


def branching(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """Planned as it goes, also by `run`."""
    n = jax.lax.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
    return jax.lax.cond(n > 2, step_fn, lambda params, x: (params, x[0, 0]), params, x)


@pytest.mark.parametrize("fn", [step_fn, branching])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_recomputations_of_a_correct_program_verify(front_end: str, fn: Any) -> None:
    expected = make(front_end, coop_jax.Runtime(None), fn)(first_params(), data())
    runtime = coop_jax.Runtime(BUDGET_BYTES, verify=True)
    step = make(front_end, runtime, fn)
    for _ in range(2):
        assert_same_bits(step(first_params(), data()), expected)
    assert runtime.stats().rematerialisations > 0


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_recomputation_with_other_bits_is_an_error_that_names_it(
    front_end: str, operations: Operations
) -> None:
    runtime = coop_jax.Runtime(BUDGET_BYTES, verify=True)
    step = make(front_end, runtime)
    flipped = []

    def flip(label: str, recompute: bool, results: Any) -> None:
        if recompute and results[0].shape == (256, 32):
            ctypes.c_uint8.from_address(arrays.address_of(results[0])).value ^= 1
            flipped.append(label)

    operations.after = flip
    with pytest.raises(coop_jax.VerificationError) as caught:
        step(first_params(), data())
    assert len(flipped) == 1, "the first wrong value is reported"
    text = str(caught.value)
    assert f"operation '{flipped[0]}'" in text
    assert pathlib.Path(step_fn.__code__.co_filename).name in text
    assert "float32 of shape (256, 32)" in text
    assert "differs: 1 of 8192 elements, first (0, 0)" in text
    operations.restart()
    del caught
    assert in_use(runtime) == []
    step(first_params(), data())  # the runtime works


def test_a_version_overwritten_in_place_is_compared_with_itself() -> None:
    def chain(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        kept = []
        for i in range(8):
            x = x + 1
            kept.append(jnp.sin(x[i]))
            x = x.at[i].set(0.5)
        return x, jnp.stack(kept)

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    expected = coop_jax.run(chain)(x)
    for policy in ("coop", "dtr"):
        runtime = coop_jax.Runtime("1MiB", coop_jax.Policy(policy, evict_always=True), verify=True)
        assert_same_bits(coop_jax.run(chain, runtime=runtime)(x), expected)
        assert runtime.stats().rematerialisations > 0


@pytest.mark.parametrize("fn", [step_fn, branching])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_forced_eviction_recomputes_whatever_the_budget(
    front_end: str, fn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOP_JAX_FORCE_EVICTION", "0")
    free = coop_jax.Runtime(None)
    expected = make(front_end, free, fn)(first_params(), data())
    assert free.stats().rematerialisations == 0
    monkeypatch.setenv("COOP_JAX_FORCE_EVICTION", "1")
    forced = coop_jax.Runtime(None)
    assert forced.policy.evict_always
    assert_same_bits(make(front_end, forced, fn)(first_params(), data()), expected)
    assert forced.stats().rematerialisations > forced.stats().operations


def test_a_fraction_means_the_same_where_eviction_is_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets = []
    for forced in "01":
        monkeypatch.setenv("COOP_JAX_FORCE_EVICTION", forced)
        step = coop_jax.run(step_fn, budget=0.7)
        step(first_params(), data())
        budgets.append(step.runtime.budget_bytes)
    assert budgets[0] == budgets[1]


@pytest.mark.parametrize("name", ["COOP_JAX_FORCE_EVICTION", "COOP_JAX_VERIFY"])
def test_other_values_of_the_variables_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "yes please")
    with pytest.raises(ValueError, match=f"{name} must be 0 or 1"):
        coop_jax.Runtime(None)
