"""The short way of `remat_eager`'s operations: results and books are those of the general way."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import arrays
from coop_jax._src.eager import session
from coop_jax._src.execution import verification
from tests.testing.comparison import assert_same_bits

X = np.random.default_rng(0).normal(size=(48, 48)).astype(np.float32) / 7


@pytest.fixture(autouse=True)
def _short_way() -> None:
    if not arrays.runs_synchronously(jax.devices()[0]):
        pytest.skip("there is a short way only where launches go past Python")
    if verification.eviction_is_forced() or verification.verification_is_asked():
        pytest.skip("nobody goes the short way with forced eviction or verification")


def several(x: jax.Array) -> dict[str, Any]:
    """Views, scalars, numbers, repeated operands, several results, results outside the pool."""
    h = jnp.tanh(x @ x) * 0.5 + 1
    flat = h.reshape(-1)
    parts = jnp.split(flat * flat, 4)
    mask = np.tril(np.ones((48, 48), np.float32))
    kept = jax.lax.mul(h, mask)
    if kept.sum() > 0:
        kept = kept - np.float32(2)
    grad = jax.grad(lambda y: (jnp.sin(y).reshape(16, 144) ** 2).sum())(kept)
    return {"h": h, "parts": parts, "count": (h > 0).sum(), "grad": grad, "n": kept.mean() + 3}


@pytest.mark.parametrize("budget", [None, "4MiB", "72KiB"])
def test_results_and_books_are_those_of_the_general_way(budget: str | None) -> None:
    def calls() -> tuple[Any, coop_jax.Stats]:
        function = coop_jax.remat_eager(several, budget=budget)
        results = [jax.tree.map(np.array, function(X)) for _ in range(4)]
        return results, function.runtime.stats()

    results, stats = calls()
    assert (stats.evictions > 0) == (budget == "72KiB")
    with mock.patch.object(session.Session, "fast", False):
        expected, expected_stats = calls()
    assert_same_bits(results, expected)
    for name in ("operations", "rematerialisations", "evictions", "peak_bytes", "external_bytes"):
        assert getattr(stats, name) == getattr(expected_stats, name), name


class Launches:
    """Stands for compiled functions that are called past Python; can fail and be counted."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False

    def wrap(self, call: Any) -> Any:
        def counted(*args: Any) -> Any:
            self.count += 1
            if self.fails:
                raise OSError("injected")
            return call(*args)

        return counted


@pytest.fixture
def launches() -> Iterator[Launches]:
    made, real = Launches(), _core.CompiledCall
    with mock.patch.object(
        _core, "CompiledCall", lambda call, order, slots: real(made.wrap(call), order, slots)
    ):
        yield made


def test_an_operation_that_fails_has_not_run(launches: Launches) -> None:
    def failing(x: jax.Array, fails: bool) -> jax.Array:
        h = jnp.tanh(x)
        launches.fails = fails
        with pytest.raises(OSError, match="injected") if fails else contextlib.nullcontext():
            jnp.sin(h)
        launches.fails = False
        return jnp.cos(h)

    x = np.ones((37, 41), np.float32)  # of a shape of its own: compiled here
    function = coop_jax.remat_eager(failing)
    function(x, False)
    before = function.runtime.stats()
    expected = function(x, False)
    whole = function.runtime.stats()
    assert launches.count == 3  # of the second call
    result = function(x, True)
    after = function.runtime.stats()
    assert launches.count == 6
    assert_same_bits(result, expected)
    assert whole.operations - before.operations == 3
    assert after.operations - whole.operations == 2
    del expected
    assert function.runtime.stats().bytes_in_use == result.nbytes
    assert_same_bits(function(x, False), result)


def test_steps_come_to_the_same_places_again() -> None:
    def step(state: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        grads = jax.grad(loss)(state[: len(state) // 2])
        moments = [0.9 * m + g for m, g in zip(state[len(grads) :], grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(state, moments, strict=False)] + moments

    sizes = [40, 72, 24, 96, 32, 56]
    random = np.random.default_rng(1)
    weights = [random.normal(size=s).astype(np.float32) / 6 for s in itertools.pairwise(sizes)]
    state: Any = weights + [np.zeros_like(w) for w in weights]
    x = random.normal(size=(64, 40)).astype(np.float32)
    function = coop_jax.remat_eager(step)
    places = []
    for _ in range(12):
        state = function(state, x)
        places.append([s.unsafe_buffer_pointer() for s in state])
    assert places[-1] == places[-3]
    assert places[-2] == places[-4]
