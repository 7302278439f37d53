"""Arrays that `remat_eager` keeps to write into: nobody else ever notices."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_same_bits

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import arrays

X = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8


def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = x
    for _ in range(4):
        h = jnp.tanh(h @ x) + 1
    return h, h.sum(0)


@pytest.fixture
def eager() -> Any:
    function = coop_jax.remat_eager(step)
    function(X)
    if not arrays.runs_synchronously(jax.devices()[0]) or function.runtime.verifier() is not None:
        pytest.skip("slots are kept only where launches go past Python")
    return function


def cells(function: Any) -> _core.SlotCells:
    found: _core.SlotCells = function.runtime.memory().cells
    return found


def test_from_call_to_call_the_same_slots_are_written(eager: Any) -> None:
    eager(X)
    gc.collect()
    kept = len(cells(eager))
    assert kept > 0
    for _ in range(3):
        assert_same_bits(eager(X), coop_jax.remat_eager(step)(X))
        assert len(cells(eager)) == kept


def test_results_of_earlier_calls_stay_as_they_are(eager: Any) -> None:
    seen = []
    for n in range(5):
        x = X * (n + 1)
        results = eager(x)
        seen.append((x, results, [np.array(r) for r in results]))
    for x, results, copies in seen:
        assert_same_bits(results, tuple(map(jnp.asarray, copies)))
        assert_same_bits(results, coop_jax.remat_eager(step)(x))


def test_what_was_read_inside_a_call_stays_as_it_is() -> None:
    read: list[np.ndarray] = []

    @coop_jax.remat_eager
    def reading(x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.tanh(x @ x)
            read.append(np.asarray(x))
        return x

    for _ in range(3):
        reading(X)
    copies = [x.copy() for x in read]
    for n in range(3):
        reading(X * n)
    for n, (x, copy) in enumerate(zip(read, copies, strict=False)):
        assert_same_bits(x, copy)
        assert_same_bits(copy, copies[n % 4])


def test_the_user_may_delete_what_jax_lists_as_alive(eager: Any) -> None:
    expected = [np.array(r) for r in eager(X)]
    memory = eager.runtime.memory()
    found = [x for x in jax.live_arrays() if memory.offset_of(x) >= 0]
    assert found
    for x in found:
        x.delete()
    assert_same_bits([np.array(r) for r in eager(X)], expected)


def test_they_go_with_the_runtime() -> None:
    with coop_jax.Runtime("1MiB") as runtime:
        function = coop_jax.remat_eager(step, runtime=runtime)
        function(X)
    base, end = runtime.memory().pool.base, runtime.memory().pool.base + (1 << 20)
    runtime.close()
    del function
    gc.collect()
    assert not [x for x in jax.live_arrays() if x.size and base <= arrays.address_of(x) < end]


def test_an_array_that_was_read_is_not_written_into() -> None:
    # XLA puts elsewhere what it cannot write over because somebody holds it.
    @coop_jax.remat_eager
    def reading(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x)
        assert np.asarray(y).shape == (64, 64)
        return y

    for _ in range(4):
        y = reading(X)
        memory = reading.runtime.memory()
        assert memory.offset_of(y) >= 0
        (block,) = memory.pool.live_blocks()
        assert block[0] == memory.offset_of(y)
        del y
