"""Long work shows how far it is, on a terminal and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from coop_jax._src import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_for_people(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    pytest.importorskip("tqdm")
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0)
    with progress.progress_bar(3, "compiling operations") as bar:
        for _ in range(3):
            bar.update()
    assert ("coop_jax: compiling operations" in stream.getvalue()) == terminal


def test_without_tqdm_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with progress.progress_bar(2, "compiling operations") as bar:
        bar.update()
    assert stream.getvalue() == ""
