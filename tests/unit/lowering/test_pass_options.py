"""Each pass can be switched off; what a program computes does not depend on it."""

from __future__ import annotations

import functools
import os
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.lowering.pass_options import PassOptions, pass_names
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits

SWITCH = "COOP_JAX_DISABLE_PASSES"


def exact_step(state: Any, xs: jax.Array) -> tuple[Any, jax.Array]:
    """A scan, products, sums, stacks, a `cond`: whole numbers so small that no float is rounded.

    Whatever order or grouping a pass leads to, the bits are the same.
    """
    w, count = state

    def loss(w: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            a, b = jnp.split(x @ w, 2, axis=1)
            h = jnp.clip(h + a - jnp.maximum(b, 0), -2, 2)
            return h, h * x[:, :8]

        _, ys = jax.lax.scan(cell, jnp.zeros((4, 8)), xs)
        return (ys * 2).sum() + ys[::2].sum()

    value, grad = jax.value_and_grad(loss)(w)
    # Of more results than what runs as one operation has.
    old = [w, count, *w[:4]]
    new = [w - jnp.sign(grad), count + 1, *grad[:4]]
    new = jax.lax.cond(value > 1e6, lambda old, new: old, lambda old, new: new, old, new)
    return (new[0], new[1]), value + sum(new[2:]).sum()


def first(seed: int) -> tuple[Any, np.ndarray]:
    random = np.random.default_rng(seed)
    w = random.integers(-1, 2, (16, 16)).astype(np.float32)
    return (w, np.int32(0)), random.integers(-1, 2, (24, 4, 16)).astype(np.float32)


def trained(seed: int, budget: int | None = None) -> tuple[Any, int]:
    """The results of three steps, and the peak."""
    state, xs = first(seed)
    step = coop_jax.run(exact_step, budget, donate_argnums=0, fusion=True)
    state, losses = jax.tree.map(jnp.array, state), []
    for _ in range(3):
        state, loss = step(state, xs)
        losses.append(loss)
    return (state, losses), step.runtime.stats().peak_bytes


@functools.cache
def complete(seed: int) -> Any:
    with mock.patch.dict(os.environ, {SWITCH: ""}):
        return jax.tree.map(np.asarray, trained(seed)[0])


@pytest.mark.parametrize("name", pass_names())
def test_bits_are_the_same_without_a_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, name)
    found, peak = trained(0)
    results = [found]
    budget = smallest_feasible(lambda b: results.append(trained(0, b)[0]), peak // 2, peak)
    assert trained(0, budget)[1] <= budget
    for result in results:
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(complete(0)), strict=True):
            assert_same_bits(a, b)


def operations(*disabled: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv(SWITCH, ", ".join(disabled))
    state, xs = first(0)
    traced = coop_jax.trace_program(exact_step, state, xs, donate_argnums=0, fusion=True)
    return len(traced.program.operations)


def test_a_function_keeps_the_passes_that_it_was_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    state, xs = first(0)
    monkeypatch.setenv(SWITCH, "fusion,launch_clustering")
    apart = coop_jax.run(exact_step, fusion=True)
    monkeypatch.setenv(SWITCH, "")
    together = coop_jax.run(exact_step, fusion=True)
    apart(state, xs)
    together(state, xs)
    assert apart.runtime.stats().operations > together.runtime.stats().operations
    fewest = operations(monkeypatch=monkeypatch)
    assert operations("fusion", "launch_clustering", monkeypatch=monkeypatch) > fewest


def test_without_selection_a_branch_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="decides on values"):
        operations("conditional_to_select", monkeypatch=monkeypatch)


def test_unknown_passes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "fusion,inlining")
    with pytest.raises(ValueError, match="COOP_JAX_DISABLE_PASSES lists inlining"):
        PassOptions.from_environment()
    with pytest.raises(ValueError, match="inlining"):
        coop_jax.run(exact_step)
    monkeypatch.setenv(SWITCH, " cse ,")
    assert PassOptions.from_environment() == PassOptions(cse=False)
