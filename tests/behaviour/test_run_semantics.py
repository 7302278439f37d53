"""`run` gives what `jax.jit` gives, for all kinds of programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits
from tests.testing.host_memory import ones_that_xla_shares
from tests.testing.semantics import W, X, check, plain

# --- Calls and derivatives ---


def test_nested_jits_of_cheap_and_expensive_operations() -> None:
    cheap = jax.jit(lambda x: jnp.tanh(x) * 2 + 1)
    heavy = jax.jit(lambda x, w: cheap(x @ w))
    check(lambda x, w: (heavy(cheap(x), w), cheap(heavy(x, w)).sum()), X, W)


@pytest.mark.unless_fused("counts operations, or asserts what one primitive at a time needs")
def test_a_jitted_function_is_taken_apart() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        kept = [x]
        for _ in range(6):
            kept.append(jnp.sin(kept[-1] @ w))
        total = kept.pop()
        while kept:
            total = total * jnp.cos(kept.pop() @ w)
        return total

    step = coop_jax.run(jax.jit(fn), budget=None)
    expected = plain(step(X, W))
    assert step.runtime.stats().operations > 12
    tight = coop_jax.run(jax.jit(jax.jit(fn)), budget=0.75)
    assert_same_bits(plain(tight(X, W)), expected)
    assert tight.runtime.stats().rematerialisations > 0


def test_grad_of_grad_vmap_and_jvp_inside() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.tanh(x @ w).sum()

        hessian = jax.jvp(jax.grad(loss), (w,), (jnp.ones_like(w),))[1]
        each = jax.vmap(jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (None, 0))(w, x)
        return hessian, each.sum(0)

    check(fn, X, W)


def test_custom_jvp_and_custom_vjp() -> None:
    @jax.custom_jvp
    def f(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    f.defjvp(lambda p, t: (f(p[0]), t[0] * 7 * jnp.cos(p[0])))

    @jax.custom_vjp
    def g(x: jax.Array) -> jax.Array:
        return jnp.cos(x)

    g.defvjp(lambda x: (g(x), jnp.sin(x)), lambda r, ct: (ct * r * 5,))
    check(lambda x: (f(x), g(x), jax.grad(lambda x: (f(x) * g(x)).sum())(x)), X)


@pytest.mark.parametrize("policy", [None, "dots"])
def test_checkpoint(policy: str | None) -> None:
    saved = jax.checkpoint_policies.dots_saveable if policy else None

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.sin(x @ w) @ w)

    def fn(x: jax.Array, w: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            h = x
            for _ in range(3):
                h = jax.checkpoint(block, policy=saved)(h, w)
            return (h**2).sum()

        return jax.value_and_grad(loss)(w)

    check(fn, X, W)


# --- Control flow ---


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_with_gradient(reverse: bool) -> None:
    def fn(x: jax.Array, ws: jax.Array) -> Any:
        def loss(ws: jax.Array) -> Any:
            def body(h: jax.Array, w: jax.Array) -> Any:
                h = jnp.tanh(h @ w)
                return h, h.sum(axis=1)

            h, ys = jax.lax.scan(body, x, ws, reverse=reverse)
            return (h**2).sum() + ys.sum(), ys

        return jax.value_and_grad(loss, has_aux=True)(ws)

    check(fn, X, np.stack([W, W * 0.5, W.T]))


def test_scan_of_length_zero_and_without_inputs() -> None:
    def fn(x: jax.Array) -> Any:
        a = jax.lax.scan(lambda c, _: (c * 2, c.sum()), x, None, length=0)
        b = jax.lax.scan(lambda c, _: (jnp.sin(c), c[0]), x, None, length=3)
        return a, b

    check(fn, X)


def test_fori_loop_and_map() -> None:
    def fn(x: jax.Array) -> Any:
        a = jax.lax.fori_loop(0, 4, lambda i, v: jnp.sin(v) + i, x)
        return a, jax.lax.map(lambda row: jnp.cumsum(row) / 3, x)

    check(fn, X)


@pytest.mark.parametrize("value", [0, 1, 2, -3, 99])
def test_switch(value: int) -> None:
    def fn(i: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        branches = [lambda x: x @ w, lambda x: jnp.sin(x), lambda x: x * 0 + 1]
        return jax.lax.switch(i, branches, x) * 2

    check(fn, np.int32(value), X, W)


@pytest.mark.parametrize("positive", [True, False])
def test_cond_with_gradient(positive: bool) -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            h = jnp.sin(x @ w)
            h = jax.lax.cond(x[0, 0] > 0, lambda h: jnp.tanh(h @ w), lambda h: h * 3, h)
            return (h**2).sum()

        return jax.value_and_grad(loss)(w)

    check(fn, np.abs(X) if positive else -np.abs(X), W)


@pytest.mark.parametrize("limit", [0.0, 30.0, 1e4])
def test_while_loop(limit: float) -> None:
    def fn(x: jax.Array, limit: jax.Array) -> Any:
        return jax.lax.while_loop(
            lambda c: (c[0] ** 2).mean() < limit, lambda c: (c[0] * 1.5, c[1] + 1), (x, 0)
        )

    check(fn, X, np.float32(limit))


def test_control_flow_inside_control_flow() -> None:
    def fn(x: jax.Array, n: jax.Array) -> Any:
        def body(carry: jax.Array, i: jax.Array) -> Any:
            carry = jax.lax.cond(
                i % 2 == 0,
                lambda c: jax.lax.fori_loop(0, n, lambda _, v: jnp.sin(v) + 1, c),
                lambda c: c * 2,
                carry,
            )
            return carry, carry.mean()

        return jax.lax.scan(body, x, jnp.arange(4))

    check(fn, X, np.int32(3))


# --- Many kinds of operations ---


def test_a_collection_of_operations() -> None:
    def fn(x: jax.Array) -> Any:
        square = x[:32] @ x[:32].T + 32 * jnp.eye(32)
        return {
            "sort": jnp.sort(x, axis=1),
            "argsort": jnp.argsort(x, axis=0),
            "top": jax.lax.top_k(x, 5),
            "cumsum": jnp.cumsum(x, axis=0),
            "gather": x[jnp.array([3, 1, 4])],
            "scatter": x.at[jnp.array([2, 2, 5])].add(1.0),
            "set": x.at[3].set(0).at[:, 4].multiply(2),
            "slice": jax.lax.dynamic_update_slice(x, jnp.ones((2, 2)), (5, 6)),
            "pad": jnp.pad(x, 2),
            "concatenate": jnp.concatenate([x, x * 2], 1),
            "cholesky": jnp.linalg.cholesky(square),
            "solve": jnp.linalg.solve(square, x[:32]),
            "norm": jnp.linalg.norm(x, axis=1),
            "softmax": jax.nn.softmax(x),
            "logsumexp": jax.nn.logsumexp(x, axis=0),
            "einsum": jnp.einsum("ab,cb->ac", x, x),
            "convolve": jnp.convolve(x[0], x[1, :5]),
            "one_hot": jax.nn.one_hot(jnp.arange(8), 9),
            "broadcast": jnp.broadcast_to(x[:, :1], (64, 9)),
            "transpose": jnp.transpose(x.reshape(4, 16, 32), (2, 0, 1)),
            "iota": jnp.arange(500) * 2,
            "unique_size": jnp.unique(jnp.round(x[0]), size=5),
        }

    check(fn, X)


def test_dead_code_is_not_run() -> None:
    def fn(x: jax.Array) -> jax.Array:
        jnp.linalg.svd(x @ x.T)
        return x * 2

    step = coop_jax.run(fn, budget="64KiB")
    step(X)
    assert step.runtime.stats().operations == 1


# --- Effects ---


def test_callbacks_run_once_and_are_not_replayed() -> None:
    seen = []

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        kept = [x]
        for number in range(6):
            kept.append(jnp.sin(kept[-1] @ w))
            jax.debug.callback(lambda v, n=number: seen.append(n), kept[-1][0, 0])
        total = kept.pop()
        while kept:
            total = total * jnp.cos(kept.pop() @ w)
        return total

    for budget in (None, 0.9):
        seen.clear()
        step = coop_jax.run(fn, budget=budget)
        step(X, W)
        jax.effects_barrier()
        assert sorted(seen) == list(range(6))
    assert step.runtime.stats().rematerialisations > 0


@pytest.mark.unless_fused("few operations are left: nothing to evict, or it does not fit")
@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_impure_results_are_kept_not_computed_again(front_end: str) -> None:
    seen: list[int] = []

    def answer(x: np.ndarray) -> np.ndarray:
        seen.append(len(seen))
        return np.asarray(x) + np.float32(len(seen))

    def fn(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        kept = [jax.experimental.io_callback(answer, shape, jnp.sin(x), ordered=False)]
        for _ in range(8):
            kept.append(jnp.sin(kept[-1]))
        total = kept.pop()
        while kept:
            total = total * jnp.cos(kept.pop())
        return total

    def expected(number: int) -> np.ndarray:
        kept = [np.sin(X) + number]
        for _ in range(8):
            kept.append(np.sin(kept[-1]))
        total = kept.pop()
        while kept:
            total = total * np.cos(kept.pop())
        return total

    make = getattr(coop_jax, front_end)
    unbudgeted = make(fn)
    np.testing.assert_allclose(unbudgeted(X), expected(1), rtol=1e-4, atol=1e-5)
    tight = make(fn, budget=int(0.7 * unbudgeted.runtime.stats().peak_bytes))
    for number in (2, 3):
        np.testing.assert_allclose(tight(X), expected(number), rtol=1e-4, atol=1e-5)
        assert seen == list(range(number))
    assert tight.runtime.stats().rematerialisations > 0


# --- Refused ---


def test_what_cannot_run_here_is_refused_by_name_and_line() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def mapped(x: jax.Array) -> jax.Array:
        body = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=spec, out_specs=spec)
        return body(jnp.sin(x))

    with pytest.raises(NotImplementedError, match=r"shard_map.*test_run_semantics.py:\d+"):
        coop_jax.run(mapped)(X)


def test_runtime_before_the_first_call_is_an_error() -> None:
    step = coop_jax.run(lambda x: x, budget=0.5)
    with pytest.raises(RuntimeError, match="first call"):
        _ = step.runtime


@pytest.mark.parametrize("shape", [(), (64,), (64, 64)])
def test_numpy_arrays_closed_over_are_those_of_the_first_call(shape: tuple[int, ...]) -> None:
    factor = ones_that_xla_shares(shape)
    x = np.full((64, 64), 0.5, np.float32)
    step = coop_jax.run(lambda x: jnp.sin(x * factor) @ x)
    first = np.array(step(x))
    factor += 1
    assert_same_bits(step(x), first)
