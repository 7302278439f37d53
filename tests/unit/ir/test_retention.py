"""What is kept of shapes and functions that are gone: nothing that `jax.clear_caches` leaves."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.ir import kernels
from coop_jax._src.util.recent import Recent
from tests.testing.comparison import assert_same_bits

FRONT_ENDS: list[Callable[..., Any]] = [coop_jax.run, coop_jax.remat_eager]
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)


def loss(w: Any, x: Any) -> Any:
    for _ in range(2):
        x = jnp.tanh(x @ w)
    return (x**2).mean()


W = np.eye(16, dtype=np.float32)


def rows(n: int) -> np.ndarray:
    return np.linspace(-1, 1, 16 * n, dtype=np.float32).reshape(n, 16)


def live_executables() -> int:
    gc.collect()
    return len(jax.devices()[0].client.live_executables())  # type: ignore[attr-defined]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recent[Any]]:
    """The device's kernels that were used last, from none, at most 8 of them."""
    jax.clear_caches()
    recent = kernels.cache_for(jax.devices()[0])._kernels.recent
    bound, recent.bound = recent.bound, 8
    yield recent
    recent.cache_clear()
    recent.bound = bound


@front_ends
def test_clearing_the_caches_of_jax_clears_all_of_them(front_end: Any) -> None:
    def some(first: int) -> int:
        step = front_end(jax.grad(loss), budget="1MiB")
        for n in range(3):
            step(W, rows(first + n))
        del step
        jax.clear_caches()
        return live_executables()

    before = some(20)
    assert some(30) == before
    assert some(40) == before


@front_ends
def test_ever_new_shapes_leave_no_more_than_a_bound(few: Recent[Any], front_end: Any) -> None:
    counts = []
    for n in range(5, 25):
        front_end(lambda x: jnp.sin(x) @ W, budget="1MiB")(rows(n))
        counts.append(live_executables())
    assert len(few) <= few.bound == 8
    assert max(counts[10:]) <= max(counts[:10]) + 6


@front_ends
def test_what_is_compiled_goes_with_its_kernel(few: Recent[Any], front_end: Any) -> None:
    """At once: in cycles it stays until Python looks for those, hundreds of executables later."""
    for n in range(5, 10):
        front_end(lambda x: jnp.sin(x) @ W, budget="1MiB")(rows(n))
    before = live_executables()
    gc.disable()
    try:
        for n in range(10, 30):
            front_end(lambda x: jnp.sin(x) @ W, budget="1MiB")(rows(n))
        after = len(jax.devices()[0].client.live_executables())  # type: ignore[attr-defined]
    finally:
        gc.enable()
    assert after <= before + 6


@pytest.mark.parametrize("front_end", [*FRONT_ENDS, coop_jax.jit])
def test_nothing_waits_for_the_garbage_collector(front_end: Any) -> None:
    def some() -> None:
        step = front_end(jax.value_and_grad(loss), budget="1MiB")
        for n in (20, 21, 20, 20, 20):
            step(W, rows(n))

    some()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        some()
        gc.collect()
        ours = {type(x) for x in gc.garbage if type(x).__module__.startswith("coop_jax")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours


def test_a_function_forgets_the_signatures_of_long_ago() -> None:
    step = coop_jax.run(lambda x: x * 2)
    step._signatures.bound = 4
    for n in range(1, 12):
        np.testing.assert_array_equal(step(rows(n)), 2 * rows(n))
    assert len(step._signatures) == 4
    step(rows(3))
    assert step._signatures.bound == 8  # it was asked for again


def test_what_a_plan_uses_survives_and_is_found(few: Recent[Any]) -> None:
    step = coop_jax.run(jax.grad(loss), budget="1MiB")
    expected = step(W, rows(7))
    for n in range(8, 14):
        coop_jax.run(loss, budget="1MiB")(W, rows(n))
    before = step.runtime.stats().compilations
    assert_same_bits(step(W, rows(7)), expected)
    another = coop_jax.run(jax.grad(loss), budget="1MiB")
    assert_same_bits(another(W, rows(7)), expected)
    assert step.runtime.stats().compilations == before


@front_ends
def test_what_was_forgotten_is_compiled_again(few: Recent[Any], front_end: Any) -> None:
    step = front_end(jax.grad(loss), budget="1MiB")
    expected = jax.device_get(step(W, rows(7)))
    jax.clear_caches()
    gc.collect()
    before = kernels.cache_for(jax.devices()[0]).compilations
    assert_same_bits(step(W, rows(7)), expected)
    assert kernels.cache_for(jax.devices()[0]).compilations > before


def test_a_program_that_needs_more_than_the_bound_raises_it(few: Recent[Any]) -> None:
    def program(x: Any) -> Any:
        for n in range(12):
            x = x + jnp.ones((n + 2, 16)).sum()
        return x

    step = coop_jax.remat_eager(program)
    cache = kernels.cache_for(jax.devices()[0])
    for _ in range(4):
        expected = step(rows(9))
    before = cache.compilations
    assert_same_bits(step(rows(9)), expected)
    assert cache.compilations == before


@front_ends
def test_clearing_during_a_call(front_end: Any) -> None:
    def step(x: Any) -> Any:
        for n in range(3):
            jax.clear_caches()
            x = jnp.sin(x) * (n + 1)
        return x

    budgeted = front_end(step, budget="1MiB")
    x = np.linspace(-1, 1, 4096, dtype=np.float32)
    assert_same_bits(budgeted(x), budgeted(x))


def test_a_function_is_traced_again() -> None:
    factor = 2

    def step(x: Any) -> Any:
        return x * factor

    budgeted = coop_jax.run(step)
    budgeted(np.ones(4))
    factor = 3
    assert budgeted(np.ones(4))[0] == 2
    jax.clear_caches()
    assert budgeted(np.ones(4))[0] == 3


def test_recent_is_by_use() -> None:
    recent: Recent[int] = Recent(2, most=4)
    recent["a"], recent["b"] = 1, 2
    assert recent.get("a") == 1
    recent["c"] = 3
    assert recent.get("b") is None
    assert recent.bound == 4
    recent["b"] = 2
    assert [recent.get(key) for key in "abc"] == [1, 2, 3]
    recent["d"], recent["e"] = 4, 5
    assert recent.get("a") is None
    assert recent.bound == 4  # the most
    assert len(copy.deepcopy(recent)) == 0
