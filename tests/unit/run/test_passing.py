"""Arrays passed to a call and back: asked in one pass, given back without another array."""

from __future__ import annotations

import collections
import ctypes
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import argument_reader, arrays, holders
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.planning.pool_state import ADOPT, FOREIGN, OUTSIDE, Residency
from coop_jax._src.run import argument_passing
from tests.testing.comparison import assert_same_bits

DEVICE = jax.devices()[0]
SPEC = _core.SlotSpec((16,), *arrays.dlpack_type(jnp.float32))  # type: ignore[misc]


def kinds(count: int, disposable: list[bool]) -> argument_passing.InputKinds:
    return argument_passing.InputKinds(b"\1" * count, bytes(disposable), (), ())


def expected_residency(
    xs: list[jax.Array], places: list[int | None], disposable: list[bool], memory: PoolMemory
) -> Residency:
    """The rules of `residency_of`, one array after the other."""
    count = collections.Counter(places)
    seen: set[int] = set()
    where, offsets, donated = [], [], []
    for place, mine in zip(places, disposable, strict=True):
        offset = -1 if place is None else memory.pool.offset_of(place)
        mine = mine and place is not None and count[place] == 1
        if offset >= 0 and offset not in seen:
            seen.add(offset)
            where.append(FOREIGN)
            offsets.append(offset)
            donated.append(mine and memory.pool.live_count(offset) == 1)
        else:
            where.append(ADOPT if mine and offset < 0 else OUTSIDE)
            offsets.append(-1)
            donated.append(mine and offset < 0)
    others = tuple(b for b in memory.pool.live_blocks() if b[0] not in seen)
    return Residency(tuple(where), tuple(offsets), tuple(donated), others)


@pytest.mark.parametrize("seed", range(20))
def test_where_arrays_lie(seed: int) -> None:
    generator = random.Random(seed)
    memory = PoolMemory(1 << 16, DEVICE)
    lent = [memory.lend(256 * k, SPEC) for k in range(12)]
    again = [memory.lend(256 * k, SPEC) for k in range(3)]  # held twice
    free = [jnp.arange(16.0) + k for k in range(6)]
    xs = [generator.choice([*lent[2:], *again, *free, lent[0]]) for _ in range(9)]
    disposable = [generator.random() < 0.7 for _ in xs]
    found = argument_passing.read_inputs(xs, kinds(len(xs), disposable), DEVICE)
    assert found.arrays == xs
    assert found.places == [arrays.address_of(x) for x in xs]
    got = argument_passing.residency_of(found, kinds(len(xs), disposable), (), memory)
    assert got == expected_residency(xs, found.places, disposable, memory)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("refer", [np.asarray, np.from_dlpack, memoryview, jax.dlpack.from_dlpack])
