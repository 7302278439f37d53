"""Ctrl-C between actions, never inside one.

While operations run, SIGINT is noted and raised as KeyboardInterrupt at the next point where the
state is consistent. Only Python's default handler is replaced, only in the main thread.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class DeferredInterrupts:
    """Context manager; `check` raises a noted interrupt, leaving raises one that is still noted."""

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
        if error is None:
            self.check()
