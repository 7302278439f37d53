"""Every JAX transformation inside `run` and `remat_eager` functions, at half memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify

import coop_jax
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits
from tests.testing.semantics import describe

Fn = Callable[..., Any]
POLICIES = jax.checkpoint_policies

X = np.random.default_rng(0).standard_normal((128, 32)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32) / 6


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    h = x
    for _ in range(4):
        h = jnp.tanh(jax.nn.gelu(h @ w)) + h
    return (h**2).mean()


def rows(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.sin(x @ w) @ w)


def named(w: jax.Array, x: jax.Array) -> jax.Array:
    h = x
    for _ in range(4):
        h = checkpoint_name(jnp.tanh(h @ w), "kept") + jnp.sin(checkpoint_name(h @ w, "gone"))
    return (h**2).mean()


def checkpointed(policy: Any, prevent_cse: bool) -> Fn:
    block = jax.checkpoint(named, policy=policy, prevent_cse=prevent_cse)
    return lambda w, x: jax.value_and_grad(lambda w: block(w, x) + block(w, 2 * x))(w)


def custom_jvp(symbolic_zeros: bool) -> Fn:
    @jax.custom_jvp
    def f(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    def rule(primals: Any, tangents: Any) -> Any:
        (w, x), (dw, dx) = primals, tangents
        y = f(w, x)
        zero = isinstance(dx, jax.custom_derivatives.SymbolicZero)
        dy = x @ dw if zero else x @ dw + dx @ w
        return y, (1 - y**2) * dy * 1.5

    f.defjvp(rule, symbolic_zeros=symbolic_zeros)

    def both(w: jax.Array, x: jax.Array) -> Any:
        repeated = lambda w: (f(w, f(w, f(w, x))) ** 2).mean()  # noqa: E731
        return jax.grad(repeated)(w), jax.jvp(lambda w: f(w, x), (w,), (w,))

    return both


def custom_vjp(w: jax.Array, x: jax.Array) -> Any:
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def apply(act: Fn, scale: float, h: jax.Array, w: jax.Array) -> jax.Array:
        return act(h @ w) * scale

    def forward(act: Fn, scale: float, h: jax.Array, w: jax.Array) -> Any:
        y, back = jax.vjp(lambda z: act(z) * scale, h @ w)
        return y, (h, w, back)

    def backward(act: Fn, scale: float, saved: Any, ct: jax.Array) -> Any:
        h, w, back = saved
        (ct,) = back(jnp.clip(ct, -1, 1))
        return ct @ w.T, h.T @ ct

    apply.defvjp(forward, backward)

    def f(w: jax.Array) -> jax.Array:
        h = x
        for _ in range(4):
            h = apply(jnp.tanh, 0.9, h, w)
        return (h**2).mean()

    return jax.value_and_grad(f)(w)


def custom_gradient(w: jax.Array, x: jax.Array) -> Any:
    @jax.custom_gradient
    def f(h: jax.Array) -> Any:
        y = jnp.tanh(h)
        return y, lambda ct: ct * (1 - y**2) * 2

    return jax.value_and_grad(lambda w: (f(f(f(x @ w) @ w) @ w) ** 2).mean())(w)


def closure_convert(w: jax.Array, x: jax.Array) -> Any:
    def f(w: jax.Array) -> jax.Array:
        converted, hoisted = jax.closure_convert(lambda h: jnp.tanh(h @ w), x)
        return (converted(converted(x, *hoisted), *hoisted) ** 2).mean()

    return jax.value_and_grad(f)(w)


def custom_vmap(w: jax.Array, x: jax.Array) -> Any:
    @jax.custom_batching.custom_vmap
    def f(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    @f.def_vmap
    def rule(size: int, batched: Any, w: jax.Array, x: jax.Array) -> Any:
        assert batched == [False, True]
        assert size == 4
        return jnp.tanh(x @ w) + 1, True

    return f(w, x), jax.vmap(f, (None, 0))(w, x.reshape(4, 32, 32))


def batch_statistics(w: jax.Array, x: jax.Array) -> jax.Array:
    h = jnp.tanh(x @ w)
    centered = h - jax.lax.pmean(h, "batch")
    spread = jax.lax.psum(centered**2, "batch") / jax.lax.axis_size("batch")
    top = jax.lax.pmax(jax.lax.stop_gradient(h), "batch")
    return centered * jax.lax.rsqrt(spread + 1e-3) + top * jax.lax.axis_index("batch")


def repeated(w: jax.Array, h: jax.Array, times: int) -> jax.Array:
    for _ in range(times):
        h = jnp.tanh(h @ w)
    return h


def jitted(w: jax.Array, x: jax.Array) -> Any:
    static = jax.jit(repeated, static_argnums=2)
    donating = jax.jit(repeated, static_argnames="times", donate_argnums=1)
    gradient = jax.grad(lambda w: (static(w, jnp.sin(x), 3) ** 2).mean())(w)
    return gradient, donating(w, jnp.sin(x), times=2)


def helpers(w: jax.Array, x: jax.Array) -> Any:
    with jax.named_scope("scope"), jax.ensure_compile_time_eval():
        count = int(jnp.arange(4).sum()) // 2
    shape = jax.eval_shape(rows, w, x)
    h = jnp.zeros(shape.shape, shape.dtype) + x
    for _ in range(count):
        h = jax.named_call(rows, name="rows")(w, h)
    return h, jax.grad(lambda w: jax.named_call(loss, name="loss")(w, h))(w)


def checked(w: jax.Array, x: jax.Array) -> Any:
    def f(w: jax.Array) -> jax.Array:
        checkify.check(w.sum() < 1e6, "too large: {}", w.sum())
        return loss(w, x)

    _, value = checkify.checkify(f)(w)
    return value, checkify.checkify(jax.grad(f))(w)[1]


INSIDE: dict[str, Fn] = {
    "grad": lambda w, x: jax.grad(loss, argnums=(0, 1))(w, x),
    "value_and_grad has_aux": lambda w, x: jax.value_and_grad(
        lambda w: (lambda y: ((y**2).mean(), {"rows": y, "none": None}))(rows(w, x)), has_aux=True
    )(w),
    "jvp": lambda w, x: jax.jvp(rows, (w, x), (w + 1, x)),
    "jvp has_aux": lambda w, x: jax.jvp(
        lambda w: (rows(w, x), jnp.sin(x)), (w,), (w,), has_aux=True
    ),
    "vjp": lambda w, x: (lambda y, back: (y, back(y), back(2 * y)))(*jax.vjp(rows, w, x)),
    "linearize": lambda w, x: (lambda y, lin: (y, lin(w, x), lin(2 * w, x)))(
        *jax.linearize(rows, w, x)
    ),
    "linear_transpose": lambda w, x: jax.linear_transpose(lambda h: jnp.cumsum(h @ w, 0) * 2, x)(x),
    "vmap": lambda w, x: jax.vmap(rows, in_axes=(None, 1), out_axes=2)(w, x.reshape(32, 4, 32)),
    "vmap of a tree": lambda w, x: jax.vmap(
        lambda t: {"a": rows(t["w"], t["x"]), "b": t["x"].sum()}, in_axes=({"w": None, "x": 0},)
    )({"w": w, "x": x.reshape(4, 32, 32)}),
    "vmap axis_name": lambda w, x: jax.vmap(batch_statistics, (None, 0), axis_name="batch")(w, x),
    "grad of vmap axis_name": lambda w, x: jax.grad(
        lambda w: (jax.vmap(batch_statistics, (None, 0), axis_name="batch")(w, x) ** 2).mean()
    )(w),
    "vmap of grad": lambda w, x: jax.vmap(jax.grad(loss), (None, 0))(w, x.reshape(8, 16, 32)),
    "jacfwd": lambda w, x: jax.jacfwd(lambda a: rows(w, a * x[:16]))(jnp.ones(32)),
    "jacrev": lambda w, x: jax.jacrev(lambda a: rows(w, a * x).sum(0))(jnp.ones(32)),
    "hessian": lambda w, x: jax.hessian(lambda a: loss(w, a * x))(jnp.ones(32)),
    "grad of grad": lambda w, x: jax.grad(lambda w: (jax.grad(loss)(w, x) ** 2).sum())(w),
    "jvp of grad": lambda w, x: jax.jvp(lambda w: jax.grad(loss)(w, x), (w,), (w,)),
    "jit with static and donated arguments": jitted,
    "jit of grad": lambda w, x: jax.jit(jax.value_and_grad(loss))(w, x),
    "jit of vmap of grad": lambda w, x: jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(
        w, x.reshape(8, 16, 32)
    ),
    "checkpoint": checkpointed(None, True),
    "checkpoint without barriers": checkpointed(None, False),
    "checkpoint everything_saveable": checkpointed(POLICIES.everything_saveable, True),
    "checkpoint nothing_saveable": checkpointed(POLICIES.nothing_saveable, True),
    "checkpoint dots_saveable": checkpointed(POLICIES.dots_saveable, False),
    "checkpoint names": checkpointed(POLICIES.save_only_these_names("kept"), True),
    "checkpoint any names but": checkpointed(
        POLICIES.save_anything_except_these_names("gone"), False
    ),
    "checkpoint of checkpoints": lambda w, x: jax.grad(
        jax.checkpoint(lambda w: sum(jax.checkpoint(loss)(w, k * x) for k in (1, 2)))
    )(w),
    "custom_jvp": custom_jvp(False),
    "custom_jvp with symbolic zeros": custom_jvp(True),
    "custom_vjp": custom_vjp,
    "custom_gradient": custom_gradient,
    "closure_convert": closure_convert,
    "custom_vmap": custom_vmap,
    "names, shapes and compile-time values": helpers,
    "checkify": checked,
}


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
@pytest.mark.parametrize("name", INSIDE)
def test_transformations_inside(name: str, front_end: str) -> None:
    """As JAX, and at half memory (or the least that will do) the bits of no budget."""
    fn = INSIDE[name]
    w, x = jnp.asarray(W), jnp.asarray(X)
    expected = fn(w, x)
    reference = getattr(coop_jax, front_end)(fn, budget=None)
    unlimited = reference(w, x)
    assert describe(unlimited) == describe(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), unlimited, expected
    )
    unlimited = jax.tree.map(np.array, unlimited)
    peak_bytes = reference.runtime.stats().peak_bytes

    def call(budget: int) -> Any:
        step = getattr(coop_jax, front_end)(fn, budget=budget)
        for _ in range(2):
            assert_same_bits(jax.tree.map(np.array, step(w, x)), unlimited)
        assert step.runtime.stats().peak_bytes <= budget
        assert step.runtime.stats().bytes_in_use == 0
        return step

    smallest_feasible(call, peak_bytes // 2, peak_bytes)


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_half_memory_evicts(front_end: str) -> None:
    """The deep ones do recompute: the test above would prove nothing otherwise."""
    w, x = jnp.asarray(W), jnp.asarray(X)
    for name in ("grad", "jit of grad", "checkpoint everything_saveable", "custom_vjp"):
        reference = getattr(coop_jax, front_end)(INSIDE[name], budget=None)
        reference(w, x)
        peak_bytes = reference.runtime.stats().peak_bytes
        found = []

        def call(budget: int, fn: Fn = INSIDE[name], found: list[Any] = found) -> None:
            step = getattr(coop_jax, front_end)(fn, budget=budget)
            step(w, x)
            found.append(step.runtime.stats())

        smallest_feasible(call, peak_bytes // 2, peak_bytes)
        assert found[-1].rematerialisations > 0, name
