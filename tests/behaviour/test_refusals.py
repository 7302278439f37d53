"""What cannot run says so, with its source line, before anything ran; debugging switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

import coop_jax
from tests.testing.comparison import assert_same_bits
from tests.testing.faults import Operations
from tests.testing.processes import TWO_DEVICES, output_of

FRONT_ENDS = ["run", "remat_eager"]
both_front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)
X = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)


def _make(front_end: str, fn: Any, budget: Any = "1MiB") -> Any:
    return getattr(coop_jax, front_end)(fn, budget=budget)


def _mapped(x: jax.Array) -> jax.Array:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    return jax.shard_map(
        lambda x: jax.lax.psum(x, "i"),
        mesh=mesh,
        in_specs=spec,
        out_specs=jax.sharding.PartitionSpec(),
    )(x)


def _spread(x: jax.Array) -> jax.Array:
    return jax.pmap(lambda row: row * 2)(x[None])[0]


def _straight(f: Callable[[Any], Any], x: jax.Array) -> jax.Array:
    return f(jnp.sin(x))


def _in_jit(f: Callable[[Any], Any], x: jax.Array) -> jax.Array:
    return jax.jit(lambda x: jnp.cos(f(jnp.sin(x))))(x)


def _in_branch(f: Callable[[Any], Any], x: jax.Array) -> jax.Array:
    y = jnp.sin(x)
    return jax.lax.cond(x.sum() > 1e9, f, lambda x: x, y)


def _in_loop(f: Callable[[Any], Any], x: jax.Array) -> jax.Array:
    y = jnp.sin(x)
    return jax.lax.while_loop(lambda c: c[1] < 0, lambda c: (f(c[0]), c[1] + 1), (y, 0))[0]


def _in_scan_in_branch(f: Callable[[Any], Any], x: jax.Array) -> jax.Array:
    def body(c: jax.Array, i: jax.Array) -> Any:
        return _in_branch(f, c), i

    return jax.lax.scan(body, x, jnp.arange(3))[0]


@both_front_ends
@pytest.mark.parametrize("over", [_mapped, _spread])
@pytest.mark.parametrize("where", [_straight, _in_jit, _in_branch, _in_loop, _in_scan_in_branch])
def test_mapping_over_devices(
    front_end: str, over: Any, where: Any, operations: Operations
) -> None:
    step = _make(front_end, lambda x: where(over, x))
    with pytest.raises(NotImplementedError, match=r"'shard_map' at .*test_refusals.py:\d+"):
        step(X)
    if front_end == "run":
        assert operations.count == 0
    fine = _make(front_end, lambda x: where(jnp.cos, x))
    np.testing.assert_allclose(fine(X), where(jnp.cos, X), rtol=1e-5, atol=1e-5)


@both_front_ends
def test_collectives_without_a_mesh(front_end: str) -> None:
    for collective in (
        lambda x: jax.lax.psum(x, "i"),
        lambda x: x * jax.lax.axis_index("i"),
        lambda x: jax.lax.all_gather(x, "i"),
        lambda x: jax.lax.ppermute(x, "i", [(0, 0)]),
    ):
        with pytest.raises(NameError, match="unbound axis name"):
            _make(front_end, collective)(X)


@both_front_ends
def test_collectives_over_a_vmapped_axis_are_fine(front_end: str) -> None:
    def fn(x: jax.Array) -> Any:
        def each(row: jax.Array) -> Any:
            mean = jax.lax.pmean(row, "rows")
            return row - mean, jax.lax.pmax(row, "rows"), jax.lax.axis_index("rows")

        return jax.vmap(each, axis_name="rows")(x)

    found, expected = _make(front_end, fn)(X), jax.jit(fn)(X)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@both_front_ends
def test_a_tracer_that_leaked(front_end: str) -> None:
    leaked = []
    jax.jit(lambda x: leaked.append(x))(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError, match=r"leaked|escape"):
        _make(front_end, lambda x: x + leaked[0])(X)
    kept = []

    def fn(x: jax.Array) -> jax.Array:
        kept.append(jnp.sin(x))
        return kept[-1] * 2

    step = _make(front_end, fn)
    step(X)
    with pytest.raises((jax.errors.UnexpectedTracerError, RuntimeError)):
        jnp.cos(kept[0])
    np.testing.assert_allclose(step(X), np.sin(X) * 2, rtol=1e-5)


def _doubled(interpret: bool) -> Callable[[Any], Any]:
    def kernel(source: Any, target: Any) -> None:
        target[...] = source[...] * 2

    def fn(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pallas.pallas_call(kernel, out_shape=shape, interpret=interpret)(jnp.sin(x))

    return fn


@both_front_ends
def test_pallas_where_there_is_a_rule(front_end: str) -> None:
    np.testing.assert_allclose(_make(front_end, _doubled(True))(X), np.sin(X) * 2, rtol=1e-5)


@both_front_ends
def test_pallas_where_there_is_none(front_end: str, operations: Operations) -> None:
    step = _make(front_end, _doubled(False))
    with pytest.raises(ValueError, match="interpret mode") as caught:
        step(X)
    notes = "\n".join(caught.value.__notes__)
    assert "pallas_call" in notes
    if front_end == "run":
        assert "test_refusals.py:" in notes
        assert operations.count == 0
    assert step.runtime.stats().bytes_in_use == 0


# --- Several devices ---

_DEVICES = """
import coop_jax, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
first, second = jax.devices()
mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
x = np.ones((64, 32), np.float32)
split = NamedSharding(mesh, PartitionSpec("i"))
wrong = {
    "split": jax.device_put(x, split),
    "copied": jax.device_put(x, NamedSharding(mesh, PartitionSpec())),
    "elsewhere": jax.device_put(x, second),
    "keys": jax.device_put(jax.random.split(jax.random.key(0), 9), second),
}

