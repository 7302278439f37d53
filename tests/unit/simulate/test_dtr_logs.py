"""Operation logs of the authors of DTR: what is read, what their simulator says, what is refused.

The reference figures are read from COOP_JAX_DTR_LOGS, or from shared/data/dtr_logs beside the
repository, where there is such a folder.
"""

from __future__ import annotations

import csv
import json
import os
import pathlib
from typing import Any

import pytest

from coop_jax._src.simulate.dtr import log_simulator
from coop_jax._src.util.errors import ProgramFileError

_BESIDE = pathlib.Path(__file__).parents[4] / "shared" / "data" / "dtr_logs"
LOGS = pathlib.Path(os.environ.get("COOP_JAX_DTR_LOGS", _BESIDE))
MODELS = ["unet-6", "resnet32-56", "tv_densenet121-84", "inceptionv4-64", "transformer-10"]


def line(instruction: str, **fields: Any) -> str:
    return json.dumps({"INSTRUCTION": instruction, **fields})


def call(name: str, result: str, args: list[str], nbytes: int, time: int = 10) -> list[str]:
    return [
        line("CALL", NAME=name, ARGS=args, RESULT=[result], TIME=str(time)),
        line("MEMORY", NAME=result, MEMORY=str(nbytes)),
        line("ALIAS", NAME=result, ALIAS="-1"),
    ]


def chain(length: int) -> list[str]:
    """x0 -> x1 -> ... and back: every x is read again, last first."""
    lines = [line("CONSTANT", NAME="x0"), line("MEMORY", NAME="x0", MEMORY="100")]
    for i in range(1, length):
        lines += call("f", f"x{i}", [f"x{i - 1}"], 100)
    lines += call("f", f"g{length}", [f"x{length - 1}"], 100)
    for i in range(length - 1, -1, -1):
        lines += call("b", f"g{i}", [f"x{i}", f"g{i + 1}"], 100)
        lines += [line("RELEASE", NAME=f"g{i + 1}"), line("RELEASE", NAME=f"x{i}")]
    return lines


def test_a_chain_without_and_with_a_budget() -> None:
    log = log_simulator.read_log(chain(10))
    assert log.compute_ns == 200
    assert log.constant_bytes == 100
    full = log_simulator.simulate_log(log)  # its clock begins at 1
    assert (full.status, full.total_over_base_compute, full.recomputations) == ("ok", 1.005, 0)
    assert full.peak_bytes == 1200  # ten values, a gradient and the next one
    for heuristic in log_simulator.HEURISTICS:
        half = log_simulator.simulate_log(log, budget=0.6, heuristic=heuristic)
        assert half.peak_bytes <= 720
        assert half.status == "thrash" or half.total_over_base_compute > 1
    assert log_simulator.simulate_log(log, budget=250).status == "OOM"


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["{"], 1),
        (["[]"], 1),
        ([line("CONSTANT", NAME="a")], 1),
        ([line("JUMP", NAME="a")], 1),
        ([line("CONSTANT", NAME="a"), line("MEMORY", NAME="a", MEMORY="-1")], 2),
        ([line("CONSTANT", NAME="a"), line("MEMORY", NAME="a", MEMORY="many")], 2),
        ([line("CONSTANT", NAME="a"), line("MEMORY", NAME="b", MEMORY="1")], 2),
        (call("f", "y", ["x"], 1), 1),
        (call("f", "y", [], 1)[:2], 2),
        ([*call("f", "y", [], 1), line("COPY", DST="z", SRC="w")], 4),
        ([line("CALL", NAME="f", ARGS=[], RESULT=["y"])], 1),
    ],
)
def test_mistakes_name_their_line(lines: list[str], number: int) -> None:
    with pytest.raises(ProgramFileError, match=rf"line {number}\b"):
        log_simulator.read_log(lines)


@pytest.mark.parametrize("model", MODELS)
def test_the_reference_simulator_agrees(model: str) -> None:
    if not LOGS.is_dir():
        pytest.skip(f"no logs in {LOGS}: set COOP_JAX_DTR_LOGS")
    log = log_simulator.read_log(LOGS / f"{model}.log.gz")
    with open(LOGS / "simrd_reference.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    assert rows
    for row in rows:
        ratio, heuristic = float(row["budget_ratio"]), row["heuristic"]
        found = log_simulator.simulate_log(log, budget=ratio, heuristic=heuristic)
        assert found.status == row["status"], row
        if found.status == "ok":
            expected = float(row["total_over_base_compute"])
            assert found.total_over_base_compute == pytest.approx(expected, abs=1e-6), row