def test_memory_that_others_see_is_not_disposed_of(
    refer: Any, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where jaxlib keeps its count of them somewhere unknown."""
    memory = PoolMemory(1 << 16, DEVICE)
    xs = [memory.lend(0, SPEC), memory.lend(256, SPEC)]
    if hidden:
        reader = argument_reader.argument_reader.__wrapped__
        monkeypatch.setattr(holders, "count_of_holders", lambda device: None)
        monkeypatch.setattr(argument_reader, "argument_reader", reader)
    view = refer(xs[0])
    for expected in (False, True):
        found = argument_passing.read_inputs(xs, kinds(2, [True, True]), DEVICE)
        got = argument_passing.residency_of(found, kinds(2, [True, True]), (), memory)
        assert got.donated == (expected, True)
        view = None
    assert view is None


def test_what_a_function_closes_over_is_not_disposed_of() -> None:
    memory = PoolMemory(1 << 16, DEVICE)
    inside, outside, other = memory.lend(0, SPEC), jnp.ones(16), memory.lend(256, SPEC)
    xs = [inside, outside, other]
    found = argument_passing.read_inputs(xs, kinds(3, [True] * 3), DEVICE)
    got = argument_passing.residency_of(found, kinds(3, [True] * 3), [inside, outside], memory)
    assert got.donated == (False, False, True)
    assert got.where == (FOREIGN, OUTSIDE, FOREIGN)


def test_everyday_arrays_are_told_from_others() -> None:
    deleted = jnp.ones(4)
    deleted.delete()
    leaves: list[Any] = [jnp.ones(4), np.ones(4, np.float32), 1.0, jax.random.key(0), jnp.ones(3)]
    avals = [jnp.ones(4).aval] * 5
    reader = argument_reader.argument_reader(DEVICE)
    assert reader.unlike(leaves, avals) == [1, 2, 3, 4]
    assert reader.unlike([deleted], avals[:1]) == [0]
    put = jax.device_put(jnp.ones(4), DEVICE)
    assert reader.unlike([jnp.ones(4), put], avals[:2], False) == [1]
    assert reader.unlike([jnp.ones(4), put], avals[:2], True) == [0]
    with pytest.raises(ValueError, match="one abstract value"):
        reader.unlike(leaves, avals[:2])
    with pytest.raises(ValueError, match="one flag"):
        reader.read(leaves, b"")


def step(state: Any, x: Any) -> Any:
    w, m = state
    g = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)
    m = 0.9 * m + g
    return (w - 0.01 * m, m), (g * g).sum()


def start() -> Any:
    return jnp.eye(64) / 4, jnp.zeros((64, 64))


X = np.arange(8 * 64, dtype=np.float32).reshape(8, 64) / 500


@pytest.mark.parametrize("committed", [False, True])
def test_donated_state_stays_where_it_is_and_is_held_once(committed: bool) -> None:
    budgeted = coop_jax.run(step, donate_argnums=0)
    state, expected = start(), start()
    if committed:
        state = jax.device_put(state, DEVICE)
    places = []
    for _ in range(5):
        state, loss = budgeted(state, X)
        expected, other = jax.jit(step)(expected, X)
        assert all(a.committed == committed for a in (*state, loss))
        pool = budgeted.runtime.memory().pool
        offsets = [pool.offset_of(arrays.address_of(a)) for a in state]
        assert [pool.live_count(o) for o in offsets] == [1, 1]
        places.append(offsets)
    assert places[-1] == places[-2]
    np.testing.assert_allclose(loss, other, rtol=1e-5)
    del state
    assert budgeted.runtime.stats().bytes_in_use == 0


def test_a_result_over_a_donated_argument_returned_twice_is_two_arrays() -> None:
    def twice(w: jax.Array) -> Any:
        new = w * 2
        return new, new

    budgeted = coop_jax.run(twice, donate_argnums=0)
    w: Any = jnp.ones((32, 32))
    for _ in range(3):
        first, second = budgeted(w)
        assert first is not second
        first.delete()
        assert float(second[0, 0]) > 0
        w = second
    assert float(w[0, 0]) == 8


def test_an_argument_returned_as_it_is_is_another_array() -> None:
    budgeted = coop_jax.run(lambda x, y: (x, x + y))
    x, y = jnp.ones((32, 32)), jnp.ones((32, 32))
    for _ in range(3):
        same, _ = budgeted(x, y)
        assert same is not x
        assert_same_bits(same, x)


def test_calls_of_other_kinds_in_between() -> None:
    """What the last call was is remembered: it must be told from others."""
    budgeted = coop_jax.run(lambda x, *, scale: x * scale)
    for x in (jnp.ones(8), jnp.ones(9), np.ones(8, np.float32), jnp.ones(8, jnp.int32), 2.0):
        for scale in (2, 2.0, jnp.float32(2), np.ones((), np.int32)):
            found, wanted = budgeted(x, scale=scale), jax.jit(lambda x, s: x * s)(x, scale)
            assert found.aval == wanted.aval
            assert_same_bits(found, wanted)


@pytest.mark.parametrize(
    "value",
    [
        np.ones((3, 4), np.float32)[:, ::2],
        np.arange(12, dtype=np.int32).reshape(3, 4)[::-1],
        np.ones(2),
        np.ones(3, np.int64),
        np.float32(3),
        3,
        np.zeros((0, 3), np.float32),
        np.ones(3, bool),
        np.ones(2, jnp.bfloat16),
    ],
)
def test_values_of_the_host(value: Any) -> None:
    found, wanted = argument_reader.from_host(value, DEVICE), jax.device_put(value, DEVICE)
    assert found.aval == wanted.aval
    assert_same_bits(found, wanted)


def test_a_numpy_argument_may_change_after_the_call() -> None:
    budgeted = coop_jax.run(lambda x: (x, x * 2))
    x = np.ones((64, 64), np.float32)
    same, twice = budgeted(x)
    x[:] = 7
    assert float(same[0, 0]) == 1
    assert float(twice[0, 0]) == 2


def test_an_argument_that_was_deleted() -> None:
    budgeted = coop_jax.run(step, donate_argnums=0)
    state, _ = budgeted(start(), X)
    budgeted(state, X)
    with pytest.raises(RuntimeError, match="was deleted"):
        budgeted(state, X)


def in_the_middle(runtime: coop_jax.Runtime, donate: bool) -> tuple[jax.Array, Any]:
    """An array in the middle of a pool of 1 MiB, and a function that needs more than half of it."""
    offset, wanted = 1 << 19, np.arange(2048.0, dtype=np.float32)
    spec = _core.SlotSpec((2048,), *arrays.dlpack_type(jnp.float32))  # type: ignore[misc]
    w = runtime.memory().lend(offset, spec)
    ctypes.memmove(arrays.address_of(w), wanted.ctypes.data, wanted.nbytes)

    def step(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return 2 * w, jnp.tile(w, 80)

    return w, coop_jax.run(step, donate_argnums=(0,) if donate else (), runtime=runtime)


def test_a_donated_argument_that_is_in_the_way_is_moved() -> None:
    runtime = coop_jax.Runtime("1MiB")
    w, step = in_the_middle(runtime, donate=True)
    wanted = np.array(w)
    doubled, tiled = step(w)
    assert w.is_deleted()
    np.testing.assert_array_equal(doubled, 2 * wanted)
    np.testing.assert_array_equal(tiled, np.tile(wanted, tiled.size // wanted.size))
    assert runtime.stats().peak_bytes <= 1 << 20
    del doubled, tiled
    runtime.memory().pool.drain_freed()
    assert not runtime.memory().pool.live_blocks()


def test_what_the_caller_keeps_is_not_moved_and_the_error_leaves_it() -> None:
    runtime = coop_jax.Runtime("1MiB")
    w, step = in_the_middle(runtime, donate=False)
    wanted = np.array(w)
    with pytest.raises(coop_jax.BudgetExceededError, match=r"smallest budget that would do: \d"):
        step(w)
    np.testing.assert_array_equal(w, wanted)


def test_where_moving_does_not_help_either_the_argument_stays() -> None:
    runtime = coop_jax.Runtime("1MiB")
    w, _ = in_the_middle(runtime, donate=True)
    wanted, place = np.array(w), arrays.address_of(w)
    step = coop_jax.run(lambda w: jnp.tile(w, 200), donate_argnums=0, runtime=runtime)
    with pytest.raises(coop_jax.BudgetExceededError, match=r"smallest budget that would do: \d"):
        step(w)
    assert arrays.address_of(w) == place
    np.testing.assert_array_equal(w, wanted)