def use(x):
    return jax.random.split(x[0]) if x.dtype != jnp.float32 else x * 2

def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(w in str(error) for w in words), error
        return
    raise SystemExit(f"not refused: {words}")

for front_end in ("run", "remat_eager"):
    make = getattr(coop_jax, front_end)
    for name, y in wrong.items():
        step = make(use, budget="1MiB")
        refused(lambda: step(y), ValueError, "cpu:1", "cpu:0 alone", "device=")
        refused(make(lambda: use(y), budget="1MiB"), ValueError, "cpu:1", "cpu:0 alone")
        refused(lambda: make(lambda x: (use(y), x), budget="1MiB")(x), ValueError, "cpu:1")
        assert not y.is_deleted()
    donating = coop_jax.run(use, budget="1MiB", donate_argnums=0)
    refused(lambda: donating(wrong["elsewhere"]), ValueError, "cpu:1")
    assert not wrong["elsewhere"].is_deleted()
    spread = make(lambda x: jax.device_put(x * 2, split) + 1, budget="1MiB")
    refused(lambda: spread(x), NotImplementedError, "device_put", "several")

    # On the device that it is given; an array that JAX may move comes along.
    there = make(lambda x: (x @ x.T, x * 2), budget="1MiB", device=second)
    results = there(wrong["elsewhere"])
    assert all(r.devices() == {second} and r.committed for r in results)
    with jax.default_device(second):
        free = jnp.full((64, 32), 3.0)
    assert free.devices() == {second} and not free.committed
    moved = make(lambda a: a * 2 + free, budget="1MiB")(free)
    assert moved.devices() == {first}
    np.testing.assert_array_equal(moved, np.full((64, 32), 9.0, np.float32))
print("fine")
"""


def test_arrays_on_other_devices() -> None:
    assert output_of(_DEVICES, environment=TWO_DEVICES) == "fine\n"


# --- Debugging switches ---


def _step(w: jax.Array, x: jax.Array) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        h = x
        for _ in range(5):
            h = jax.jit(jnp.tanh)(h @ w) + jnp.sin(h)
        return (h**2).mean()

    return jax.value_and_grad(loss)(w)


W = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32) / 6


@both_front_ends
def test_without_jit(front_end: str) -> None:
    expected = _make(front_end, _step)(W, X)
    with jax.disable_jit():
        step = _make(front_end, _step)
        for _ in range(2):
            found = step(W, X)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)
    assert_same_bits(_make(front_end, _step)(W, X), expected)


@both_front_ends
def test_checking_for_nans(front_end: str) -> None:
    with jax.debug_nans(True):
        step = _make(front_end, lambda x: jnp.log(jnp.sin(x)) * 2)
        with pytest.raises(FloatingPointError, match="nan"):
            step(X)
        assert step.runtime.stats().bytes_in_use == 0
        good = np.full((64, 32), 0.5, np.float32)
        np.testing.assert_allclose(step(good), np.log(np.sin(good)) * 2, rtol=1e-5)
    assert np.isnan(np.asarray(step(X))).any()


def test_checking_for_nans_leaves_copies_where_they_should_be() -> None:
    step = coop_jax.run(lambda x, y: (x, jnp.log(y)), budget="1MiB", donate_argnums=(0, 1))
    shape = (17, 31, 3)  # of no other test: what runs on it is compiled here
    with jax.debug_nans(True):
        for _ in range(2):
            step(jnp.ones(shape), jnp.ones(shape))
        with pytest.raises(FloatingPointError, match=r"nan.* log"):
            step(jnp.ones(shape), jnp.full(shape, -1.0))
    same, more = step(jnp.ones(shape), jnp.ones(shape))
    np.testing.assert_array_equal(same - 1, more)


@both_front_ends
def test_checking_for_leaks(front_end: str) -> None:
    expected = _make(front_end, _step)(W, X)
    with jax.checking_leaks():
        step = _make(front_end, _step)
        for _ in range(2):
            assert_same_bits(step(W, X), expected)
