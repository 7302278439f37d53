"""Ctrl-C between actions, never inside one.

While operations run, SIGINT is noted and raised as KeyboardInterrupt at the next point where the
state is consistent. A step that has begun to overwrite its donated arguments is finished and its
results are returned; the interrupt follows when the caller has them: a moment later, or at the
beginning of the next call if that comes first (in a loop of steps it would else find each of them
at work). Only Python's default handler is replaced, only in the main thread.

Invariant: an interrupt is raised once. Thread rule: what is handed over is under a lock.
"""

from __future__ import annotations

# The functions of `signal`, which wraps them in code that takes ten times as long.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from types import FrameType

_SIGINT, _DEFAULT = int(signal.SIGINT), signal.default_int_handler


class DeferredInterrupts:
    """Context manager; `check` raises a noted interrupt, one still noted at the end comes later."""

    __slots__ = ("_active", "_noted")

    def __init__(self) -> None:
        self._active = False
        self._noted = False

    def __enter__(self) -> DeferredInterrupts:
        """Raises KeyboardInterrupt if the last call left one."""
        main = threading.current_thread() is threading.main_thread()
        if main and _signal.getsignal(_SIGINT) is _DEFAULT:
            if _handed_over.take():
                raise KeyboardInterrupt
            _signal.signal(_SIGINT, self._note)
            self._active = True
            _main_threads[:] = [self]
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._noted = True

    @property
    def noted(self) -> bool:
        """Whether an interrupt arrived."""
        return self._noted

    def check(self) -> None:
        """Raises KeyboardInterrupt if one arrived."""
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._active:
            _signal.signal(_SIGINT, _DEFAULT)
            self._active = False
            _main_threads.clear()
        if error is None and self._noted:
            # Raised here, it would take the results with it, and the arguments are gone.
            _handed_over.put()


def check() -> None:
    """Raises KeyboardInterrupt if one arrived in the call of this thread.

    For long work before anything runs, as compiling is.
    """
    if _main_threads and threading.current_thread() is threading.main_thread():
        _main_threads[0].check()


_main_threads: list[DeferredInterrupts] = []  # the one that notes them, if there is one


class _HandedOver:
    """An interrupt that the caller gets once it has stored what the call returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def put(self) -> None:
        """It comes soon."""
        with self._lock:
            timer = threading.Timer(_HANDOVER_SECONDS, lambda: self._interrupt(timer))
            timer.daemon = True
            self._timer = timer
            timer.start()

    def take(self) -> bool:
        """Whether there is one; then it does not come any more."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _interrupt(self, timer: threading.Timer) -> None:
        with self._lock:
            if self._timer is not timer:
                return
            self._timer = None
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


# Long enough for the caller to store what the call returned.
_HANDOVER_SECONDS = 0.05

_handed_over = _HandedOver()
