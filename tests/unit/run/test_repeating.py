"""Calls that find everything as an earlier one did: told apart from all others, the same bits."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import argument_reader, arrays
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.planning.pool_state import FOREIGN, Residency
from coop_jax._src.run import api, argument_passing, specialization, tiering
from tests.testing.comparison import assert_same_bits

DEVICE = jax.devices()[0]
SPEC = _core.SlotSpec((16,), *arrays.dlpack_type(jnp.float32))  # type: ignore[misc]
AVAL = jax.core.ShapedArray((16,), jnp.dtype(jnp.float32))


def lent(memory: PoolMemory, offset: int, committed: bool) -> jax.Array:
    """An array in the pool."""
    x = memory.lend(offset, SPEC)
    return arrays.with_aval(x, weak_type=False, committed=committed, shape=x.shape, dtype=x.dtype)


def random_call(
    generator: random.Random, memory: PoolMemory, committed: bool
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Two arrays in or beside a pool as arguments, and others in the pool that are held besides."""
    odd = generator.random()
    inside = [lent(memory, 256 * k, committed != (odd < 0.1)) for k in range(3)]
    free = [jnp.arange(16.0), jnp.arange(16.0) + 1]
    if odd < 0.2:
        free[0] = jnp.ones(15)
    elif odd < 0.3:
        free[0].delete()
    elif odd < 0.4:
        inside.append(lent(memory, 0, committed))
    xs = [generator.choice([*inside, *free]) for _ in range(2)]
    return xs, [x for x in inside if generator.random() < 0.3]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("disposable", [b"\0\0", b"\0\1", b"\1\1"])
def test_states_are_recognised_only_if_they_are_there(disposable: bytes, committed: bool) -> None:
    generator = random.Random(str((disposable, committed)))
    memory, reader = PoolMemory(1 << 16, DEVICE), argument_reader.argument_reader(DEVICE)
    kinds = argument_passing.InputKinds(b"\1\1", disposable, (), ())
    recognizer = _core.CallRecognizer(reader, memory.pool, [AVAL, AVAL], disposable, committed)
    known: list[Residency] = []
    refused: list[Residency] = []
    recognised = 0
    for _ in range(1500):
        xs, held = random_call(generator, memory, committed)
        got = recognizer.recognize(xs)
        recognised += got >= 0
        ordinary = all(x.aval == AVAL and not x.is_deleted() for x in xs)
        if ordinary:
            found = argument_passing.read_inputs(xs, kinds, DEVICE)
            residency = argument_passing.residency_of(found, kinds, (), memory)
            ordinary = found.committed == committed
        if not ordinary:
            assert got == -1
        elif got >= 0 or residency in known:
            shared = found.places[0] == found.places[1] and residency.where[0] == FOREIGN
            assert got == (-1 if shared else known.index(residency))
        elif residency not in refused:
            added = recognizer.add(
                residency.where, residency.offsets, residency.donated, residency.others
            )
            (known if added else refused).append(residency)
        del xs, held
        found = None
    assert recognised > 100
    assert bool(refused) == any(disposable)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("results", [1, 2])
def test_what_was_returned_is_recognised_as_if_it_were_new(results: int, committed: bool) -> None:
    """By one that was told of results and one that was not; the first `results` are donated."""
    generator = random.Random(str((results, committed)))
    memory, reader = PoolMemory(1 << 16, DEVICE), argument_reader.argument_reader(DEVICE)
    donated = (True, results == 2)

    def recognizer() -> _core.CallRecognizer:
        made = _core.CallRecognizer(reader, memory.pool, [AVAL, AVAL], bytes(donated), committed)
        for offsets in ((0, 256), (256, 0)) if results == 2 else ((0, -1), (256, -1)):
            assert made.add((1, int(results == 2)), offsets, donated, ())
        return made

    known, recognised = recognizer(), [0, 0]
    returned: list[jax.Array] = []
    for _ in range(1500):
        batch = jnp.arange(16.0)
        xs = [*returned, batch][:2]
        odd = generator.random()
        if len(xs) < 2 or odd < 0.2:
            others = [lent(memory, k, committed) for k in (0, 256, 512)]
            xs = [generator.choice([*returned, *others, batch, jnp.ones(15)]) for _ in range(2)]
            others.clear()
        elif odd < 0.3:
            xs[0].delete()
        elif odd < 0.4 and not xs[0].is_deleted():
            np.asarray(xs[0])  # JAX keeps what NumPy sees
        elif odd < 0.5:
            xs.reverse()
        got = known.recognize(xs)
        assert got == recognizer().recognize(xs)
        xs.clear()
        if got >= 0:
            recognised[got] += 1
            # Each state returns what is alike in the same place.
            offsets = (0, 256) if got or results == 1 else (256, 0)
            returned = [lent(memory, k, committed) for k in offsets[:results]]
            known.returned(got, returned)
        elif generator.random() < 0.5:
            returned.clear()
        if generator.random() < 0.1:
            returned.reverse()
    assert min(recognised) > 20


