"""The doctor says which check failed and what to do, and exits with 1."""

from __future__ import annotations

import json

import pytest

from coop_jax._src.command_line import doctor
from coop_jax._src.command_line.checks import Found, Status
from coop_jax._src.command_line.main import main


def _broken() -> Found:
    raise RuntimeError("planted\nin two lines")


CHECKS = (
    ("first", lambda: Found("as it should be")),
    ("second", lambda: Found("slow", "do this", Status.WARNING)),
    ("third", _broken),
)


def test_a_failed_check_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_CHECKS", CHECKS)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok       first              as it should be",
        "warning  second             slow",
        "                            -> do this",
        "failed   third              RuntimeError: planted",
        "                            -> report this with the output of `coop-jax doctor",
        "                               --json`",
        "1 of 3 checks failed",
    ]
    assert main(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["ok"]
    assert [check["status"] for check in said["checks"]] == ["ok", "warning", "failed"]


def test_a_warning_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_CHECKS", CHECKS[:2])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "coop_jax works here, 1 warning"
