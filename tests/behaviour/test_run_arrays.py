"""`run` takes and gives the arrays that `jax.jit` does: structure, dtypes, sharing, runtimes."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits
from tests.testing.semantics import W, X, check, describe, plain

# --- Arguments and results ---


class Pair(NamedTuple):
    first: Any
    second: Any


def test_pytrees_none_and_keyword_arguments() -> None:
    def fn(tree: Any, *, scale: Any, nothing: Any = None) -> Any:
        assert nothing is None
        return {
            "pair": Pair(tree["x"] * scale, None),
            "list": [tree["y"][0] + 1, ()],
            "nothing": nothing,
        }

    tree = {"x": X, "y": (W, None)}
    step = coop_jax.run(fn, budget="1MiB")
    for scale in (2.0, np.float32(3), jnp.ones(32)):
        found = step(tree, scale=scale, nothing=None)
        expected = jax.jit(fn)(tree, scale=scale)
        assert describe(found) == describe(expected)
        assert_same_bits(plain(found), plain(expected))


def test_static_arguments() -> None:
    traced = []

    def fn(x: jax.Array, mode: str, times: int) -> jax.Array:
        traced.append((mode, times))
        for _ in range(times):
            x = jnp.sin(x) if mode == "sin" else jnp.cos(x)
        return x

    step = coop_jax.run(fn, budget="1MiB", static_argnums=(1, 2))
    for mode, times in [("sin", 2), ("cos", 3), ("sin", 2)]:
        expected = functools.reduce(lambda x, _: getattr(jnp, mode)(x), range(times), X)
        np.testing.assert_allclose(step(X, mode, times), expected, rtol=1e-6)
    assert traced == [("sin", 2), ("cos", 3)]
    with pytest.raises((TypeError, ValueError)):
        step(X, ["unhashable"], 1)


def test_new_shapes_and_dtypes_are_new_programs() -> None:
    step = coop_jax.run(lambda x: (x * 2).sum(0), budget="1MiB")
    for x in (X, X[:10], X.astype(np.int32), X.astype(np.float16), X):
        found = step(x)
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found, (x * 2).sum(0), rtol=1e-2, atol=1e-2)


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="donate_argnums"):
        coop_jax.run(lambda x: x, donate_argnums=-2)
    with pytest.raises(ValueError, match="positional"):
        coop_jax.run(lambda x: x, donate_argnums=3)
    with pytest.raises(ValueError, match="static_argnames"):
        coop_jax.run(lambda x: x, static_argnames="y")
    with pytest.raises(TypeError):
        coop_jax.run(lambda x: x)("text")
    with pytest.raises((TypeError, ValueError)):
        coop_jax.run(lambda x, y: x, donate_argnums=0, static_argnums=0)(X, X)
    with pytest.raises(TypeError):
        coop_jax.run(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("donate", [(), 0, (0, 1)])
def test_the_same_array_passed_twice(donate: Any) -> None:
    def fn(a: jax.Array, b: jax.Array) -> Any:
        return a + 1, b * 2

    step = coop_jax.run(fn, budget="1MiB", donate_argnums=donate)
    shared = jnp.asarray(X)
    warns = pytest.warns(UserWarning, match="passed more")
    with warns if donate != () else contextlib.nullcontext():
        found = step(shared, shared)
    assert_same_bits(plain(found), (X + 1, X * 2))
    if donate == ():
        assert_same_bits(plain(shared), X)
    inside = found[0]
    expected = np.array(inside)
    assert_same_bits(plain(step(inside, inside)), (expected + 1, expected * 2))


def test_views_passed_back() -> None:
    step = coop_jax.run(lambda x, flat: (jnp.sin(x), jnp.sin(x).reshape(-1), flat * 2, x + 1))
    both = coop_jax.run(lambda x: (x * 2, (x * 2).reshape(-1)), runtime=coop_jax.Runtime("1MiB"))
    x, flat = both(X)
    again = coop_jax.run(lambda x, flat: (x + 1, flat - 1), runtime=both.runtime, donate_argnums=0)
    found = again(x, flat)
    assert_same_bits(plain(found), (X * 2 + 1, X.reshape(-1) * 2 - 1))
    np.testing.assert_array_equal(flat, X.reshape(-1) * 2)
    one = step(X, X.reshape(-1))
    copies = np.array(one[0]), np.array(one[1])
    assert_same_bits(plain(step(one[0], one[1])), plain(step(*copies)))


def test_inputs_returned_as_they_are() -> None:
    def fn(a: jax.Array, b: jax.Array) -> Any:
        return b, a, a, a.reshape(-1), b + 1

    first = check(fn, X, W, exact=True)
    step = coop_jax.run(fn, budget="1MiB")
    again = step(first[1], first[0])
    assert_same_bits(plain(again), plain(first))
    donated = coop_jax.run(fn, budget="1MiB", donate_argnums=(0, 1))
    assert_same_bits(plain(donated(jnp.asarray(X), jnp.asarray(W))), plain(first))


def test_donated_inputs_returned_as_they_are_survive_many_steps() -> None:
    step = coop_jax.run(lambda a, b: (b, a), budget="1MiB", donate_argnums=(0, 1))
    a, b = jnp.asarray(X), jnp.asarray(W)
    for number in range(6):
        a, b = step(a, b)
        assert_same_bits(plain((a, b)), (W, X) if number % 2 == 0 else (X, W))


def test_constants_returned_and_closed_over() -> None:
    table = np.arange(2048, dtype=np.float32).reshape(32, 64)
    array = jnp.asarray(table) * 2

    def fn(x: jax.Array) -> Any:
        return 3, 2.5, table, array, jnp.zeros((40, 40)), x @ table, x @ array, np.int16(7), True

    check(fn, X)


def test_outputs_that_are_views_of_each_other() -> None:
    def fn(x: jax.Array) -> Any:
        y = jnp.sin(x)
        return y, y.reshape(-1), y[None], y.reshape(32, 64), jnp.squeeze(y[:, None]), y, y.T

    first = check(fn, X)
    expected = np.array(first[0])
    kept = first[1]
    del first
    np.testing.assert_array_equal(kept, expected.reshape(-1))


def test_views_of_donated_and_kept_inputs() -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        flat = x.reshape(-1)
        return jnp.sin(flat), y.reshape(-1) * 2, flat.reshape(x.shape) + 1, y[None]

    expected = [np.asarray(v) for v in fn(jnp.asarray(X), jnp.asarray(X) * 3)]
    for donate in ((), 0, (0, 1)):
        step = coop_jax.run(fn, budget="1MiB", donate_argnums=donate)
        x, y = step(jnp.asarray(X), jnp.asarray(X) * 3)[2:]
        found = step(jnp.asarray(X), jnp.asarray(X) * 3)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        del x, y


def test_numpy_arguments_are_never_written() -> None:
    w, x = W.copy(), X.copy()
    step = coop_jax.run(lambda w, x: (w * 2, x + 1), budget="1MiB", donate_argnums=(0, 1))
    for _ in range(3):
        step(w, x)
    assert_same_bits((w, x), (W, X))


def test_large_arguments_from_numpy() -> None:
    x, w = np.ones((8192, 256), np.float32), np.eye(256, dtype=np.float32)

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.sin(x @ w)
        return x[:2]

    step = coop_jax.run(fn, budget="40MiB")
    expected = plain(step(x, w))
    for _ in range(5):
        assert_same_bits(plain(step(x, w)), expected)
        assert_same_bits(plain(step(jnp.asarray(x), w)), expected)


# --- Dtypes ---


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "int8", "int32", "uint8", "bool"]
)
def test_dtypes(dtype: str) -> None:
    x = jnp.asarray(np.abs(X) * 3).astype(dtype)

    def fn(x: jax.Array) -> Any:
        y = x | x if dtype == "bool" else x * 2 + x
        return y, y.reshape(-1)[::2], jnp.where(x > 0, y, x), (y @ y.T if dtype != "bool" else ~y)

    check(fn, x)


def test_complex_and_fft() -> None:
    def fn(x: jax.Array) -> Any:
        z = jnp.fft.fft(x * (1 + 2j))
        return z, z.real, z.imag, jnp.conj(z) @ z.T, jnp.abs(z).sum()

    check(fn, X)


def test_float8_and_int4_values() -> None:
    def fn(x: jax.Array) -> Any:
        y = x.astype(jnp.float8_e4m3fn)
        z = jnp.clip(x, -7, 7).astype(jnp.int4)
        return y, y.astype(jnp.float32) * 2, z, z.astype(jnp.int32) + 1

    step = coop_jax.run(fn, budget="1MiB")
    found, expected = step(X), jax.jit(fn)(X)
    assert describe(found) == describe(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(
            np.asarray(a).astype(np.float32), np.asarray(b).astype(np.float32)
        )


def test_weak_types_are_those_of_jit() -> None:
    def fn(x: Any, n: Any) -> Any:
        return x * 2, jnp.asarray(1.5) * n, n + 1, 3, jnp.full((40, 40), 2.0), n * jnp.ones((80, 8))

    check(fn, X, 3)
    check(fn, X, 2.5)
    check(fn, X.astype(np.float16), np.int32(3))


def test_typed_keys() -> None:
    def fn(key: jax.Array, x: jax.Array) -> Any:
        first, second = jax.random.split(key)
        noise = jax.random.normal(first, x.shape)
        keep = jax.random.bernoulli(second, 0.5, x.shape)
        return noise + x, keep, second, jax.random.split(first, 100)

    check(fn, jax.random.key(3), X)
    check(lambda k: jax.random.split(k, 7), jax.random.key(1))


def test_raw_keys() -> None:
    def fn(key: jax.Array, x: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return jax.random.normal(first, x.shape) + x, second, jax.random.permutation(second, 64)

    check(fn, jax.random.PRNGKey(3), X)


def test_dropout_is_the_same_when_recomputed() -> None:
    def fn(key: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            h = x
            for k in jax.random.split(key, 4):
                h = jnp.tanh(h @ w) * jax.random.bernoulli(k, 0.8, h.shape)
            return (h**2).sum()

        return jax.value_and_grad(loss)(w)

    check(fn, jax.random.key(0), X, W)


# --- Runtimes ---


def test_one_runtime_for_several_functions() -> None:
    with coop_jax.Runtime("1MiB") as runtime:
        double = coop_jax.run(lambda x: x * 2)
        half = coop_jax.remat_eager(lambda x: x / 2)
        x = double(X)
        assert double.runtime is runtime
        found = half(x)
        assert half.runtime is runtime
    assert_same_bits(plain(found), X)
    assert runtime.stats().operations == 2
    assert runtime.stats().bytes_in_use == 2 * X.nbytes
    named = coop_jax.run(lambda x: x + 1, runtime=runtime)
    named(found)
    assert named.runtime is runtime


def test_arrays_of_one_runtime_in_another() -> None:
    one = coop_jax.run(lambda x: x * 2, budget="1MiB")
    other = coop_jax.run(lambda x: x + 1, budget="1MiB", donate_argnums=0)
    x = one(X)
    y = other(x)
    assert x.is_deleted()
    assert_same_bits(plain(y), X * 2 + 1)
    assert one.runtime.stats().bytes_in_use == 0
    assert other.runtime.stats().bytes_in_use == X.nbytes
    z = jax.jit(lambda y: y * 3)(y)
    assert_same_bits(plain(z), (X * 2 + 1) * 3)


def test_pool_arrays_behave_as_arrays() -> None:
    step = coop_jax.run(lambda x: x * 2, budget="1MiB")
    x = step(X)
    assert isinstance(x, jax.Array)
    np.testing.assert_array_equal(x[3], X[3] * 2)
    np.testing.assert_array_equal(x + x, X * 4)
    np.testing.assert_allclose(jax.grad(lambda x: (x**2).sum())(x), X * 4)
    moved = jax.device_put(x, jax.devices()[0])
    np.testing.assert_array_equal(moved, X * 2)
    donated = jax.jit(lambda a: a + 1, donate_argnums=0)(x)
    np.testing.assert_array_equal(donated, X * 2 + 1)
    assert x.is_deleted()


def test_a_loop_on_a_value_updates_donated_arguments_where_they_are() -> None:
    size = 1 << 14

    def step(p: Any, m: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, p, m = carry
            m = 0.9 * m + jnp.sin(p)
            return i + 1, p - 0.1 * m, m

        _, p, m = jax.lax.while_loop(lambda carry: carry[0] < n, body, (0, p, m))
        return p, m

    budgeted = coop_jax.run(step, budget=7 * 4 * size, donate_argnums=(0, 1))
    expected = jnp.linspace(0, 1, size), jnp.zeros(size)
    p, m = jnp.linspace(0, 1, size), jnp.zeros(size)
    addresses = set()
    for _ in range(4):
        before = p
        p, m = budgeted(p, m, 5)
        assert before.is_deleted()
        addresses.add((p.unsafe_buffer_pointer(), m.unsafe_buffer_pointer()))
        expected = jax.jit(step)(*expected, 5)
        np.testing.assert_allclose(p, expected[0], rtol=1e-4, atol=1e-6)
    assert len(addresses) == 1
