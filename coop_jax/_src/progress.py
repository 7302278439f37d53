"""Progress of long work on a terminal: with tqdm if that is installed, else none."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any, Protocol

# Work that is done sooner shows nothing.
_QUIET_SECONDS = 2.0


class Bar(Protocol):
    """What shows progress."""

    def update(self) -> Any:
        """One more part is done."""


class _NoBar:
    def update(self) -> None:
        pass


@contextlib.contextmanager
def progress_bar(total: int, what: str) -> Iterator[Bar]:
    """A bar over so many parts, on a terminal, if it takes long; it is gone afterwards."""
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        tqdm = None
    if tqdm is None or not sys.stderr.isatty():
        yield _NoBar()
        return
    with tqdm(total=total, desc=f"coop_jax: {what}", delay=_QUIET_SECONDS, leave=False) as bar:
        yield bar
