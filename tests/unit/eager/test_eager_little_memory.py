"""`remat_eager` where memory is tight: what goes, what is moved, and when a call is refused."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.eager import session
from tests.benchmarks import little_networks
from tests.testing.comparison import assert_same_bits


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


LSTM = little_networks.lstm(steps=40, width=64)
CHAIN = little_networks.chain(width=64)


def without_budget(program: little_networks.Network) -> tuple[Any, Any]:
    gradient, args = program
    step = coop_jax.remat_eager(gradient)
    return step(*args), step.runtime.stats()


@pytest.mark.unless_forced("where all is evicted, more is recomputed")
@pytest.mark.parametrize(
    ("program", "share", "most"),
    [(LSTM, 0.7, 1.0), (LSTM, 0.5, 2.0), (CHAIN, 0.7, 0.3), (CHAIN, 0.5, 1.0)],
)
def test_half_of_the_peak_is_enough(
    program: little_networks.Network, share: float, most: float
) -> None:
    gradient, args = program
    wanted, full = without_budget(program)
    step = coop_jax.remat_eager(gradient, budget=int(share * full.peak_bytes))
    assert_same_bits(step(*args), wanted)
    stats = step.runtime.stats()
    assert stats.peak_bytes <= int(share * full.peak_bytes)
    assert 0 < stats.rematerialisations <= most * stats.operations


@pytest.mark.unless_forced("where all is evicted, nothing is in the way")
def test_sums_of_gradients_are_moved_rather_than_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[int] = []
    real = session.Session._on_move

    def counted(self: Any, array: Any, key: int, offset: int) -> Any:
        moved.append(offset)
        return real(self, array, key, offset)

    monkeypatch.setattr(session.Session, "_on_move", counted)
    gradient, args = LSTM
    wanted, full = without_budget(LSTM)
    for share in itertools.count(56, -2):  # before it is too little
        budget = int(share / 100 * full.peak_bytes)
        step = coop_jax.remat_eager(gradient, budget=budget)
        assert_same_bits(step(*args), wanted)
        if moved:
            break


@pytest.mark.unless_forced("where all is evicted, more is recomputed")
def test_what_a_checkpoint_makes_again_gives_way_to_cotangents() -> None:
    # It is made in the backward pass, and read there, but it is not what is hard to make.
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            for _ in range(6):
                x = jnp.tanh(jnp.sin(x @ w) + x)
            return x, None

        return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)

    program = jax.value_and_grad(loss), (normal(0, 6, 32, 32) / 4, normal(99, 256, 32))
    wanted, full = without_budget(program)
    step = coop_jax.remat_eager(program[0], budget=int(0.6 * full.peak_bytes))
    assert_same_bits(step(*program[1]), wanted)
    stats = step.runtime.stats()
    assert 0 < stats.rematerialisations <= 0.5 * stats.operations


@pytest.mark.unless_forced("the limit is not for that")
@pytest.mark.parametrize("program", [LSTM, CHAIN])
def test_a_call_that_recomputes_too_much_is_refused(program: little_networks.Network) -> None:
    gradient, args = program
    _, full = without_budget(program)
    for share in itertools.count(45, -3):
        budget = int(share / 100 * full.peak_bytes)
        runtime = coop_jax.Runtime(budget, "coop", max_recompute=1e-6)
        step = coop_jax.remat_eager(gradient, runtime=runtime)
        try:
            step(*args)
        except coop_jax.BudgetExceededError as error:
            report, text = error.report, str(error)
            if report.thrashing:
                break
    stats = runtime.stats()
    assert stats.rematerialisations <= 1024
    if report.enough_bytes is not None:
        assert report.enough_bytes > report.budget_bytes
    known = "enough to recompute nothing so far: " in text
    assert known == (report.enough_bytes is not None) == (program is LSTM)
    assert runtime.stats().bytes_in_use == 0  # usable afterwards
    double = coop_jax.remat_eager(lambda x: x * 2, runtime=runtime)
    assert float(double(jnp.float32(2.0))) == 4.0


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_positive(limit: float) -> None:
    with pytest.raises(ValueError, match="max_recompute"):
        coop_jax.Runtime("1MiB", max_recompute=limit)


def test_a_limit_is_a_number() -> None:
    with pytest.raises(TypeError, match="max_recompute"):
        coop_jax.Runtime("1MiB", max_recompute="4")  # type: ignore[arg-type]
