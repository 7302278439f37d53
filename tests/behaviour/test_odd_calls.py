"""Odd values, deleted arguments, threads and callbacks: a right result or a clear error."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits
from tests.testing.faults import (
    BUDGET_BYTES,
    FRONT_ENDS,
    WIDTH,
    InjectedError,
    data,
    first_params,
    in_use,
    make,
    step_fn,
)
from tests.testing.processes import output_of

# --- Odd values ---


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.float32(1e38), np.float32(1e-45)])
def test_values_that_are_not_finite_go_through_a_step(front_end: str, bad: Any) -> None:
    x = data()
    x[3, 5] = bad
    reference = make(front_end, None)(first_params(), x)
    step = make(front_end)
    found = step(first_params(), x)
    assert_same_bits(jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, reference))
    assert step.runtime.stats().rematerialisations > 0
    if not np.isfinite(bad):
        assert not np.isfinite(np.asarray(found[1]))


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("budget", [None, 40_000])
def test_arrays_of_no_elements(front_end: str, budget: int | None) -> None:
    def fn(empty: jax.Array, x: jax.Array) -> Any:
        joined = jnp.concatenate([empty, x[:0], x], axis=0)
        product = empty @ x.T
        total = empty.sum(axis=0) + x.sum(axis=0)
        return empty * 2, joined, product, total, empty.reshape(3, 0), x[:0], jnp.zeros((0, 5))

    empty, x = np.zeros((0, 32), np.float32), data()[:64]
    step = make(front_end, budget, fn=fn)
    for _ in range(2):
        found = step(empty, x)
        for a, b in zip(found, fn(jnp.asarray(empty), jnp.asarray(x)), strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)
    again = coop_jax.run(lambda a: (a, a + 1), budget="1MiB", donate_argnums=0)
    first, second = again(jnp.zeros((0, 32)))
    assert first.shape == second.shape == (0, 32)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_an_argument_that_its_owner_deleted(front_end: str) -> None:
    step = make(front_end)
    params, _ = step(first_params(), data())
    params = [*params[:-1], jnp.array(params[-1])]
    params[-1].delete()
    with pytest.raises(RuntimeError, match="deleted"):
        step(params, data())
    params[-1] = first_params()[-1]
    step(params, data())


def test_an_array_that_the_function_closes_over_was_deleted() -> None:
    weights = jnp.ones((WIDTH, WIDTH))
    for front_end in FRONT_ENDS:
        step = make(front_end, "4MiB", fn=lambda x: jnp.sin(x) @ weights)
        step(data())
        runtime = step.runtime
        assert in_use(runtime) == []
    copy = jnp.array(weights)
    step = make("remat_eager", "4MiB", fn=lambda x: jnp.sin(x) @ copy)
    step(data())
    copy.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        step(data())
    assert in_use(step.runtime) == []


def test_using_a_donated_argument_again_says_so() -> None:
    step = make("run", donate=True)
    params, _ = step(first_params(), data())
    step(params, data())
    with pytest.raises(RuntimeError, match="deleted"):
        step(params, data())
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(params[0])


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_the_function_itself_raises(front_end: str) -> None:
    wrong = False

    def fn(x: jax.Array) -> jax.Array:
        y = jnp.sin(x) @ x.T
        if wrong:
            raise InjectedError("in the user's code")
        return y.sum()

    step = make(front_end, "4MiB", fn=fn)
    expected = float(step(data()))
    wrong = True
    other = data()[:100]
    with pytest.raises(InjectedError, match="user's code"):
        step(other)
    wrong = False
    assert in_use(step.runtime) == []
    assert float(step(data())) == expected
    assert np.isfinite(float(step(other)))


# --- Threads and callbacks ---


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_two_threads_in_one_runtime_take_turns(front_end: str) -> None:
    runtime = coop_jax.Runtime(BUDGET_BYTES + 60_000)  # the other thread's results stay in the pool
    step: Any = (
        coop_jax.run(step_fn, runtime=runtime)
        if front_end == "run"
        else coop_jax.remat_eager(step_fn, runtime=runtime)
    )
    expected = [
        jax.tree.map(np.array, make(front_end, None)(first_params(), data(n))) for n in range(2)
    ]
    step(first_params(), data())
    gate, failures = threading.Barrier(2, timeout=60), []

    def work(number: int) -> None:
        try:
            gate.wait()
            for _ in range(10):
                found = jax.tree.map(np.array, step(first_params(), data(number)))
                assert_same_bits(found, expected[number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures, failures
    assert in_use(runtime) == []
    assert runtime.stats().rematerialisations > 0


_CALLBACK = """
import sys, faulthandler
faulthandler.dump_traceback_later(60, exit=True)
import coop_jax, jax, jax.numpy as jnp, numpy as np
runtime = coop_jax.Runtime("8MiB")
inner = getattr(coop_jax, sys.argv[1])(lambda x: x + 1, runtime=runtime)
other = coop_jax.run(lambda x: x + 1, budget="8MiB")
x = np.ones((64, 64), np.float32)
inner(x), other(x)
which = inner

def callback(a):
    return np.asarray(which(np.asarray(a)))

def fn(x):
    return jax.pure_callback(callback, jax.ShapeDtypeStruct((64, 64), np.float32), jnp.sin(x)) * 2

outer = getattr(coop_jax, sys.argv[1])(fn, runtime=runtime)
try:
    outer(x)
    raise SystemExit("no error")
except Exception as error:
    assert "already running" in str(error), repr(error)
assert runtime.memory().pool.live_blocks() == []
which = other
np.testing.assert_allclose(outer(x), (np.sin(x) + 1) * 2, rtol=1e-6)
print("fine")
"""


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_call_from_inside_a_callback_is_refused(front_end: str) -> None:
    assert output_of(_CALLBACK, front_end) == "fine\n"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_callback_that_raises(front_end: str) -> None:
    wrong = True

    def callback(a: Any) -> Any:
        if wrong:
            raise InjectedError("in the callback")
        return np.asarray(a)

    def fn(x: jax.Array) -> jax.Array:
        h = jax.pure_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), jnp.sin(x))
        return (h * 2).sum()

    step = make(front_end, "4MiB", fn=fn)
    with pytest.raises(Exception, match="in the callback") as held:
        step(data())
    assert in_use(step.runtime) == []
    assert held.value is not None
    wrong = False
    np.testing.assert_allclose(float(step(data())), (np.sin(data()) * 2).sum(), rtol=1e-4)


def test_a_closed_runtime_says_so() -> None:
    runtime = coop_jax.Runtime("1MiB")
    step = coop_jax.run(lambda x: x + 1, runtime=runtime)
    kept = step(np.ones(1000, np.float32))
    runtime.close()
    for front_end in FRONT_ENDS:
        with pytest.raises(RuntimeError, match="closed"):
            getattr(coop_jax, front_end)(lambda x: x + 1, runtime=runtime)(kept)
    np.testing.assert_array_equal(kept, np.full(1000, 2, np.float32))


def test_an_eager_budget_can_be_searched_for() -> None:
    reference = make("remat_eager", None)
    expected = jax.tree.map(np.array, reference(first_params(), data()))
    peak_bytes = reference.runtime.stats().peak_bytes
    found = []
    budget_bytes = smallest_feasible(
        lambda b: found.append(make("remat_eager", b)(first_params(), data())),
        peak_bytes // 4,
        peak_bytes,
    )
    assert budget_bytes < 0.75 * peak_bytes
    assert_same_bits(jax.tree.map(np.asarray, found[0]), expected)
