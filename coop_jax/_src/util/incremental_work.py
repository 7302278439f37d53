"""Long work in pieces, between calls: nobody waits for it, each call takes a little longer.

Work is a generator: it yields after each piece, with what it waits for (futures of other threads,
or nothing). Pieces run on the caller's thread, under its locks and with its settings of JAX; only
what is put into futures runs beside calls.

Invariants: on average pieces take at most the share of time that they are given; one piece that
takes longer is made up for. After an error or the end nothing is left to do.
Thread rule: one caller at a time.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# What yields has nothing to wait for, or has to wait until one of these is done.
Pieces = Generator[Sequence[concurrent.futures.Future[Any]], None, T]


class GradualWork(Generic[T]):
    """Work that goes on whenever it is given time.

    Attributes:
      result: what the pieces returned, once they are `done`.
    """

    __slots__ = ("_pieces", "_seconds", "_waits_for", "done", "result")

    def __init__(self, pieces: Pieces[T]):
        self._pieces = pieces
        self._seconds = 0.0  # that may be taken; negative: more were than there were
        self._waits_for: Sequence[concurrent.futures.Future[Any]] = ()
        self.done = False
        self.result: T | None = None

    def go_on(self, seconds: float) -> None:
        """Does pieces, as long as there is time and nothing to wait for.

        Args:
          seconds: what may be taken, at least about; never waits.

        Raises:
          Whatever a piece raises; the work is over then, without a result.
        """
        self._seconds = min(self._seconds + seconds, seconds)
        while not self.done and self._seconds > 0 and self._may_go_on():
            begin = perf_counter()
            self._next()
            self._seconds -= perf_counter() - begin

    def finish(self) -> None:
        """Does all that is left, and waits where that has to be.

        Raises:
          Whatever a piece raises; the work is over then, without a result.
        """
        while not self.done:
            if self._waits_for:
                concurrent.futures.wait(
                    self._waits_for, return_when=concurrent.futures.FIRST_COMPLETED
                )
            self._next()

    def _may_go_on(self) -> bool:
        return not self._waits_for or any(f.done() for f in self._waits_for)

    def _next(self) -> None:
        try:
            self._waits_for = next(self._pieces)
        except StopIteration as end:
            self.done, self.result = True, end.value
        except BaseException:
            self.done = True
            raise
