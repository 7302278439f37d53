"""Signals while a call of `run` goes on: handlers run at once, what they raise waits.

A handler that raises (Python's own of Ctrl-C, a time-out) would do so between any two bytecodes.
While a call goes on it is raised where the state is consistent: between operations, while they are
compiled. A step that has begun to overwrite its donated arguments is finished and its results are
returned; what was raised follows when the caller has them: a moment later, or at the beginning of
the next call if that comes first (in a loop of steps it would else find each of them at work).
What does not come from a signal (`PyThreadState_SetAsyncExc`) cannot wait; a note on the error says
so where that took donated arguments. How calls begin and end is in cc/python/guard/call_guard.h.

Invariant: what a handler raises is raised once. Thread rule: what is handed over is under a lock.
"""

from __future__ import annotations

import atexit
import pathlib
import signal
import threading

from coop_jax import _core
from coop_jax._core import Interrupts as Interrupts
from coop_jax._core import check_interrupts as check_interrupts
from coop_jax._core import guarded as guarded


class _HandedOver:
    """What the caller gets once it has stored what the call returned."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # `put` may be called again where it was interrupted
        self._timer: threading.Timer | None = None
        self._error: BaseException | None = None  # None: Ctrl-C

    def put(self, error: BaseException | None) -> None:
        """It comes soon. May be called again where that was interrupted."""
        timer = threading.Timer(_HANDOVER_SECONDS, lambda: self._come(timer))
        timer.daemon = True
        with self._lock:
            self._timer, self._error = timer, error
        try:
            timer.start()
        except RuntimeError:  # the interpreter ends
            self.take()

    def take(self) -> None:
        """Raises it, if there is one: it does not come any more."""
        with self._lock:
            timer, self._timer = self._timer, None
            error, self._error = self._error, None
            _core.nothing_is_left()
        if timer is None:
            return
        timer.cancel()
        raise KeyboardInterrupt if error is None else error

    def _come(self, timer: threading.Timer) -> None:
        with self._lock:
            if self._timer is not timer:
                return
            error, self._error, self._timer = self._error, None, None
            _core.nothing_is_left()
            if error is None:  # by the signal itself: it also ends what the caller waits in
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                _core.raise_in_main_thread(error)


# Long enough for the caller to store what the call returned.
_HANDOVER_SECONDS = 0.05

_handed_over = _HandedOver()
# Between any of our own bytecodes nothing may be raised: they are known by where their files lie.
_OURS = str(pathlib.Path(__file__).parents[1])
_core.set_handover(_handed_over.put, _handed_over.take, _OURS)


@atexit.register
def _quiet_timers() -> None:
    """A profiler's timer that still runs does not end the process while the interpreter ends.

    Python takes its handlers away before it takes JAX's modules apart, which takes so long that the
    next signal of a timer comes in between, and ends the process with its number.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
