"""Values of an eager call are arrays to their user: what JAX's own tests found missing.

Each is compared with plain JAX, with everything evicted before every operation.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits

X = np.arange(128, dtype=np.float32).reshape(4, 32)


def in_eager(fn: Callable[..., Any], *args: Any) -> Any:
    """Runs it in an eager call that evicts all it can; gives what it returned."""
    found: list[Any] = []
    call = coop_jax.remat_eager(
        lambda *xs: found.append(fn(*xs)),
        budget="1MiB",
        policy=coop_jax.Policy("coop", evict_always=True),
    )
    call(*args)
    return found[0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sharding,
        lambda x: x.device,
        lambda x: x.devices(),
        lambda x: x.committed,
        lambda x: jax.ShapeDtypeStruct.like(x) == jax.eval_shape(lambda y: y, x),
        lambda x: (x.is_fully_addressable, x.is_fully_replicated, x.is_ready(), x.is_deleted()),
        lambda x: [(s.device, s.index, s.data.tolist()) for s in x.addressable_shards],
        lambda x: [s.data.tolist() for s in x.global_shards],
        lambda x: x.addressable_data(0).tolist(),
        lambda x: x.on_device_size_in_bytes(),
        lambda x: x.format,
        lambda x: bytes(x),
        lambda x: x.tobytes(),
        lambda x: x[0].tolist(),
        lambda x: x[1, 2].item(),
        lambda x: np.from_dlpack(x).tolist(),
        lambda x: jax.dlpack.from_dlpack(x).tolist(),
        lambda x: pickle.loads(pickle.dumps(x)).tolist(),
        lambda x: (type(jax.device_get(x)), jax.device_get(x).tolist()),
        lambda x: [type(leaf) for leaf in jax.tree.leaves(jax.device_get({"a": x, "b": [x]}))],
        lambda x: np.asarray(x).flags.writeable,
        lambda x: np.array(x).flags.writeable,
        lambda x: np.asarray(x, np.float64).dtype,
        lambda x: (repr(x), str(x), repr(jnp.sum(x) * 2)),
        lambda x: repr(jnp.asarray(3.0) * 2),
    ],
)
def test_an_eager_value_answers_as_an_array_does(ask: Callable[[Any], Any]) -> None:
    def after_work(x: jax.Array) -> Any:
        y = jnp.sin(x)
        jnp.cos(y)  # evicts y
        return ask(y)

    assert in_eager(after_work, X) == after_work(jnp.asarray(X))


def test_a_copy_to_the_host_outlives_the_memory_it_was_read_from() -> None:
    def copies(x: jax.Array) -> list[np.ndarray[Any, Any]]:
        y = x * 2
        kept = [
            np.asarray(y),
            np.from_dlpack(y),
            jax.device_get(y),
            np.asarray(y.addressable_data(0)),
        ]
        del y
        for _ in range(4):
            jnp.full_like(x, 7.0) + x  # other values take the place of y
        return kept

    for copied in in_eager(copies, X):
        assert_same_bits(copied, X * 2)


def test_a_deleted_value_is_gone_and_its_memory_with_it() -> None:
    def delete(x: jax.Array) -> list[str]:
        said = []
        key = jax.random.key(0)
        for k in range(40):
            y = x + k
            y.delete()
            assert y.is_deleted()
        key.delete()
        uses: list[Callable[[], Any]] = [
            lambda: jnp.sum(y),
            lambda: np.asarray(y),
            lambda: repr(y),
            lambda: y[0],
            lambda: jax.random.normal(key),
        ]
        for use in uses:
            with pytest.raises(RuntimeError, match="deleted") as caught:
                use()
            said.append(str(caught.value))
        return said

    big = np.ones((64, 64), np.float32)
    found: list[Any] = []
    call = coop_jax.remat_eager(lambda x: found.append(delete(x)), budget="128KiB")
    call(big)
    assert found[0][0] == "Array has been deleted with shape=float32[64,64]."
    assert call.runtime.stats().evictions == 0
    delete(jnp.asarray(big))


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.4.0", reason="NumPy does not ask arrays for it"
)
def test_an_eager_value_given_for_a_dtype_is_warned_of() -> None:
    with pytest.warns(DeprecationWarning, match="conversion of an array to a dtype") as seen:
        assert in_eager(lambda x: np.dtype(x + 1), X) == X.dtype
    assert seen[0].filename == __file__


def test_there_is_no_address() -> None:
    with pytest.raises(NotImplementedError, match="no lasting address"):
        in_eager(lambda x: (x + 1).unsafe_buffer_pointer(), X)


@pytest.mark.parametrize("jitted", [False, True])
def test_tangents_of_integers_are_what_they_are_in_jax(jitted: bool) -> None:
    def tangents() -> Any:
        def multiply(x: Any, n: Any) -> Any:
            return x * n

        f = jax.jit(multiply) if jitted else multiply
        of_scalars = jax.grad(f, argnums=(0, 1), allow_int=True)(2.0, 3)[1]
        _, of_identity = jax.jvp(lambda n: n, (1,), (np.zeros((), jax.dtypes.float0),))
        _, pull = jax.vjp(lambda n: jnp.full((3, 40), n), 3)
        return (
            [type(t) for t in (of_scalars, of_identity)],
            [t.dtype for t in pull(np.zeros((3, 40), jax.dtypes.float0))],
            of_scalars == np.zeros((), jax.dtypes.float0),
        )

    assert in_eager(tangents) == tangents()


@pytest.mark.parametrize("loop", ["scan", "while", "cond"])
@pytest.mark.parametrize("width", [3, 200])
def test_compiled_programs_may_close_over_eager_values(loop: str, width: int) -> None:
    def grads(start: Any) -> Any:
        y = jnp.sin(start)  # closed over by what follows

        @jax.custom_jvp
        def f(x: Any) -> Any:
            return 3 * x * jnp.sum(y)

        f.defjvp(lambda primals, tangents: (f(*primals), 2 * tangents[0] * y[0]))

        def looped(x: Any) -> Any:
            if loop == "scan":
                return jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
            if loop == "while":
                return jax.lax.fori_loop(0, 2, lambda _, c: f(c), x)
            return jax.lax.cond(x > 0, f, lambda x: x - y[1], x)

        ones = jnp.ones(3)
        outer: list[Callable[[Any], Any]] = [
            lambda x: jax.vmap(jax.jit(looped))(x).sum(),
            lambda x: jax.jit(jax.vmap(looped))(x).sum(),
            jax.jit(lambda x: jax.vmap(looped)(x).sum()),
        ]
        forward = [jax.jvp(g, (ones,), (ones,)) for g in outer]
        backward = [] if loop == "while" else [jax.grad(g)(ones) for g in outer]
        return [np.asarray(v) for v in jax.tree.leaves((forward, backward))]

    start = np.linspace(0.1, 0.2, width, dtype=np.float32)
    for found, expected in zip(in_eager(grads, start), grads(jnp.asarray(start)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.unless_forced("asserts peaks or counts, which evictions change")
def test_programs_that_close_over_eager_values_do_not_keep_them() -> None:
    def loop(x: jax.Array) -> int:
        for k in range(40):
            y = x + k

            @jax.jit
            def inner(z: jax.Array, y: jax.Array = y) -> jax.Array:
                return z @ y.T

            jax.grad(lambda z, inner=inner: inner(z).sum())(x)
        return 0

    big = np.ones((64, 64), np.float32)  # 16 KiB; forty of them do not fit
    call = coop_jax.remat_eager(loop, budget="320KiB")
    assert call(big) == 0
    assert call.runtime.stats().evictions == 0


def test_a_tracer_that_escaped_is_named_as_jax_names_it() -> None:
    kept: list[Any] = []

    def leak(x: Any) -> Any:
        kept.append(x)
        return x * 2

    def use(x: Any) -> Any:
        jax.grad(leak)(x)
        return x + kept[-1]

    with pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer"):
        in_eager(jax.grad(use), np.float32(2))


@pytest.mark.parametrize("inside", [False, True])
def test_disabling_jit_does_not_take_values_out_of_the_pool(inside: bool) -> None:
    def loop(x: jax.Array) -> Any:
        total, sums = jax.lax.scan(lambda c, row: (c + row, jnp.sin(c + row)), x[0], x)
        return total, sums[::-1], float(sums.sum())

    def disabled(x: jax.Array) -> Any:
        with jax.disable_jit():
            return loop(x)

    rows = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    budget, policy = 64 << 10, coop_jax.Policy("coop", evict_always=True)
    eager = coop_jax.remat_eager(disabled if inside else loop, budget=budget, policy=policy)
    with jax.disable_jit():
        expected = loop(jnp.asarray(rows))
        found = eager(rows)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-4)
    assert eager.runtime.stats().rematerialisations > 8
    assert eager.runtime.stats().bytes_in_use > found[1].nbytes
    for a, b in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
    step = coop_jax.run(lambda x: jnp.sin(x).T @ jnp.cos(x), budget="4MiB")
    with jax.disable_jit():
        product = step(rows)
    assert step.runtime.stats().bytes_in_use >= product.nbytes