def test_what_numpy_sees_is_not_recognised() -> None:
    memory, reader = PoolMemory(1 << 16, DEVICE), argument_reader.argument_reader(DEVICE)
    recognizer = _core.CallRecognizer(reader, memory.pool, [AVAL], b"\1", False)
    assert recognizer.add((1,), (0,), (True,), ())
    x = lent(memory, 0, False)
    assert recognizer.recognize([x]) == 0
    view = np.asarray(x)
    assert recognizer.recognize([x]) == -1
    del view
    assert recognizer.recognize([x]) == 0
    del x
    for other in ([jnp.ones(16), lent(memory, 0, False)], [1.0], [np.ones(16, np.float32)], []):
        assert recognizer.recognize(other) == -1


def test_states_that_need_more_are_not_added() -> None:
    memory, reader = PoolMemory(1 << 16, DEVICE), argument_reader.argument_reader(DEVICE)
    recognizer = _core.CallRecognizer(reader, memory.pool, [AVAL], b"\1", False)
    assert not recognizer.add((2,), (-1,), (True,), ())  # to be moved into the pool
    assert not recognizer.add((1,), (0,), (False,), ())  # given away, but shared
    assert not recognizer.add((0,), (-1,), (False,), ())
    with pytest.raises(ValueError, match="each argument"):
        recognizer.add((), (), (), ())
    with pytest.raises(ValueError, match="one flag"):
        _core.CallRecognizer(reader, memory.pool, [AVAL], b"", False)


State = dict[str, jax.Array]


def step(state: State, x: Any, rate: Any = 0.1) -> tuple[State, jax.Array]:
    def loss(state: State) -> jax.Array:
        return (jnp.tanh(x @ state["w"] + state["b"]) ** 2).sum()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - rate * g, state, grads), value


def first_state() -> State:
    return {"w": jnp.linspace(-1, 1, 64 * 64).reshape(64, 64), "b": jnp.linspace(0, 1, 64)}


BATCH = np.linspace(-2, 2, 32 * 64, dtype=np.float32).reshape(32, 64)


class LongWay:
    """Counts the calls that go the long way; who verifies goes no other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("COOP_JAX_VERIFY", raising=False)
        self.calls = 0
        read = api.read_inputs

        def counting(*args: Any) -> argument_passing.Inputs:
            self.calls += 1
            return read(*args)

        monkeypatch.setattr(api, "read_inputs", counting)

    def of(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """What a call returns, and how often the long way was gone."""
        before = self.calls
        return call(), self.calls - before


@pytest.fixture
def in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments from the sixth call on, for good: how long calls took is nothing to count on."""
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "1")
    monkeypatch.setattr(tiering, "_scale", lambda *_: 1.0)
    monkeypatch.setattr(specialization, "_JUDGED_AFTER", math.inf)


def trained(fn: Any, steps: int, x: Any) -> tuple[State, jax.Array]:
    state = first_state()
    for _ in range(steps):
        state, value = fn(state, x)
    return state, value


