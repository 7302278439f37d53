"""Interrupts at random moments, and what has to hold after each: a tool, and parts for tests.

    python -m tests.testing.interruptions --interrupts 3000 --profile-seconds 600

interrupts each front end so often, wherever it is: while it traces, plans, compiles, launches,
reads a value, begins or ends. A third by Ctrl-C, half by a handler that raises, the rest by an
exception that another thread sets. After each the trace and the settings of JAX, the handlers and
the warning filters are as before, and the next call returns the same bits. Donated arguments are
there, or what they became is; only what another thread set may take them, and says so by a note.

Then steps run beside a handler that does nothing, called a thousand times a second.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import gc
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import coop_jax
from coop_jax._src.compat import thread_state

KINDS = ("handler", "ctrl-c", "thread")
_SHARES = (3, 2, 1)
FRONT_ENDS = ("run", "run, donated", "remat_eager")
WIDTH, ROWS = 32, 64
BUDGET_BYTES_PER_ROW = 1536  # some values have to go
_STATES = 64  # donated state is followed for so many steps


class TimeOutError(Exception):
    """Raised by a handler."""


class FromThreadError(Exception):
    """Set by another thread."""


class SwallowedError(Exception):
    """Where something was raised of which nothing came."""


# Functions around a call, from the one that does work to the one that begins it in C++.
_AROUND = ("interrupted", "go_on", "__call__", "call", "_at")
_PATIENCE_SECONDS = 4.0  # after an interrupt

ERRORS = {"handler": TimeOutError, "ctrl-c": KeyboardInterrupt, "thread": FromThreadError}


def _raise(number: int, frame: Any) -> None:
    _raised_at[:] = [f"{f.filename}:{f.lineno}" for f in traceback.extract_stack(frame, 4)]
    raise TimeOutError


_raised_at: list[str] = []  # by the handler, the last time


@contextmanager
def handlers() -> Iterator[None]:
    """The handlers that interrupts need."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _set_in_main_thread() -> None:
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(FromThreadError))


