"""Long work shows how far it is, on a terminal and nowhere else."""

from __future__ import annotations

import io
import itertools
import sys
import types

import numpy as np
import pytest

import coop_jax
from coop_jax._src.util import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# Each makes an operation that was not compiled before.
_NUMBERS = itertools.count(1234)


def _shows(stream: io.StringIO) -> bool:
    with progress.progress_bar(3, "compiling operations") as bar:
        for _ in range(3):
            bar.update()
    return "coop_jax: compiling operations" in stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_for_people(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    pytest.importorskip("tqdm")
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0)
    assert _shows(stream) == terminal


def test_without_tqdm_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with progress.progress_bar(2, "compiling operations") as bar:
        bar.update()
    assert stream.getvalue() == ""


def test_notebooks_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0)
    shell = types.SimpleNamespace(config={})
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)  # type: ignore[arg-type]
    assert not _shows(stream)
    shell.config["IPKernelApp"] = {}
    assert _shows(stream)


@pytest.mark.parametrize("terminal", [True, False])
def test_switches(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0)

    def shows(asked: bool | None) -> bool:
        stream = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        number = next(_NUMBERS)
        step = coop_jax.run(lambda x: x * number, runtime=coop_jax.Runtime("1MiB", progress=asked))
        step(1.0)
        return "coop_jax: compiling" in stream.getvalue()

    assert [shows(a) for a in (None, True, False)] == [terminal, True, False]
    for setting in (False, True):
        monkeypatch.setenv("COOP_JAX_PROGRESS", str(int(setting)))
        assert [shows(a) for a in (None, True, False)] == [setting, True, False]


@pytest.mark.parametrize("asked", [True, False])
def test_sweeps(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    coop_jax.sweep(lambda x: x @ x, np.ones((4, 4)), budget=[1.0], progress=asked)
    assert ("simulating" in stream.getvalue()) == asked
