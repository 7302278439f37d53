"""Arrays that `remat_eager` keeps to write into: nobody else ever notices."""

from __future__ import annotations

import gc
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import arrays
from tests.testing.comparison import assert_same_bits

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


def as_rows_and_back(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = x
    for n in range(4):
        h = jnp.tanh(h.reshape(32, 128)) * (n + 1)
        h = jnp.sin(h.reshape(64, 64) @ x)
    return h, h.reshape(-1)


def test_views_are_kept_as_well(eager: Any) -> None:
    load, arguments = arrays.importer(jax.devices()[0])
    imported = []

    def counted(*given: Any) -> jax.Array:
        imported.append(given)
        return load(*given)

    function = coop_jax.remat_eager(as_rows_and_back)
    function(X)  # outside the patch: what is lent to the user is imported anew every time
    with mock.patch.object(arrays, "importer", return_value=(counted, arguments)):
        for n in range(6):
            before = len(imported)
            results = function(X * n)
            copies = [np.array(r) for r in results]
            again = function(X * (n + 1))  # beside what the user has
            assert_same_bits(results, tuple(map(jnp.asarray, copies)))
            del results, again
    assert imported
    assert len(imported) == before


def test_a_view_that_was_read_inside_a_call_stays_as_it_is() -> None:
    read: list[np.ndarray] = []

    @coop_jax.remat_eager
    def reading(x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.tanh(x @ x)
            read.append(np.asarray(x.reshape(32, 128)))
        return x.reshape(-1)

    for n in (1, 1, 1, 2, 0, 1):
        reading(X * n)
    copies = [x.copy() for x in read]
    for n in range(3):
        reading(X * n)
    for x, copy in zip(read, copies, strict=False):
        assert_same_bits(x, copy)
    for k in range(4):
        assert_same_bits(copies[k], copies[20 + k])