def came_of(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether it is of that kind, or what JAX made of it.

    JAX's filter of tracebacks fails on bytecodes without a line: another error comes of it.
    """
    return isinstance(error, kind) or isinstance(error.__context__, kind)


def interrupted(work: Callable[[], object], kind: str, seconds: float) -> BaseException:
    """Does work again and again until it is interrupted, once, about so much later.

    Python and JAX swallow what is raised in some places; then it is an error that says so.
    """
    by_signal = {"handler": signal.SIGALRM, "ctrl-c": signal.SIGINT}.get(kind)
    main = threading.main_thread().ident or 0

    def interrupt() -> None:
        time.sleep(seconds)
        if by_signal is None:
            _set_in_main_thread()
        else:
            signal.pthread_kill(main, by_signal)

    # What is raised in a callback of the garbage collector goes no further.
    swallowed: list[BaseException | None] = []
    _raised_at.clear()
    hook = sys.unraisablehook
    sys.unraisablehook = lambda what: swallowed.append(what.exc_value)
    thread = threading.Thread(target=interrupt)
    end = time.monotonic() + seconds + _PATIENCE_SECONDS
    try:
        thread.start()
        while time.monotonic() < end:
            work()
            if swallowed and isinstance(swallowed[0], ERRORS[kind]):
                return swallowed[0]
        if thread.is_alive():
            raise AssertionError(f"an interrupt ({kind}) never came")
        return SwallowedError(" < ".join(reversed(_raised_at)) or "a place that is not known")
    except BaseException as error:
        if not came_of(error, ERRORS[kind]):
            raise
        return error
    finally:
        thread.join()
        sys.unraisablehook = hook


class Subject:
    """A function of a front end, and what it has to return."""

    def __init__(self, front_end: str, rows: int = ROWS) -> None:
        self.front_end = front_end
        self.x = np.random.default_rng(0).standard_normal((rows, WIDTH)).astype(np.float32)
        self.first = np.random.default_rng(1).standard_normal((2, WIDTH, WIDTH)).astype(np.float32)
        self.step = self.make(BUDGET_BYTES_PER_ROW * rows)
        self.expected = [self.first / 6]
        self.reads = front_end == "remat_eager"
        state: Any = jnp.asarray(self.expected[0])
        for _ in range(_STATES):
            state, _ = self.step(state, self.x)
            self.expected.append(np.array(state))
        self.state: Any = None
        self.calls = 0
        self.begin_again()

    def make(self, budget_bytes: int) -> Any:
        """The function, which knows nothing yet."""
        reads = self.front_end == "remat_eager"

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            def loss(state: Any) -> Any:
                h = x
                for n in range(2):
                    h = jnp.tanh(h @ state[n]) + jnp.sin(h)
                return (h**2).mean()

            value, gradient = jax.value_and_grad(loss)(state)
            rate = 0.1 if not reads or value > 0.2 else 0.2
            return state - rate * gradient, value

        if reads:
            return coop_jax.remat_eager(step, budget=budget_bytes)
        donate = 0 if self.front_end == "run, donated" else ()
        return coop_jax.run(step, budget=budget_bytes, donate_argnums=donate)

    def begin_again(self) -> None:
        self.state, self.calls = jnp.asarray(self.expected[0]), 0

    def go_on(self) -> None:
        """One more step of training."""
        if self.calls == _STATES - 1:
            self.begin_again()
        self.state, _ = self.step(self.state, self.x)
        self.calls += 1

    def check(self, error: BaseException | None) -> bool:
        """That nothing was lost; whether donated state was, with a note.

        Raises:
          AssertionError: something is not as it has to be.
        """
        lost = False
        if self.state.is_deleted():
            notes = " ".join(getattr(error, "__notes__", []))
            by_thread = isinstance(error, FromThreadError)
            assert by_thread, "donated arguments were lost"
            known = "donated arguments" in notes or _came_late(error)
            assert known, "donated arguments were lost without a note"
            self.begin_again()
            lost = True
        now = np.array(self.state)
        # It may have come between the step and the count.
        known = [k for k in (self.calls, self.calls + 1) if _same(now, self.expected[k])]
        assert known, "the state is of no step"
        self.calls = known[0]
        self.go_on()
        assert _same(np.array(self.state), self.expected[self.calls]), "the next call is wrong"
        return lost


def _came_late(error: BaseException | None) -> bool:
    """Whether a call was over, and its result not stored yet: nobody can say so any more."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        if trace.tb_frame.f_code.co_name not in _AROUND:
            return False
        trace = trace.tb_next
    return True


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.tobytes() == y.tobytes()


class Interruptions:
    """Interrupts of one front end."""

    def __init__(self, front_end: str, seed: int) -> None:
        self.random = random.Random(f"{front_end} {seed}")
        self.subject = Subject(front_end)
        begin = time.perf_counter()
        for _ in range(20):
            self.subject.go_on()
        self.seconds = (time.perf_counter() - begin) / 20
        self.first_seconds = 0.3
        self.counts: collections.Counter[str] = collections.Counter()

    def interrupt(self, *, first: bool) -> None:
        """One interrupt, and all that has to hold after it.

        Args:
          first: whether of a first call, which traces, plans and compiles.
        """
        # CPython 3.11 may give what is meant for a thread to one that it is about to start, and
        # then waits for that for ever: first calls start threads.
        kind = self.random.choices(KINDS, (*_SHARES[:2], 0) if first else _SHARES)[0]
        before, subject = thread_state.saved(), self.subject
        handled = [signal.getsignal(n) for n in range(1, 32)]
        longest = 1.2 * self.first_seconds if first else 3 * self.seconds
        work: Callable[[], object] = subject.go_on
        if first:
            rows = self.random.randrange(8, 4096)
            x = np.zeros((rows, WIDTH), np.float32)

            def work() -> None:
                begin = time.perf_counter()
                made = subject.make(BUDGET_BYTES_PER_ROW * 4096)
                made(jnp.asarray(subject.expected[0]), x)
                seconds = time.perf_counter() - begin
                self.first_seconds = 0.8 * self.first_seconds + 0.2 * seconds

        error = interrupted(work, kind, self.random.random() * longest)
        assert thread_state.saved() == before, "JAX's state is not as before"
        assert [signal.getsignal(n) for n in range(1, 32)] == handled, "a handler is another one"
        self.counts[kind] += 1
        if isinstance(error, SwallowedError):
            self.counts[f"swallowed at {error}"] += 1
        self.counts["lost, with a note"] += subject.check(error)
        del error
        subject.step.runtime.memory().pool.validate()

    def finish(self) -> None:
        """That nothing is held any more."""
        self.subject.state = None
        gc.collect()
        held = list(self.subject.step.runtime.memory().pool.live_blocks())
        assert not held, f"blocks are held: {held}"


def profiled(seconds: float, hertz: float = 1000.0) -> tuple[int, int]:
    """Steps beside a handler that does nothing; how many, and how often that was called."""
    calls = 0

    def nothing(number: int, frame: Any) -> None:
        nonlocal calls
        calls += 1

    subjects = [Subject(front_end, rows=256) for front_end in FRONT_ENDS]
    before = signal.signal(signal.SIGPROF, nothing)
    signal.setitimer(signal.ITIMER_PROF, 1 / hertz, 1 / hertz)
    steps, end = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            for subject in subjects:
                for _ in range(10):
                    subject.go_on()
                steps += 10
                subject.check(None)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return steps, calls


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--interrupts", type=int, default=3000, help="of each front end")
    parser.add_argument("--front-ends", nargs="+", choices=FRONT_ENDS, default=FRONT_ENDS)
    parser.add_argument("--first-calls", type=float, default=0.1, help="the share of first calls")
    parser.add_argument("--profile-seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"jax {jax.__version__}, Python {sys.version.split()[0]}, seed {given.seed}")
    with handlers():
        if given.profile_seconds:
            steps, calls = profiled(given.profile_seconds)
            seconds = given.profile_seconds
            print(f"{steps} steps beside {calls} signals in {seconds:.0f} s", flush=True)
        for front_end in given.front_ends:
            begin, tried = time.monotonic(), Interruptions(front_end, given.seed)
            for _ in range(given.interrupts):
                tried.interrupt(first=tried.random.random() < given.first_calls)
            tried.finish()
            seconds = time.monotonic() - begin
            print(f"{front_end}: {dict(tried.counts)} in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
