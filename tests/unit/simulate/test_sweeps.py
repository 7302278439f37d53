"""A sweep that is interrupted does not begin what is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from coop_jax._src.simulate import budget_search


class _Waiting:
    """A simulator whose plans take until the sweep was interrupted."""

    def __init__(self) -> None:
        self.begun = 0
        self.interrupted = threading.Event()

    def resolve(self, budget: int) -> int:
        return budget

    def simulate(self, budget: int, *, find_smallest: bool) -> None:
        self.begun += 1
        self.interrupted.wait(60)


def test_an_interrupted_sweep_ends_after_what_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = _Waiting()

    def interrupted(items: Iterator[Any], total: int, name: str) -> Iterator[Any]:
        threading.Timer(0.2, simulator.interrupted.set).start()
        raise KeyboardInterrupt
        yield from items

    monkeypatch.setattr(budget_search, "_shown", interrupted)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        budget_search.swept("a program", [simulator], [1] * 100, shown=True)
    assert simulator.begun <= 2
