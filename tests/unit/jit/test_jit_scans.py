"""`coop_jax.jit` on loops: scans stay scans, what they stack is chosen, bodies are planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.jit import program_family, residual_rewrite

LAYERS, WIDTH, ROWS = 12, 32, 256


def layer(x: Any, w: Any) -> Any:
    """Two products and elementwise work between them; `w` is (up, down)."""
    normed = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(normed @ w[0]) @ w[1]


def stacked() -> tuple[jax.Array, jax.Array]:
    first, second = jax.random.split(jax.random.key(0))
    return (
        0.1 * jax.random.normal(first, (LAYERS, WIDTH, 4 * WIDTH)),
        0.1 * jax.random.normal(second, (LAYERS, 4 * WIDTH, WIDTH)),
    )


def batch() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (ROWS, WIDTH))


def train(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, *args: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(params, *args)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def plain(params: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda x, w: (layer(x, w), None), x, params)[0] ** 2).mean()


def backwards(params: Any, x: Any) -> Any:
    scan = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params, reverse=True)
    return (scan[0] ** 2).mean()


def unrolled(params: Any, x: Any) -> Any:
    scan = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params, unroll=3)
    return (scan[0] ** 2).mean()


def with_outputs(params: Any, x: Any) -> Any:
    """What an iteration makes is wanted beside what the backward scan reads."""
    x, rows = jax.lax.scan(lambda x, w: (layer(x, w), x.sum(0)), x, params)
    return (x**2).mean() + (rows**2).mean()


def with_constants(params: Any, x: Any) -> Any:
    """A fixed carry, an array that is closed over, a counter."""
    mask = jnp.tril(jnp.ones((WIDTH, WIDTH)))

    def body(carry: Any, w: Any) -> Any:
        n, scale, x = carry
        return (n + 1, scale, layer(x @ mask * scale + n * 0.01, w)), None

    carry = (jnp.int32(0), jnp.float32(0.3), x)
    return (jax.lax.scan(body, carry, params)[0][2] ** 2).mean()


def dropped(params: Any, x: Any, key: Any) -> Any:
    def body(x: Any, row: Any) -> Any:
        w, k = row
        x = layer(x, w)
        return jnp.where(jax.random.bernoulli(k, 0.9, x.shape), x / 0.9, 0), None

    keys = jax.random.split(key, LAYERS)
    return (jax.lax.scan(body, x, (params, keys))[0] ** 2).mean()


def twice(params: Any, x: Any) -> Any:
    """Two scans, one after the other, of the same weights."""
    for _ in range(2):
        x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params)
    return (x**2).mean()


def nested(params: Any, x: Any) -> Any:
    groups = jax.tree.map(lambda w: w.reshape(3, LAYERS // 3, *w.shape[1:]), params)

    def group(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0], None

    return (jax.lax.scan(group, x, groups)[0] ** 2).mean()


def custom(params: Any, x: Any) -> Any:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return jnp.clip(x, -2, 2)

    clipped.defvjp(
        lambda x: (clipped(x), (x,)), lambda r, g: (jnp.where(abs(r[0]) < 2, g, 0.1 * g),)
    )
    scan = jax.lax.scan(lambda x, w: (clipped(layer(x, w)), None), x, params)
    return (scan[0] ** 2).mean()


def remembered(params: Any, x: Any) -> Any:
    """A recurrence over rows: what is carried changes, a few weights are constant."""
    up, down = params[0][0], params[1][0]

    def cell(h: Any, row: Any) -> Any:
        h = jnp.tanh(row @ up + h) * 0.9
        return h, h @ down

    return (jax.lax.scan(cell, jnp.zeros(4 * WIDTH), x)[1] ** 2).mean()


def states_before(params: Any, x: Any) -> Any:
    """What enters each iteration is stacked, and read by the loss, too."""
    x, path = jax.lax.scan(lambda x, w: (layer(x, w), x), x, params)
    return (path**2).mean() + x.mean()


def counted(params: Any, x: Any) -> Any:
    """The first of what is carried is a number."""

    def body(carry: Any, w: Any) -> Any:
        n, x = carry
        return (n + 1, layer(x * (1 + 0.01 * n), w)), None

    return (jax.lax.scan(body, (0, x), params)[0][1] ** 2).mean()


LOSSES = [
    states_before,
    counted,
    plain,
    backwards,
    unrolled,
    with_outputs,
    with_constants,
    dropped,
    twice,
    nested,
    custom,
    remembered,
]


def arguments(loss: Callable[..., Any]) -> tuple[Any, ...]:
    args = (stacked(), batch())
    return (*args, jax.random.key(2)) if loss is dropped else args


def assert_close(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", [0.75, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_what_scans_stack_is_within_the_budget(loss: Callable[..., Any], share: float) -> None:
    step, args = train(loss), arguments(loss)
    planned = coop_jax.jit(step, budget=share)
    try:
        report = planned.plan(*args)
    except coop_jax.BudgetExceededError as error:  # where parameters are most of it
        planned = coop_jax.jit(step, budget=error.report.smallest_budget_bytes)
        report = planned.plan(*args)
    assert report.needed_bytes <= report.budget_bytes  # type: ignore[operator]
    assert report.recompute_share > 0 or loss is remembered  # may not be worth it there
    assert_close(planned(*args), jax.jit(step)(*args))


def test_a_scan_stays_a_scan() -> None:
    args = arguments(plain)
    planned = coop_jax.jit(train(plain), budget=0.5)
    text, other = planned.lower(*args).as_text(), jax.jit(train(plain)).lower(*args).as_text()
    assert text.count("stablehlo.while") == other.count("stablehlo.while") == 2
    assert len(text.splitlines()) < 1.5 * len(other.splitlines())


def test_all_that_is_stacked_may_go() -> None:
    """Down to what `jax.checkpoint` on the body needs: what enters each iteration."""
    args = arguments(plain)

    def checkpointed(params: Any, x: Any) -> Any:
        body = jax.checkpoint(lambda x, w: (layer(x, w), None))
        return (jax.lax.scan(body, x, params)[0] ** 2).mean()

    options = None
    if jax.__version_info__ < (0, 11):  # else XLA's CPU compiler undoes checkpoints
        options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    step = jax.jit(train(checkpointed), compiler_options=options)
    memory = step.lower(*args).compile().memory_analysis()
    need = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    report = coop_jax.jit(train(plain), budget=int(1.03 * need)).plan(*args)
    assert report.needed_bytes <= 1.03 * need


def test_effects_in_a_scan_run_once() -> None:
    seen: list[int] = []

    def noisy(params: Any, x: Any) -> Any:
        def body(x: Any, row: Any) -> Any:
            n, w = row
            jax.debug.callback(lambda n: seen.append(int(n)), n, ordered=True)
            return layer(x, w), None

        return (jax.lax.scan(body, x, (jnp.arange(LAYERS), params))[0] ** 2).mean()

    planned = coop_jax.jit(train(noisy), budget=0.6)
    args = arguments(plain)
    assert planned.plan(*args).recompute_share > 0
    assert_close(planned(*args), jax.jit(train(plain))(*args))
    jax.effects_barrier()
    assert seen == list(range(LAYERS))


@pytest.mark.parametrize("scanned", [False, True])
def test_the_body_of_a_loop_over_microbatches_is_planned(scanned: bool) -> None:
    def one(params: Any, x: Any) -> Any:
        if scanned:
            return plain(params, x)
        for n in range(LAYERS):
            x = layer(x, jax.tree.map(lambda w, n=n: w[n], params))
        return (x**2).mean()

    def step(params: Any, xs: Any) -> tuple[Any, Any]:
        def micro(total: Any, x: Any) -> Any:
            value, grads = jax.value_and_grad(one)(params, x)
            return jax.tree.map(jnp.add, total, grads), value

        return jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, params), xs)

    args = (stacked(), jax.random.normal(jax.random.key(4), (3, 4 * ROWS, WIDTH)))
    planned = coop_jax.jit(step, budget=0.6)
    report = planned.plan(*args)
    assert report.needed_bytes <= report.budget_bytes  # type: ignore[operator]
    assert report.recompute_share > 0
    assert_close(planned(*args), jax.jit(step)(*args))
    assert planned.lower(*args).as_text().count("stablehlo.while") == 1 + 2 * scanned


def test_second_derivatives() -> None:
    def curvature(params: Any, x: Any) -> Any:
        def along(p: Any) -> Any:
            return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, jax.grad(plain)(p, x), params))

        return jax.grad(along)(params)

    planned = coop_jax.jit(curvature, budget=0.8)
    args = arguments(plain)
    assert planned.plan(*args).attempts
    assert_close(planned(*args), jax.jit(curvature)(*args))


@pytest.mark.parametrize("scanned", ["xs", "carry", "before", "swapped", "both"])
def test_what_is_stacked_may_be_anything_the_body_has(scanned: str) -> None:
    def fn(params: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            def body(carry: Any, w: Any) -> Any:
                a, b = carry
                c = layer(a, w) + 0.1 * b
                after = (b, c) if scanned == "swapped" else (c, b)
                rows = {"xs": w[0], "carry": c, "before": a, "swapped": b, "both": (a, c, a)}
                return after, rows[scanned]

            (a, b), rows = jax.lax.scan(body, (x, y), params)
            return (a * b).mean() + sum((r**2).mean() for r in jax.tree.leaves(rows)), rows

        return jax.grad(loss, has_aux=True)(params)

    y = jax.random.normal(jax.random.key(5), (ROWS, WIDTH))
    args = (*arguments(plain), y)
    planned = coop_jax.jit(fn, budget=0.85)
    assert planned.plan(*args).attempts
    assert_close(planned(*args), jax.jit(fn)(*args))


def test_scans_that_stack_keys() -> None:
    def fn(params: Any, x: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            def body(x: Any, row: Any) -> Any:
                w, k = row
                kept = jax.random.bernoulli(k, 0.9, x.shape)
                return layer(x, w) * kept, (jax.random.fold_in(k, 1), kept.sum())

            x_, made = jax.lax.scan(body, x, (params, jax.random.split(key, LAYERS)))
            return (x_**2).mean(), made

        return jax.grad(loss, has_aux=True)(params)

    args = (*arguments(plain), jax.random.key(3))
    planned = coop_jax.jit(fn, budget=0.7)
    assert planned.plan(*args).attempts
    grads, (keys, kept) = planned(*args)
    right, (right_keys, right_kept) = jax.jit(fn)(*args)
    assert_close(grads, right)
    assert keys.dtype == right_keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(right_keys))
    np.testing.assert_array_equal(kept, right_kept)


def test_stacks_are_there_from_when_their_scan_begins() -> None:
    """Scans of layers one after the other: no stack takes memory before its scan runs."""

    def layers(params: Any, x: Any) -> Any:
        for n in range(4):
            up, down = params[0][n], params[1][n]

            def cell(state: Any, row: Any, up: Any = up, down: Any = down) -> Any:
                state = jnp.tanh(row @ up + 0.5 * state)
                return state, state @ down

            x = x + jax.lax.scan(cell, jnp.zeros((8, 4 * WIDTH)), x)[1]
        return (x**2).mean()

    args = (stacked(), batch().reshape(ROWS // 8, 8, WIDTH).repeat(4, 0))
    report = coop_jax.jit(train(layers), budget=0.6).plan(*args)
    assert report.predicted_bytes is not None
    assert report.needed_bytes <= 1.1 * report.predicted_bytes
    assert len(report.attempts) == 1


def test_nothing_is_overwritten_that_the_backward_scan_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What only the forward scan read may be dead between both; recomputation needs it later."""
    made: list[Any] = []

    def noted(*args: Any) -> Any:
        made.append(residual_rewrite.with_choices(*args))
        return made[-1]

    monkeypatch.setattr(program_family, "with_choices", noted)

    def fn(params: Any, x: Any, y: Any) -> Any:
        shift = 3 * jnp.tanh(y)

        def loss(params: Any) -> Any:
            def body(x: Any, w: Any) -> Any:
                return jnp.tanh(jnp.sin(x @ w + shift) @ w), None

            return (jax.lax.scan(body, x, params)[0] ** 2).mean(), 2 * shift + 1

        return jax.grad(loss, has_aux=True)(params)

    x, y, w = (jax.random.normal(k, (ROWS, WIDTH)) for k in jax.random.split(jax.random.key(5), 3))
    args = (w.reshape(-1, WIDTH, WIDTH), x, y)
    planned = coop_jax.jit(fn, budget=0.9)
    assert_close(planned(*args), jax.jit(fn)(*args))
    assert made
    for program in made:
        storage = [value.storage for value in program.values]
        for number, op in enumerate(program.operations):
            later = {storage[v] for o in program.operations[number + 1 :] for v in o.operands}
            over = {storage[op.operands[k]] for k in op.in_place if k >= 0}
            assert not over & later
