"""Ctrl-C between actions, never inside one.

While operations run, SIGINT is noted and raised as KeyboardInterrupt at the next point where the
state is consistent. A step that has begun to overwrite its donated arguments is finished and its
results are returned; the interrupt follows a moment later, when the caller has them. Only Python's
default handler is replaced, only in the main thread.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class DeferredInterrupts:
    """Context manager; `check` raises a noted interrupt, one still noted at the end comes later."""

    __slots__ = ("_active", "_noted")

    def __init__(self) -> None:
        self._active = False
        self._noted = False

    def __enter__(self) -> DeferredInterrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._active = True
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
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._active = False
        if error is None and self._noted:
            # Raised here, it would take the results with it, and the arguments are gone.
            timer = threading.Timer(_HANDOVER_SECONDS, _interrupt_main_thread)
            timer.daemon = True
            timer.start()


# Long enough for the caller to store what the call returned.
_HANDOVER_SECONDS = 0.05


def _interrupt_main_thread() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
