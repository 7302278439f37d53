"""What goes wrong leaves a clear error, intact arguments, and a runtime that works.

Faults are put in by replacing the function through which every operation of both front ends goes to
XLA, or the two that know whether it is a recomputation.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_same_bits, smallest_feasible

import coop_jax
from coop_jax._src import executor, session

FRONT_ENDS = ["run", "remat_eager"]
WIDTH, ROWS, LAYERS = 32, 256, 6
BUDGET_BYTES = 450_000  # about half of what the step needs


class InjectedError(Exception):
    """What an operation raises here."""


def step_fn(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
        h = x
        for w in params:
            h = jnp.tanh(h @ w) + jnp.sin(h)
        return (h**2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], loss


def first_params() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6 for _ in range(LAYERS)]


def data(number: int = 0) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((ROWS, WIDTH)).astype(np.float32)


def make(
    front_end: str, budget: Any = BUDGET_BYTES, *, donate: bool = False, fn: Any = step_fn
) -> Any:
    if front_end == "run":
        return coop_jax.run(fn, budget=budget, donate_argnums=0 if donate else ())
    return coop_jax.remat_eager(fn, budget=budget)


class Operations:
    """Counts operations as they run, and may do something at one of them.

    `before(number, recompute)` is called before operation `number` (from 0) goes to XLA.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.recomputed: list[int] = []
        self.before: Callable[[int, bool], None] = lambda number, recompute: None
        self._recompute = False
        launch = executor.launch
        plan_run, session_run = executor._run, session.Session._run

        def counted_launch(*args: Any, **kwargs: Any) -> Any:
            number, self.count = self.count, self.count + 1
            if self._recompute:
                self.recomputed.append(number)
            try:
                self.before(number, self._recompute)
            except BaseException:
                args[2].clear()  # as launch does, whatever happens: the error holds this frame
                raise
            return launch(*args, **kwargs)

        def counted_plan_run(run: Any, *args: Any) -> None:
            self._recompute = run.recompute
            plan_run(run, *args)

        def counted_session_run(it: Any, *args: Any, recompute: bool, **kwargs: Any) -> None:
            self._recompute = recompute
            session_run(it, *args, recompute=recompute, **kwargs)

        patch.setattr(executor, "launch", counted_launch)
        patch.setattr(session, "launch", counted_launch)
        patch.setattr(executor, "_run", counted_plan_run)
        patch.setattr(session.Session, "_run", counted_session_run)

    def restart(self) -> None:
        self.count = 0
        self.recomputed = []
        self.before = lambda number, recompute: None


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Operations:
    return Operations(monkeypatch)


def raise_at(wanted: int, error: BaseException) -> Callable[[int, bool], None]:
    def before(number: int, recompute: bool) -> None:
        if number == wanted:
            raise error

    return before


def in_use(runtime: coop_jax.Runtime) -> list[tuple[int, int]]:
    return list(runtime.memory().pool.live_blocks())


# --- An operation raises ---


