"""Callbacks run once for each use, in program order, however often memory is evicted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits

FRONT_ENDS = ["run", "remat_eager"]
both_front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)
WIDTH, ROWS, LAYERS = 32, 128, 5
EVICT_ALWAYS = coop_jax.Policy("coop", evict_always=True)


def _x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


def _params() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6 for _ in range(LAYERS)]


class Log:
    """What callbacks were called with, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, *values: Any) -> None:
        self.seen.append(tuple(np.asarray(v).tolist() for v in values))

    def answer(self, tag: int) -> Callable[[Any], Any]:
        def callback(x: Any) -> Any:
            self.seen.append((tag, float(np.asarray(x).ravel()[0])))
            return np.sin(np.asarray(x)) + np.float32(tag)

        return callback

    def taken(self) -> list[Any]:
        jax.effects_barrier()
        seen, self.seen = self.seen, []
        return seen


def _make(front_end: str, fn: Any, budget: int | None, policy: Any = "coop") -> Any:
    return getattr(coop_jax, front_end)(fn, budget=budget, policy=policy)


def check_effects(
    front_end: str, fn: Any, log: Log, *args: Any, sort: bool = False, evicts: bool = True
) -> list[Any]:
    """Plain JAX, no budget, a tight one, and everything evicted: the same calls, the same bits."""

    def taken() -> list[Any]:
        seen = log.taken()
        return sorted(seen, key=repr) if sort else seen

    usual = jax.block_until_ready((jax.jit(fn) if front_end == "run" else fn)(*args))
    uses = taken()
    unbudgeted = _make(front_end, fn, None)
    expected = jax.tree.map(np.array, unbudgeted(*args))
    seen = taken()
    assert len(seen) == len(uses)
    assert [s[:-1] for s in seen] == [u[:-1] for u in uses]
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(usual), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    peak_bytes = unbudgeted.runtime.stats().peak_bytes
    tight: list[Any] = []

    def attempt(budget_bytes: int) -> None:
        step = _make(front_end, fn, budget_bytes)
        log.taken()
        found = jax.tree.map(np.array, step(*args))
        tight[:] = [step, found, taken()]

    smallest_feasible(attempt, peak_bytes // 2, peak_bytes)
    always = _make(front_end, fn, None, EVICT_ALWAYS)
    tight.extend([always, jax.tree.map(np.array, always(*args)), taken()])
    for step, found, again in (tight[:3], tight[3:]):
        assert_same_bits(found, expected)
        assert again == seen
        if evicts:
            assert step.runtime.stats().rematerialisations > 0
    step = tight[0]
    assert_same_bits(jax.tree.map(np.array, step(*args)), expected)
    assert taken() == seen  # each call anew
    return seen


def _loss_of(layer: Callable[[int, jax.Array, jax.Array], jax.Array]) -> Any:
    def fn(params: Any, x: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            h = x
            for number, w in enumerate(params):
                h = layer(number, jnp.tanh(h @ w), w)
            return (jnp.cos(h) ** 2).mean()

        return jax.value_and_grad(loss_fn)(params)

    return fn


@both_front_ends
@pytest.mark.parametrize("ordered", [False, True])
def test_debug_callbacks(front_end: str, ordered: bool) -> None:
    log = Log()

    def layer(number: int, h: jax.Array, _: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v, n=number: log.note(n, v), h[0, 0], ordered=ordered)
        return h

    seen = check_effects(front_end, _loss_of(layer), log, _params(), _x(), sort=not ordered)
    assert [s[0] for s in seen] == list(range(LAYERS))


@pytest.mark.unless_fused("few operations are left: nothing to evict, or it does not fit")
@both_front_ends
@pytest.mark.parametrize("ordered", [False, True])
def test_prints(front_end: str, ordered: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def layer(number: int, h: jax.Array, _: jax.Array) -> jax.Array:
        jax.debug.print("layer {n} begins with {v:.3f}", n=number, v=h[0, 0], ordered=ordered)
        return h

    fn = _loss_of(layer)
    unbudgeted = _make(front_end, fn, None)
    unbudgeted(_params(), _x())
    jax.effects_barrier()
    expected = capsys.readouterr().out.splitlines()
    assert len(expected) == LAYERS
    step = _make(front_end, fn, int(0.75 * unbudgeted.runtime.stats().peak_bytes))
    step(_params(), _x())
    jax.effects_barrier()
    assert capsys.readouterr().out.splitlines() == expected
    assert step.runtime.stats().rematerialisations > 0


@both_front_ends
@pytest.mark.parametrize("ordered", [False, True])
def test_io_callbacks(front_end: str, ordered: bool) -> None:
    log = Log()

    def layer(number: int, h: jax.Array, _: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(h.shape, h.dtype)
        # io_callback has no derivative; it is beside the path of the gradient.
        noise = jax.experimental.io_callback(
            log.answer(number), shape, jax.lax.stop_gradient(h), ordered=ordered
        )
        return h + jax.lax.stop_gradient(noise)

    seen = check_effects(front_end, _loss_of(layer), log, _params(), _x())
    assert [s[0] for s in seen] == list(range(LAYERS))


@both_front_ends
def test_pure_callbacks(front_end: str) -> None:
    log = Log()

    def layer(number: int, h: jax.Array, _: jax.Array) -> jax.Array:
        @jax.custom_jvp
        def sine(x: jax.Array) -> jax.Array:
            return jax.pure_callback(log.answer(number), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        sine.defjvp(lambda p, t: (sine(p[0]), jnp.cos(p[0]) * t[0]))
        return sine(h)

    seen = check_effects(front_end, _loss_of(layer), log, _params(), _x())
    assert [s[0] for s in seen] == list(range(LAYERS))


@both_front_ends
def test_inside_scan_cond_and_while(front_end: str) -> None:
    log = Log()

    def fn(x: jax.Array, w: jax.Array) -> Any:
        def body(h: jax.Array, i: jax.Array) -> Any:
            h = jnp.tanh(h @ w)
            jax.debug.callback(lambda i, v: log.note("scan", i, v), i, h[0, 0], ordered=True)

            def odd(h: jax.Array) -> jax.Array:
                jax.debug.callback(lambda v: log.note("odd", v), h[0, 0], ordered=True)
                return h * 2

            return jax.lax.cond(i % 2 == 1, odd, lambda h: h, h), h

        h, kept = jax.lax.scan(body, x, jnp.arange(4))

        def again(carry: Any) -> Any:
            n, h = carry
            jax.experimental.io_callback(
                lambda n, v: log.note("while", n, v), None, n, h[0, 0], ordered=True
            )
            return n + 1, jnp.sin(h)

        n, h = jax.lax.while_loop(lambda c: c[0] < 3, again, (0, h))
        total = h
        for k in range(4):
            total = total * jnp.cos(kept[3 - k])
        return total, n

    seen = check_effects(front_end, fn, log, _x(), _params()[0])
    names = [s[0] for s in seen]
    assert names == ["scan", "scan", "odd", "scan", "scan", "odd", *["while"] * 3]


@both_front_ends
def test_inside_vmap_and_custom_vjp(front_end: str) -> None:
    log = Log()

    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    def forward(x: jax.Array) -> Any:
        jax.debug.callback(lambda v: log.note("fwd", v), x[0, 0], ordered=False)
        return jnp.sin(x), x

    def backward(x: jax.Array, ct: jax.Array) -> Any:
        jax.debug.callback(lambda v: log.note("bwd", v), x[0, 0], ordered=False)
        return (jnp.cos(x) * ct,)

    f.defvjp(forward, backward)

    def fn(params: Any, x: jax.Array) -> Any:
        def each(row: jax.Array) -> jax.Array:
            jax.debug.callback(lambda v: log.note("row", v), row[0])
            return row * 2

        def loss_fn(params: Any) -> jax.Array:
            h = x
            for w in params:
                h = f(h @ w)
            return (h**2).mean()

        return jax.value_and_grad(loss_fn)(params), jax.vmap(each)(x[:3])

    seen = check_effects(front_end, fn, log, _params(), _x(), sort=True)
    names = [s[0] for s in seen]
    assert {n: names.count(n) for n in names} == {"fwd": LAYERS, "bwd": LAYERS, "row": 3}


@both_front_ends
def test_a_checkpoint_replays_what_it_replays_in_jax(front_end: str) -> None:
    log = Log()

    def fn(params: Any, x: jax.Array) -> Any:
        @jax.checkpoint
        def layer(h: jax.Array, w: jax.Array) -> jax.Array:
            jax.debug.callback(lambda v: log.note("layer", v), h[0, 0])
            return jnp.tanh(jnp.sin(h @ w) @ w)

        def loss_fn(params: Any) -> jax.Array:
            h = x
            for w in params:
                h = layer(h, w)
            return (h**2).mean()

        return jax.value_and_grad(loss_fn)(params)

    check_effects(front_end, fn, log, _params(), _x(), sort=True)


@both_front_ends
@pytest.mark.parametrize("kind", ["pure", "io", "debug", "in_scan"])
def test_a_callback_that_raises(front_end: str, kind: str) -> None:
    wrong = False

    def callback(v: Any) -> Any:
        if wrong:
            raise ValueError("in the callback")
        return np.asarray(v)

    def raising(h: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(h.shape, h.dtype)
        if kind == "io":
            return jax.experimental.io_callback(callback, shape, h)
        if kind == "debug":
            jax.debug.callback(lambda v: callback(v) and None, h[0, 0])
            return h
        return jax.pure_callback(callback, shape, h)

    def fn(x: jax.Array) -> jax.Array:
        h = jnp.sin(x)
        if kind == "in_scan":
            h, _ = jax.lax.scan(lambda c, _: (raising(c), None), h, None, length=2)
        else:
            h = raising(h)
        return h @ h.T

    step = _make(front_end, fn, 1 << 20)
    expected = np.array(step(_x()))
    wrong = True

    def call() -> None:
        step(_x())
        jax.effects_barrier()

    with pytest.raises(Exception, match="in the callback"):
        call()
    wrong = False
    if kind == "debug":
        with contextlib.suppress(Exception):  # JAX may report it once more
            jax.effects_barrier()
    assert_same_bits(step(_x()), jnp.asarray(expected))
    assert step.runtime.stats().bytes_in_use == 0


# --- Randomness ---


@both_front_ends
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg", None])
def test_random_bits_are_those_of_plain_jax_at_every_budget(
    front_end: str, impl: str | None
) -> None:
    def fn(key: jax.Array, params: Any, x: jax.Array) -> Any:
        def loss_fn(params: Any) -> Any:
            h, masks, now = x, [], key
            for w in params:
                now, drop = jax.random.split(now)
                mask = jax.random.bernoulli(drop, 0.8, x.shape)
                masks.append(mask.sum(axis=1))
                h = jnp.where(mask, jnp.tanh(h @ w) / 0.8, 0)
            return (h**2).mean(), (jnp.stack(masks), jax.random.bits(now, (64,)))

        return jax.value_and_grad(loss_fn, has_aux=True)(params)

    key = jax.random.PRNGKey(0) if impl is None else jax.random.key(0, impl=impl)
    (_, drawn), _ = jax.jit(fn)(key, _params(), _x())
    unbudgeted = _make(front_end, fn, None)
    expected = unbudgeted(key, _params(), _x())
    assert_same_bits(expected[0][1], drawn)
    peak_bytes = unbudgeted.runtime.stats().peak_bytes
    expected = jax.tree.map(np.array, expected)
    for fraction in (0.8, 0.65, 0.5):
        found: list[Any] = []

        def attempt(budget_bytes: int, found: list[Any] = found) -> None:
            step = _make(front_end, fn, budget_bytes)
            found[:] = [step, jax.tree.map(np.array, step(key, _params(), _x()))]

        smallest_feasible(attempt, int(fraction * peak_bytes), peak_bytes)
        assert_same_bits(found[1], expected)
        assert found[0].runtime.stats().rematerialisations > 0
    always = _make(front_end, fn, None, EVICT_ALWAYS)
    assert_same_bits(jax.tree.map(np.array, always(key, _params(), _x())), expected)
    assert always.runtime.stats().rematerialisations > 0


@pytest.mark.unless_fused("few operations are left: nothing to evict, or it does not fit")
@both_front_ends
def test_bits_that_differ_each_time_are_drawn_once(front_end: str) -> None:
    """rng_uniform answers differently each time: its result is kept, not drawn again."""

    def fn(x: jax.Array) -> Any:
        drawn = jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), (ROWS, WIDTH))
        kept = [drawn]
        for _ in range(6):
            kept.append(jnp.sin(kept[-1]) + x)
        total = kept[-1]
        for value in reversed(kept):
            total = total + jnp.cos(value)
        return drawn, total

    def total_of(drawn: np.ndarray) -> np.ndarray:
        kept = [drawn]
        for _ in range(6):
            kept.append(np.sin(kept[-1]) + _x())
        return np.asarray(kept[-1] + sum(np.cos(v) for v in kept))

    unbudgeted = _make(front_end, fn, None)
    unbudgeted(_x())
    tight = _make(front_end, fn, int(0.75 * unbudgeted.runtime.stats().peak_bytes))
    for step in (tight, _make(front_end, fn, None, EVICT_ALWAYS)):
        drawn, total = step(_x())
        np.testing.assert_allclose(total, total_of(np.asarray(drawn)), rtol=1e-4, atol=1e-4)
        assert step.runtime.stats().rematerialisations > 0
