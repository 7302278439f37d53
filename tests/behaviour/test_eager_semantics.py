"""`remat_eager` runs plain Python: control flow on values, loops, shapes that depend on values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing import models
from tests.testing.comparison import assert_same_bits
from tests.testing.host_memory import ones_that_xla_shares

X = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32) / 6


def plain(tree: Any) -> Any:
    return jax.tree.map(np.array, tree)


def check(fn: Callable[..., Any], *args: Any, fraction: float = 0.75) -> Any:
    """Compares with plain JAX, and a budgeted call bit by bit with one without a budget."""
    expected = fn(*jax.tree.map(jnp.asarray, args))
    unbudgeted = coop_jax.remat_eager(fn)
    found = unbudgeted(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)

    def compare(a: Any, b: Any) -> None:
        assert type(a) is type(b)
        if isinstance(b, jax.Array):
            assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

    jax.tree.map(compare, found, expected)
    reference = plain(found)
    del found
    budget = int(fraction * unbudgeted.runtime.stats().peak_bytes)
    for _ in range(10):
        step = coop_jax.remat_eager(fn, budget=budget)
        try:
            for _ in range(2):
                assert_same_bits(plain(step(*args)), reference)
            break
        except coop_jax.BudgetExceededError:
            budget += budget // 10
    assert step.runtime.stats().peak_bytes <= budget
    return reference


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_an_if_on_a_value_under_grad(scale: float) -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            h = jnp.tanh(x @ w)
            if (h**2).mean() > 0.3:
                h = jnp.sin(h @ w)
            elif jnp.abs(h).max() < 0.1:
                return h.sum() * 7
            return (h**2).sum()

        return jax.value_and_grad(loss)(w)

    check(fn, W * np.float32(scale), X)


def test_a_length_that_is_a_value() -> None:
    def fn(x: jax.Array, lengths: jax.Array) -> Any:
        total = jnp.zeros(32)
        for row in range(lengths.shape[0]):
            count = int(lengths[row])
            total = total + jnp.sin(x[:count]).sum(axis=0)
        return total, x[: int(lengths.max())] * 2

    reference = check(fn, X, np.int32([3, 17, 40]))
    assert reference[1].shape == (40, 32)
    reference = check(fn, X, np.int32([5, 1, 2]))
    assert reference[1].shape == (5, 32)


def test_shapes_that_depend_on_values() -> None:
    def fn(x: jax.Array) -> Any:
        positive = x[x > 0]
        rows = jnp.nonzero(x[:, 0] > 0)[0]
        return positive.sum(), jnp.sin(x[rows]), jnp.unique(jnp.round(x)).shape[0]

    check(fn, X)


def test_a_while_on_a_value_under_grad() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        def loss(w: jax.Array) -> Any:
            h, depth = x, 0
            while jnp.abs(h).mean() > 0.2:
                h = jnp.tanh(h @ w)
                depth += 1
            return (h**2).mean(), depth

        (value, depth), grad = jax.value_and_grad(loss, has_aux=True)(w)
        return value, depth, grad

    reference = check(fn, W, X)
    assert 1 <= reference[1] <= 30


def test_the_same_function_takes_another_way_on_other_data() -> None:
    program = models.data_dependent()
    step = coop_jax.remat_eager(program.step, budget="8MiB")
    operations = []
    for number in range(3):
        before = step.runtime.stats().operations if number else 0
        step(program.init, program.batch(number))
        operations.append(step.runtime.stats().operations - before)
    assert len(set(operations)) == 3


def test_reading_values_in_the_middle() -> None:
    seen = []

    def fn(x: jax.Array) -> Any:
        y = jnp.sin(x)
        z = y
        for _ in range(6):
            z = jnp.cos(z) * y
        seen.append(
            (
                float(y[0, 0]),
                y.sum().item(),
                np.asarray(y).copy(),
                bool((y > 2).any()),
                f"{y[0, 1]}",
            )
        )
        host = np.asarray(y)
        return z, y * host, [v * 2 for v in y[0, :3]], len(y), y.tolist()[0][0]

    found = coop_jax.remat_eager(fn, budget=70_000)(X)
    y = np.sin(X)
    np.testing.assert_allclose(seen[0][2], y, rtol=1e-6)
    assert seen[0][0] == pytest.approx(y[0, 0])
    assert seen[0][1] == pytest.approx(y.sum(), rel=1e-4)
    assert seen[0][3] is False
    assert found[3] == 64
    np.testing.assert_allclose(found[1], y * y, rtol=1e-5)
    assert isinstance(found[4], float)


def test_a_host_copy_does_not_change_when_its_value_is_evicted() -> None:
    kept = []

    def fn(x: jax.Array) -> jax.Array:
        y = jnp.sin(x)
        kept.append(np.asarray(y))
        for _ in range(20):
            y = jnp.cos(y + x)
        return y

    step = coop_jax.remat_eager(fn, budget=5 * X.nbytes)
    for _ in range(2):
        step(X)
    for host in kept:
        np.testing.assert_allclose(host, np.sin(X), rtol=1e-6)


def test_transformations_and_control_flow_primitives_inside() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        block = jax.checkpoint(lambda h, w: jnp.tanh(jnp.sin(h @ w) @ w))

        def loss(w: jax.Array) -> jax.Array:
            h = block(x, w)
            h, _ = jax.lax.scan(lambda c, _: (jnp.sin(c @ w), None), h, None, length=3)
            h = jax.lax.cond(h.sum() > 0, lambda h: h * 2, lambda h: h - 1, h)
            return (jax.nn.gelu(h) ** 2).sum()

        steps = jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] @ w, c[1] + 1), (x, 0))
        each = jax.vmap(jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (None, 0))(w, x[:4])
        return jax.value_and_grad(loss)(w), steps, each, jax.jit(loss)(w), jax.jvp(loss, (w,), (w,))

    check(fn, W, X)


def test_second_derivatives() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.tanh(x @ w).sum()

        return jax.jvp(jax.grad(loss), (w,), (w,))[1], jax.grad(
            lambda w: (jax.grad(loss)(w) ** 2).sum()
        )(w)

    check(fn, W, X)


def test_a_vjp_function_called_twice() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        y, back = jax.vjp(lambda w: jnp.tanh(jnp.sin(x @ w) @ w), w)
        return back(y), back(y * 2), back(jnp.ones_like(y))

    check(fn, W, X)


def test_random_numbers_dtypes_and_numpy_inside() -> None:
    def fn(x: jax.Array) -> Any:
        key = jax.random.key(0)
        noise = jax.random.normal(key, x.shape)
        old = jax.random.uniform(jax.random.PRNGKey(1), (50,))
        host = jnp.asarray(np.arange(2048).reshape(64, 32)) + x.astype(jnp.int32)
        half = (x + noise).astype(jnp.bfloat16) * 2
        return (
            half.astype(jnp.float32),
            old,
            host,
            x > 0,
            x * 2.0,
            jnp.asarray(3),
            2 * (x[0, 0] > 0),
        )

    check(fn, X)


def test_pytrees_keywords_none_and_python_values() -> None:
    def fn(tree: Any, *, scale: float, name: str) -> Any:
        return {"a": tree["x"] * scale, "name": name, "none": None, "n": [tree["n"] + 1]}

    step = coop_jax.remat_eager(fn, budget="1MiB")
    found = step({"x": X, "n": 3}, scale=2.0, name="text")
    np.testing.assert_array_equal(found["a"], X * 2)
    assert found["name"] == "text"
    assert found["none"] is None
    assert found["n"] == [4]


def test_arguments_returned_and_results_that_share_memory() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        y = jnp.sin(x)
        return x, y, y.reshape(-1), y, y[None], w

    step = coop_jax.remat_eager(fn, budget="1MiB")
    found = step(X, W)
    for a, b in zip(found, fn(jnp.asarray(X), jnp.asarray(W)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    again = step(found[1], W)
    np.testing.assert_allclose(again[1], np.sin(np.sin(X)), rtol=1e-5)
    np.testing.assert_array_equal(again[0], found[1])
    same = coop_jax.remat_eager(lambda a, b: a + b, budget="1MiB")
    np.testing.assert_array_equal(same(found[1], found[1]), 2 * np.asarray(found[1]))
    np.testing.assert_array_equal(same(found[1].reshape(-1), found[2]), 2 * np.asarray(found[2]))


@pytest.mark.no_recomputation("nothing reads it again")
def test_a_value_that_leaves_the_call_by_another_door_says_so() -> None:
    escaped = []

    def fn(x: jax.Array) -> jax.Array:
        escaped.append(jnp.sin(x))
        return x * 2

    coop_jax.remat_eager(fn, budget="1MiB")(X)
    with pytest.raises(Exception, match="ended"):
        np.asarray(escaped[0])
    with pytest.raises(Exception, match=r"(?i)ended|leak|escaped"):
        escaped[0] + 1


def test_callbacks_are_not_replayed() -> None:
    seen = []

    def fn(x: jax.Array) -> jax.Array:
        kept = [x]
        for number in range(8):
            kept.append(jnp.sin(kept[-1]))
            jax.debug.callback(lambda v, n=number: seen.append(n), kept[-1][0, 0])
        total = kept.pop()
        while kept:
            total = total * kept.pop()
        return total

    step = coop_jax.remat_eager(fn, budget=8 * X.nbytes)
    step(X)
    jax.effects_barrier()
    assert seen == list(range(8))
    assert step.runtime.stats().rematerialisations > 0


def test_a_fraction_of_a_program_that_depends_on_values_is_refused() -> None:
    program = models.data_dependent()
    step = coop_jax.remat_eager(program.step, budget=0.5)
    with pytest.raises(ValueError, match="in bytes"):
        step(program.init, program.batch(0))


def test_the_decorator_in_all_its_forms() -> None:
    def double(x: jax.Array) -> jax.Array:
        """Doubles."""
        return x * 2

    forms = [
        coop_jax.remat_eager(double),
        coop_jax.remat_eager(double, budget="1MiB"),
        coop_jax.remat_eager(budget="1MiB")(double),
        coop_jax.remat_eager(budget="1MiB", policy="dtr")(double),
        coop_jax.remat_eager(double, runtime=coop_jax.Runtime("1MiB")),
    ]
    for form in forms:
        np.testing.assert_array_equal(form(X), X * 2)
        assert form.__name__ == "double"
        assert form.__doc__ == "Doubles."
    with coop_jax.Runtime("2MiB") as runtime:
        bare = coop_jax.remat_eager(double)
        bare(X)
        assert bare.runtime is runtime


@pytest.mark.unless_fused("counts operations, or asserts what one primitive at a time needs")
@pytest.mark.unless_forced("asserts peaks or counts, which evictions change")
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_the_peak_is_within_a_tenth_of_what_run_needs(name: str) -> None:
    program = getattr(models, name)()
    peaks = {}
    for front_end in ("run", "remat_eager"):
        step: Any = getattr(coop_jax, front_end)(program.step)
        state, _ = step(program.init, program.batch(0))
        del state
        peaks[front_end] = step.runtime.stats().peak_bytes
    assert peaks["remat_eager"] <= 1.1 * peaks["run"], peaks


@pytest.mark.parametrize("shape", [(), (64,), (64, 64)])
def test_what_is_written_into_a_numpy_operand_later_does_not_show(shape: tuple[int, ...]) -> None:
    def counting(x: jax.Array) -> jax.Array:
        factor, kept = ones_that_xla_shares(shape), [x]
        for _ in range(10):
            kept.append(jnp.sin(kept[-1] * factor))
            factor += 1
        total = kept.pop()
        while kept:
            total = jnp.tanh(total + kept.pop())
        return total

    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    tight = coop_jax.remat_eager(counting, budget="384KiB" if len(shape) == 2 else "112KiB")
    assert_same_bits(tight(x), counting(jnp.asarray(x)))
    if len(shape) < 2:
        assert tight.runtime.stats().rematerialisations > 0
