"""What goes wrong leaves a clear error, intact arguments, and a runtime that works."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits
from tests.testing.faults import (
    BUDGET_BYTES,
    FRONT_ENDS,
    InjectedError,
    Operations,
    data,
    first_params,
    in_use,
    make,
    raise_at,
)


@pytest.fixture(autouse=True)
def _interrupts_arrive() -> Iterator[None]:
    """A shell that runs the tests in the background has them ignore Ctrl-C from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# --- An operation raises ---


def places(operations: Operations) -> list[int]:
    """In the middle of recomputations, and all over the step."""
    count, recomputed = operations.count, operations.recomputed
    assert len(recomputed) > 3, "the budget of this test asks for no recomputation"
    return [recomputed[0], recomputed[len(recomputed) // 2], 0, 1, count // 2, count - 1]


@pytest.mark.unless_fused("counts operations, or asserts what one primitive at a time needs")
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


def test_a_function_may_go_on_after_an_operation_that_raised(operations: Operations) -> None:
    def f(x: jax.Array, fails: bool) -> jax.Array:
        h = jax.lax.sin(x)
        if fails:
            with pytest.raises(InjectedError):
                jax.lax.cos(h)
        for _ in range(6):
            h = jax.lax.add(jax.lax.tan(h), x)
        return h

    step = coop_jax.remat_eager(f)
    expected = np.asarray(step(data(), False))
    operations.restart()
    operations.before = raise_at(1, InjectedError())
    assert_same_bits(np.asarray(step(data(), True)), expected)
    assert operations.count == 14
    step.runtime.memory().pool.validate()


@pytest.mark.unless_fused("counts operations, or asserts what one primitive at a time needs")
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


@pytest.mark.unless_fused("few operations are left: nothing to evict, or it does not fit")
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


def test_no_interrupt_comes_after_a_donated_argument_was_let_go_of(operations: Operations) -> None:
    def f(given: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = (given @ given).sum()  # read once; nothing is written over it
        for _ in range(4):
            x = jnp.tanh(x @ x)
        return x, total

    step = coop_jax.run(f, donate_argnums=0, fusion=False)
    x = np.eye(64, dtype=np.float32)
    given, _ = step(np.ones((64, 64), np.float32), x)
    for _ in range(4):
        operations.restart()
        given, expected = step(given, x)
    last = operations.count - 1
    operations.restart()

    def interrupt(number: int, recompute: bool) -> None:
        if number == last - 1:
            signal.raise_signal(signal.SIGINT)

    operations.before = interrupt
    returned = False
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes a moment later
        given, total = step(given, x)
        returned = True
        time.sleep(60)
    assert returned
    assert_same_bits(np.asarray(total), expected)


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
