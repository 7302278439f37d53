"""Progress of long work on a terminal or in a notebook: with tqdm if that is installed, else none.

Whether it is shown: as a `Runtime` was told, or `sweep`; else as COOP_JAX_PROGRESS says (0 or 1);
else where a person looks, that is, where stderr is a terminal or the process serves a notebook.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

from coop_jax._src.util import env

# Work that is done sooner shows nothing.
_QUIET_SECONDS = 2.0

_asked: contextvars.ContextVar[bool | None] = contextvars.ContextVar("progress", default=None)


class Bar(Protocol):
    """What shows progress."""

    def update(self) -> Any:
        """One more part is done."""


class _NoBar:
    def update(self) -> None:
        pass


@contextlib.contextmanager
def shown(asked: bool | None) -> Iterator[None]:
    """Shows progress of what is done inside if that is asked for; None decides as outside."""
    before = _asked.set(_asked.get() if asked is None else asked)
    try:
        yield
    finally:
        _asked.reset(before)


def is_shown(asked: bool | None = None) -> bool:
    """Whether progress is shown, here or as asked."""
    for told in (asked, _asked.get(), env.setting("COOP_JAX_PROGRESS")):
        if told is not None:
            return told
    return sys.stderr.isatty() or _in_notebook()


@contextlib.contextmanager
def progress_bar(total: int, what: str, delay: float | None = None) -> Iterator[Bar]:
    """A bar over so many parts, where progress is shown, if it takes long; it is gone afterwards.

    `delay` are the seconds until it appears, 2 if None.
    """
    make = tqdm() if is_shown() else None
    if make is None:
        yield _NoBar()
        return
    delay = _QUIET_SECONDS if delay is None else delay
    with make(total=total, desc=f"coop_jax: {what}", delay=delay, leave=False) as bar:
        yield bar


def tqdm() -> Any:
    """The class of bars that fits the place, None without tqdm."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of notebooks without widgets: text will do
            return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return "IPKernelApp" in getattr(shell, "config", ())