def places(operations: Operations) -> list[int]:
    """In the middle of recomputations, and all over the step."""
    count, recomputed = operations.count, operations.recomputed
    assert len(recomputed) > 3, "the budget of this test asks for no recomputation"
    return [recomputed[0], recomputed[len(recomputed) // 2], 0, 1, count // 2, count - 1]


@pytest.mark.parametrize("error", [InjectedError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_an_operation_that_raises_leaves_everything_as_before(
    front_end: str, error: type[BaseException], operations: Operations
) -> None:
    step = make(front_end)
    params, _ = step(first_params(), data())
    before, blocks = jax.tree.map(np.array, params), in_use(step.runtime)
    operations.restart()
    expected = jax.tree.map(np.array, step(params, data(1)))
    for number in places(operations):
        operations.restart()
        operations.before = raise_at(number, error("on purpose"))
        with pytest.raises(error, match="on purpose") as held:
            step(params, data(1))
        assert operations.count == number + 1
        operations.restart()
        step.runtime.memory().pool.validate()
        # Also while somebody holds the error and its traceback, as IPython does.
        assert in_use(step.runtime) == blocks
        assert held.value is not None
    assert_same_bits(jax.tree.map(np.asarray, params), before)
    assert_same_bits(jax.tree.map(np.asarray, step(params, data(1))), expected)
    assert step.runtime.stats().peak_bytes <= BUDGET_BYTES


def test_donated_arguments_are_intact_or_the_error_says_that_they_are_not(
    operations: Operations,
) -> None:
    step = make("run", donate=True)
    params, _ = step(first_params(), data())
    host = jax.tree.map(np.array, params)
    operations.restart()
    params, _ = step(params, data(1))
    expected = jax.tree.map(np.array, params)
    recomputed, count = operations.recomputed[len(operations.recomputed) // 2], operations.count
    del params
    noted = 0
    for number in (recomputed, 0, count // 3, count - 2, count - 1):
        params, _ = step(first_params(), data())
        assert_same_bits(jax.tree.map(np.asarray, params), host)
        operations.restart()
        operations.before = raise_at(number, InjectedError("on purpose"))
        with pytest.raises(InjectedError) as caught:
            step(params, data(1))
        operations.restart()
        notes = " ".join(getattr(caught.value, "__notes__", []))
        if "donated arguments" in notes:
            noted += 1
            for array, old in zip(params, host, strict=True):
                if not array.is_deleted():
                    np.testing.assert_array_equal(array, old)
            del array
        else:
            assert_same_bits(jax.tree.map(np.asarray, params), host)
            params, _ = step(params, data(1))
            assert_same_bits(jax.tree.map(np.asarray, params), expected)
        if number == recomputed:
            assert not notes, "a fault in the middle of a recomputation took the parameters"
        del params, caught
        gc.collect()  # the error is in a cycle with the frame that raised it
        assert in_use(step.runtime) == []
    assert noted > 0, "no fault came late enough to test the note"


# --- Ctrl-C ---


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_real_interrupt_in_a_recomputation_is_raised_between_operations(
    front_end: str, operations: Operations
) -> None:
    step = make(front_end)
    params, _ = step(first_params(), data())
    blocks = in_use(step.runtime)
    operations.restart()
    expected = jax.tree.map(np.array, step(params, data(1)))
    count, late = operations.count, None
    for number in places(operations):
        operations.restart()

        def interrupt(here: int, recompute: bool, number: int = number) -> None:
            if here == number:
                signal.raise_signal(signal.SIGINT)

        operations.before = interrupt
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come a moment later
            late = step(params, data(1))
            time.sleep(60)
        if number < count - 1:
            assert operations.count <= number + 2, "the interrupt waited for the end"
        if late is not None:
            assert_same_bits(jax.tree.map(np.asarray, late), expected)
        late = None
        operations.restart()
        assert in_use(step.runtime) == blocks
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert_same_bits(jax.tree.map(np.asarray, step(params, data(1))), expected)


def test_an_interrupt_loses_no_donated_parameters(operations: Operations) -> None:
    step = make("run", donate=True)
    params, _ = step(first_params(), data())
    host = jax.tree.map(np.array, params)
    operations.restart()
    params, _ = step(params, data(1))
    expected = jax.tree.map(np.array, params)
    count, late = operations.count, 0
    for number in (0, operations.recomputed[-1], count - 3, count - 1):
        del params
        params, _ = step(first_params(), data())
        returned = False
        operations.restart()

        def interrupt(here: int, recompute: bool, number: int = number) -> None:
            if here == number:
                signal.raise_signal(signal.SIGINT)

        operations.before = interrupt
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come a moment later
            params, _ = step(params, data(1))
            returned = True
            time.sleep(60)
        operations.restart()
        late += returned
        assert_same_bits(jax.tree.map(np.asarray, params), expected if returned else host)
    assert 0 < late < 4


def test_a_handler_of_the_users_own_is_left_alone(operations: Operations) -> None:
    step = make("run")
    seen = []

    def handler(signum: int, frame: Any) -> None:
        seen.append(signum)

    old = signal.signal(signal.SIGINT, handler)
    try:

        def interrupt(number: int, recompute: bool) -> None:
            if number == 2:
                signal.raise_signal(signal.SIGINT)

        operations.before = interrupt
        step(first_params(), data())
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, old)
    assert seen == [signal.SIGINT]


# --- Budgets that do not suffice ---

TOO_SMALL_BYTES = 120_000


def check_report(report: coop_jax.BudgetReport, message: str, budget_bytes: int) -> None:
    assert report.budget_bytes == budget_bytes
    assert report.requested_bytes > 0
    assert 0 <= report.pinned_bytes <= report.in_use_bytes <= budget_bytes
    assert 0 <= report.largest_free_block_bytes <= budget_bytes - report.in_use_bytes
    assert report.largest_free_block_bytes <= report.largest_window_bytes
    assert report.largest_window_bytes <= budget_bytes - report.pinned_bytes
    for value in (
        report.requested_bytes,
        report.budget_bytes,
        report.in_use_bytes,
        report.pinned_bytes,
        report.largest_free_block_bytes,
        report.largest_window_bytes,
    ):
        assert f"({value} bytes)" in message
    assert report.operation in message
    assert report.source in message
    assert "What to change" in message


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte"])
def test_run_knows_before_it_begins_that_a_budget_is_too_small(
    policy: str, donate: bool, operations: Operations
) -> None:
    runtime = coop_jax.Runtime(TOO_SMALL_BYTES, policy=policy)
    step = coop_jax.run(step_fn, runtime=runtime, donate_argnums=0 if donate else ())
    small = coop_jax.run(lambda params: [p * 2 for p in params], runtime=runtime)
    params = small(first_params())
    blocks = in_use(runtime)
    operations.restart()
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        step(params, data())
    assert operations.count == 0, "an operation ran before the error"
    error = caught.value
    assert isinstance(error, MemoryError)
    check_report(error.report, str(error), TOO_SMALL_BYTES)
    # A request that no window can hold: that is why it failed.
    assert error.report.requested_bytes > error.report.largest_window_bytes
    assert re.search(r"test_faults\.py:\d+", error.report.source), error.report.source
    assert "'" in error.report.operation
    smallest = error.report.smallest_budget_bytes
    assert smallest is not None
    assert smallest > TOO_SMALL_BYTES
    assert f"({smallest} bytes)" in str(error)
    # The same runtime, the same arrays.
    assert in_use(runtime) == blocks
    assert_same_bits(
        jax.tree.map(np.asarray, small(params)), [p * np.float32(4) for p in first_params()]
    )


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte"])
def test_the_smallest_budget_that_the_error_names_does(policy: str, donate: bool) -> None:
    def attempt(budget: int | None) -> Any:
        step = coop_jax.run(
            step_fn, budget=budget, policy=policy, donate_argnums=0 if donate else ()
        )
        out = step(first_params(), data())
        if budget is not None:
            assert step.runtime.stats().peak_bytes <= budget
        return jax.tree.map(np.array, out)

    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        attempt(TOO_SMALL_BYTES)
    smallest = caught.value.report.smallest_budget_bytes
    assert smallest is not None
    assert_same_bits(attempt(smallest), attempt(None))
    with pytest.raises(coop_jax.BudgetExceededError):
        attempt(int(0.85 * smallest))


def test_an_eager_program_that_does_not_fit_says_where_and_the_runtime_goes_on() -> None:
    runtime = coop_jax.Runtime(TOO_SMALL_BYTES)
    step = coop_jax.remat_eager(step_fn, runtime=runtime)
    small = coop_jax.remat_eager(lambda params: [p * 2 for p in params], runtime=runtime)
    params = small(first_params())
    blocks = in_use(runtime)
    for _ in range(2):
        with pytest.raises(coop_jax.BudgetExceededError) as caught:
            step(params, data())
        check_report(caught.value.report, str(caught.value), TOO_SMALL_BYTES)
        assert re.search(r"test_faults\.py:\d+", caught.value.report.source)
        assert in_use(runtime) == blocks
    assert_same_bits(
        jax.tree.map(np.asarray, small(params)), [p * np.float32(4) for p in first_params()]
    )


def test_arguments_larger_than_the_budget() -> None:
    x = np.ones(100_000, np.float32)
    for front_end in FRONT_ENDS:
        step = make(front_end, 100_000, fn=lambda x: x.sum())
        with pytest.raises(coop_jax.BudgetExceededError) as caught:
            step(x)
        assert caught.value.report.budget_bytes == 100_000
        assert str(caught.value)
        assert float(step(x[:1000])) == 1000


def test_one_operation_larger_than_the_budget() -> None:
    for front_end in FRONT_ENDS:
        step = make(front_end, 100_000, fn=lambda x: jnp.sin(x[:, None] + x[None, :]).sum())
        with pytest.raises(coop_jax.BudgetExceededError) as caught:
            step(np.ones(400, np.float32))
        assert caught.value.report.requested_bytes >= 640_000
        assert np.isfinite(float(step(np.ones(50, np.float32))))


def test_the_error_can_be_pickled() -> None:
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        make("run", TOO_SMALL_BYTES)(first_params(), data())
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.report == caught.value.report
    assert str(again) == str(caught.value)


def test_workspace_counts() -> None:
    x = np.ones((64, 64), np.float32)
    fits = coop_jax.Runtime(4 * x.nbytes, workspace=0 or None)
    coop_jax.run(lambda x: x * 2, runtime=fits)(x)
    kept = coop_jax.Runtime(4 * x.nbytes, workspace=3 * x.nbytes)
    with pytest.raises(coop_jax.BudgetExceededError):
        coop_jax.run(lambda x: x * 2, runtime=kept)(x)


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
    found = subprocess.run(
        [sys.executable, "-c", _CALLBACK, front_end],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    assert found.stdout.strip() == "fine"


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


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_call_inside_a_transformation_is_refused(front_end: str) -> None:
    step = make(front_end, "4MiB", fn=lambda x: jnp.sin(x).sum())
    with pytest.raises((TypeError, RuntimeError), match="inside"):
        jax.grad(step)(data())
    with pytest.raises((TypeError, RuntimeError), match="inside"):
        jax.jit(step)(data())
    assert np.isfinite(float(step(data())))


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