@pytest.mark.parametrize("batch", [BATCH, jnp.asarray(BATCH), jax.device_put(BATCH, DEVICE)])
@pytest.mark.parametrize("fusion", [False, True])
def test_steps_go_the_short_way(
    batch: Any, fusion: bool, in_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = LongWay(monkeypatch)
    fn = coop_jax.run(step, donate_argnums=0, fusion=fusion)
    trained(fn, 12, batch)
    (state, value), long = way.of(lambda: trained(fn, 6, batch))
    assert long <= 3  # the first state is new
    assert_same_bits((state, value), trained(coop_jax.run(step, fusion=fusion), 6, batch))
    for _ in range(2):
        old = state
        (state, value), long = way.of(lambda state=state: fn(state, batch))
        assert long == 0
        assert all(x.is_deleted() for x in old.values())
    assert state["w"].committed == value.committed == getattr(batch, "committed", False)
    assert fn.runtime.stats().bytes_in_use == sum(x.nbytes for x in state.values())


@pytest.mark.unless_forced("then nothing runs in segments")
def test_operations_that_are_looked_at_do_not_run_in_segments(
    in_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = LongWay(monkeypatch)
    fn = coop_jax.run(step, donate_argnums=0, fusion=True)
    state, _ = trained(fn, 12, BATCH)
    (signature,) = fn._signatures.values()
    assert signature.tier.segmented is not None
    with jax.debug_nans(True):
        (state, _), long = way.of(lambda: fn(state, BATCH))
        assert long == 1
        with pytest.raises(FloatingPointError, match=r"tanh|dot_general"):
            fn(state, BATCH * np.nan)


def disturbed(name: str, state: State) -> tuple[State, tuple[Any, ...]]:
    """A state in which something is other than in the last call, and what to call with."""
    x: Any = jnp.asarray(BATCH)
    if name == "array elsewhere":
        state = {**state, "w": state["w"] + 0}
    elif name == "given twice":
        state = {**state, "b": state["b"] + 0}
        x = state["w"]
    elif name == "another batch":
        x = x[:16]
    elif name == "batch of NumPy":
        x = BATCH
    elif name == "another type":
        x = x.astype(jnp.bfloat16)
    elif name == "integer rate":
        return state, (x, 1)
    elif name == "weak batch":
        return state, (x, jnp.asarray(0.1))
    elif name == "committed":
        x = jax.device_put(x, DEVICE)
    return state, (x,)


@pytest.mark.parametrize(
    "name",
    [
        "array elsewhere",
        "given twice",
        "another batch",
        "batch of NumPy",
        "another type",
        "integer rate",
        "weak batch",
        "committed",
        "nothing",
    ],
)
def test_whatever_is_other_than_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way = LongWay(monkeypatch)
    fn = coop_jax.run(step, donate_argnums=0, fusion=False)
    state, _ = trained(fn, 6, jnp.asarray(BATCH))
    plain = jax.tree.map(jnp.array, state)
    expected = coop_jax.run(step, fusion=False)(plain, *disturbed(name, plain)[1])
    state, args = disturbed(name, state)
    twice = pytest.warns(UserWarning, match="passed more than once")
    with twice if name == "given twice" else contextlib.nullcontext():
        (got, value), long = way.of(lambda: fn(state, *args))
    assert long == (name != "nothing")
    assert_same_bits((got, value), expected)
    assert value.committed == (name == "committed")


def test_memory_that_another_library_holds() -> None:
    """The short way sees it, too, before anything runs."""
    fn = coop_jax.run(step, donate_argnums=0, fusion=False)
    x = jnp.asarray(BATCH)
    state, _ = trained(fn, 6, x)
    view = np.from_dlpack(state["w"])
    copy = view.copy()
    expected = coop_jax.run(step, fusion=False)(state, x)
    with pytest.warns(UserWarning, match=r"argument 0\['w'\] .* DLPack"):
        got = fn(state, x)
    assert_same_bits(got, expected)
    assert_same_bits(view, copy)
    assert not state["w"].is_deleted()


def test_arguments_of_the_host_are_of_the_same_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of Python and a NumPy scalar give results of other types."""
    way = LongWay(monkeypatch)
    fn = coop_jax.run(lambda x, rate: (x * rate, x + 1), fusion=False)
    x = jnp.linspace(0, 1, 256).astype(jnp.bfloat16).reshape(16, 16)
    for _ in range(4):
        got, long = way.of(lambda: fn(x, 0.1))
    assert long == 0
    assert got[0].dtype == jnp.bfloat16
    for rate in (np.float32(0.1), jnp.float32(0.1), 1, 0.2):
        assert_same_bits(fn(x, rate), coop_jax.run(lambda x, r: (x * r, x + 1))(x, rate))
    gone = jnp.float32(0.1)
    gone.delete()
    fn(x, np.float32(0.1)), fn(x, np.float32(0.1))
    with pytest.raises(RuntimeError, match="was deleted"):
        fn(x, gone)


def test_other_calls_become_known(monkeypatch: pytest.MonkeyPatch) -> None:
    way = LongWay(monkeypatch)
    fn = coop_jax.run(step, donate_argnums=0, fusion=False)
    for batch in (jnp.asarray(BATCH), jax.device_put(BATCH, DEVICE), BATCH):
        state, _ = trained(fn, 5, batch)
        result, long = way.of(lambda state=state, batch=batch: fn(state, batch))
        assert long == 0
        assert result[1].committed == getattr(batch, "committed", False)
        del result, state  # the pool is as empty as at first


def test_a_deleted_argument_is_refused() -> None:
    fn = coop_jax.run(step, donate_argnums=0, fusion=False)
    x = jnp.asarray(BATCH)
    state, _ = trained(fn, 6, x)
    gone = dict(state)
    fn(state, x)
    with pytest.raises(RuntimeError, match="was deleted"):
        fn(gone, x)


def test_results_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is in two states by turns, and each is known."""

    def both(state: State, x: Any) -> tuple[State, jax.Array]:
        state, value = step(state, x)
        return state, x * value

    way = LongWay(monkeypatch)
    fn = coop_jax.run(both, donate_argnums=0, fusion=False)
    x, state = jnp.asarray(BATCH), first_state()
    for _ in range(12):
        state, kept = fn(state, x)
    before = way.calls
    for _ in range(4):
        state, kept = fn(state, x)  # while this is made, the last one is there
    assert way.calls == before
    plain = coop_jax.run(both, fusion=False)
    expected = first_state()
    for _ in range(16):
        expected, last = plain(expected, x)
    assert_same_bits((state, kept), (expected, last))
