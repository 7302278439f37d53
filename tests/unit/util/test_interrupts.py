"""Ctrl-C in a loop of steps: raised once, between two of them if it finds each of them at work."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.execution.executables import Executable
from coop_jax._src.util import interrupts
from coop_jax._src.util.interrupts import Interrupts, guarded


@pytest.fixture(autouse=True)
def _interrupts_arrive() -> Iterator[None]:
    """Whoever runs the tests may have turned Ctrl-C off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def with_nothing_to_do(function: Callable[[], object], *, consumed: bool = True) -> object:
    """A call that calls a function of Python."""
    waiting = Interrupts()

    def call() -> object:
        waiting.consumed = consumed
        return function()

    return guarded(None, waiting, None, call)


def leave_one() -> None:
    """A call that an interrupt found at work."""
    with_nothing_to_do(lambda: signal.raise_signal(signal.SIGINT))


def test_one_that_is_left_comes_a_moment_later() -> None:
    leave_one()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(60)


def test_one_that_is_left_comes_at_the_next_call_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_HANDOVER_SECONDS", 0.2)
    leave_one()
    with pytest.raises(KeyboardInterrupt):
        with_nothing_to_do(lambda: None)
    with_nothing_to_do(lambda: time.sleep(0.4), consumed=False)
    time.sleep(0.4)


def test_other_threads_and_handlers_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_HANDOVER_SECONDS", 0.5)

    def call() -> None:
        with_nothing_to_do(lambda: None)

    leave_one()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    with pytest.raises(KeyboardInterrupt):
        call()


def test_an_interrupt_before_a_call_leaves_its_donated_arguments() -> None:
    step = coop_jax.run(lambda x: jnp.tanh(x @ x), donate_argnums=0)
    x = step(jnp.eye(64))
    leave_one()
    with pytest.raises(KeyboardInterrupt):
        step(x)
    assert not x.is_deleted()
    assert step(x).shape == (64, 64)


def test_an_interrupt_while_operations_are_compiled_does_not_wait_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []
    compile_one = Executable.compile

    def noted(self: Executable) -> None:
        compiled.append(self.kernel.label)
        if len(compiled) == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)
        compile_one(self)

    def chain(x: jax.Array) -> jax.Array:
        for k in range(40):
            x = jnp.tanh(x @ x) + jnp.float32(1000 + k) / 7
        return x

    monkeypatch.setattr(Executable, "compile", noted)
    step = coop_jax.run(chain, donate_argnums=0, fusion=False)
    x = jnp.eye(48)
    with pytest.raises(KeyboardInterrupt):
        step(x)
    assert 2 <= len(compiled) <= 12
    assert not x.is_deleted()
    monkeypatch.undo()
    assert step(x).shape == (48, 48)


@pytest.mark.parametrize("segments", ["0", "1"])
def test_a_loop_of_steps_stops(segments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes longer than it takes until an interrupt is handed over."""
    monkeypatch.setenv("COOP_JAX_SEGMENTS", segments)
    monkeypatch.delenv("COOP_JAX_VERIFY", raising=False)
    monkeypatch.setattr(interrupts, "_HANDOVER_SECONDS", 0.001)
    begun = threading.Event()

    def slow(x: Any) -> Any:
        begun.set()
        time.sleep(0.05)
        return x

    def update(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = state - 0.1 * jnp.tanh(state @ x)  # the argument is consumed first
        x = jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return state, jnp.tanh(state @ x)

    step = coop_jax.run(update, donate_argnums=0, fusion=True)
    state, x = jnp.eye(64), jnp.eye(64) / 2
    for _ in range(8):
        state, _ = step(state, x)
    begun.clear()

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    calls = 0
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - in whichever call
        for _ in range(100):
            state, _ = step(state, x)
            calls += 1
    thread.join()
    assert calls <= 2
    assert not state.is_deleted()


def test_signals_arrive_again_once_the_caller_has_what_a_call_took_its_arguments_for() -> None:
    step = coop_jax.run(lambda x: x + 1, donate_argnums=0)
    x = step(jnp.zeros(64))
    for _ in range(3):
        x = step(x)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    (x,) = map(step, [x])  # the caller is C
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert float(x[0]) == 5.0


def test_a_handler_that_raises_waits_until_the_caller_has_the_results() -> None:
    class TimeOutError(Exception):
        pass

    calls: list[int] = []

    def handler(number: int, frame: Any) -> None:
        calls.append(number)
        raise TimeOutError

    def raise_in_callback(x: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return x

    def update(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = state - jnp.tanh(state @ x)  # the argument is consumed first
        return state, jax.pure_callback(raise_in_callback, jax.typeof(x), x @ x)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        step = coop_jax.run(update, donate_argnums=0)
        x = jnp.eye(64) / 2
        for number in range(3):
            state = jnp.eye(64)
            with pytest.raises(TimeOutError) as caught:  # noqa: PT012 - a moment later
                state, _ = step(state, x)
                while True:
                    time.sleep(0.01)
            assert len(calls) == number + 1
            assert not state.is_deleted()
            assert not getattr(caught.value, "__notes__", [])
            assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_is_raised_while_something_is_handed_over_follows_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AnotherError(Exception):
        pass

    start, failures = threading.Timer.start, [AnotherError()]

    def start_with_an_error(timer: threading.Timer) -> None:
        if failures:
            raise failures.pop()
        start(timer)

    monkeypatch.setattr(threading.Timer, "start", start_with_an_error)

    def raise_in_callback(x: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return x

    def update(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = state - jnp.tanh(state @ x)  # the argument is consumed first
        return state, jax.pure_callback(raise_in_callback, jax.typeof(x), x @ x)

    state = jnp.eye(64)
    step = coop_jax.run(update, donate_argnums=0)
    with pytest.raises(AnotherError):  # noqa: PT012 - a moment later
        state, _ = step(state, jnp.eye(64) / 2)
        while True:
            time.sleep(0.01)
    assert not failures
    assert not state.is_deleted()


def test_all_of_our_files_are_known_as_ours() -> None:
    """Between their bytecodes nothing is raised; that shows only where threads are late."""
    ours = [
        module.__file__
        for name, module in sys.modules.items()
        if name.startswith("coop_jax._src.") and module.__file__
    ]
    assert len(ours) > 100
    assert all(file.startswith(interrupts._OURS + os.sep) for file in ours)
    assert not __file__.startswith(interrupts._OURS)
