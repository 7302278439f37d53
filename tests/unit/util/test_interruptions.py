"""Whatever is raised at whatever moment: the next call is right, and all is as before."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from coop_jax._src.compat import thread_state
from tests.testing import interruptions
from tests.testing.interruptions import FRONT_ENDS, FromThreadError, Interruptions, Subject, came_of
from tests.testing.processes import ROOT

pytestmark = [
    pytest.mark.no_recomputation("its calls are broken off"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with interruptions.handlers():
        yield


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_interrupts_at_random_moments(front_end: str) -> None:
    tried = Interruptions(front_end, seed=0)
    for number in range(24):
        tried.interrupt(first=number % 12 == 11)
    tried.finish()


class _AtBytecode:
    """Raises before the bytecode of that number of our own code, as if another thread had set it.

    Numbers count from 0; without one nothing is raised.
    """

    def __init__(self, number: int | None) -> None:
        self._number = number
        self.seen = 0

    def __enter__(self) -> _AtBytecode:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if "/coop_jax/_src/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._at

    def _at(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.seen += 1
            if self.seen - 1 == self._number:
                raise FromThreadError
        return self._at


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_an_exception_between_any_two_bytecodes(front_end: str) -> None:
    subject = Subject(front_end)
    for _ in range(3):
        subject.go_on()
    with _AtBytecode(None) as counted:
        subject.go_on()
    runtime, lost, raised = subject.step.runtime, 0, 0
    numbers = range(0, counted.seen, max(1, counted.seen // 150))
    for number in numbers:
        before = thread_state.saved()
        error: BaseException | None = None
        try:
            with _AtBytecode(number):
                subject.go_on()
        except Exception as caught:
            if not came_of(caught, FromThreadError):
                raise
            error = caught.with_traceback(caught.__traceback__ and caught.__traceback__.tb_next)
            raised += 1
        assert thread_state.saved() == before, f"JAX's state after bytecode {number}"
        lost += subject.check(error)
        del error
        runtime.memory().pool.validate()
    assert raised > 0.8 * len(numbers)
    assert lost == 0 or front_end == "run, donated"


def test_a_handler_that_does_nothing_is_harmless() -> None:
    """A matrix product on the caller's thread, where a signal that is handled there lands."""
    script = "from tests.testing import interruptions as i; print(i.profiled(6.0))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps, calls = eval(done.stdout)
    assert steps > 0
    assert calls > 0


def test_a_timer_that_runs_does_not_end_the_process() -> None:
    script = (
        "import signal, coop_jax, jax.numpy as jnp\n"
        "signal.signal(signal.SIGPROF, lambda number, frame: None)\n"
        "signal.setitimer(signal.ITIMER_PROF, 1e-3, 1e-3)\n"
        "coop_jax.run(lambda x: jnp.tanh(x @ x))(jnp.ones((8, 8)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert signal.getsignal(signal.SIGPROF) is not signal.SIG_IGN
