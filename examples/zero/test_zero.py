"""The ZeRO example: budgets change no loss, another number of processes continues, no orphans."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from examples.zero import processes, sharding

ROOT = Path(__file__).parents[2]
# Two processes that plan and compile at the same time take a while on a machine of few cores.
TIMEOUT_SECONDS = 600


def zero(*flags: str) -> str:
    """What the command prints for a GPT of two layers."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.zero", "--layers=2", *flags],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


def losses_of(printed: str) -> dict[int, float]:
    """By step."""
    rows = re.findall(r"^ +(\d+) +(\d+\.\d+)$", printed, re.MULTILINE)
    return {int(step): float(loss) for step, loss in rows}


def plans_of(printed: str) -> list[dict[str, int]]:
    """The table of bytes, of each process."""
    rows = re.findall(r"^process \d+((?: +[\d,]+){4})$", printed, re.MULTILINE)
    numbers = [[int(x.replace(",", "")) for x in row.split()] for row in rows]
    return [dict(zip(("state", "jit", "budget", "needed"), row, strict=True)) for row in numbers]


def assert_within_half(plans: list[dict[str, int]]) -> None:
    """Of both processes, which have the same plan."""
    assert len(plans) == 2
    for plan in plans:
        assert plan == plans[0]
        assert plan["budget"] == plan["jit"] // 2
        assert plan["needed"] <= plan["budget"]


def assert_verified(printed: str) -> None:
    """The losses of a run with --verify are those without a budget."""
    found = re.search(r"losses differ by at most (\S+)", printed)
    assert found is not None
    assert float(found[1]) <= 1e-3


@pytest.mark.slow
def test_another_number_of_processes_continues_what_trained_within_a_budget(tmp_path: Path) -> None:
    folder = f"--checkpoint={tmp_path / 'checkpoint'}"
    flags = "--stage=3", "--processes=2", "--budget=0.5", "--steps=3", "--verify"
    with_budget = zero(*flags, folder)
    assert_within_half(plans_of(with_budget))
    assert_verified(with_budget)
    resumed = zero("--resume", "--processes=1", "--budget=none", "--steps=2", folder)
    found = {**losses_of(with_budget), **losses_of(resumed)}

    other = f"--checkpoint={tmp_path / 'other'}"
    wanted = losses_of(zero("--processes=1", "--budget=none", "--steps=5", other))
    assert list(found) == list(wanted) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(list(found.values()), list(wanted.values()), rtol=0, atol=1e-3)
    assert found[5] < found[1] - 0.5


@pytest.mark.slow
def test_losses_of_stage_2_with_a_budget_are_those_without(tmp_path: Path) -> None:
    flags = "--stage=2", "--processes=2", "--budget=0.5", "--steps=2", "--verify"
    printed = zero(*flags, f"--checkpoint={tmp_path}")
    assert_within_half(plans_of(printed))
    assert_verified(printed)


def test_stage_3_divides_the_parameters_too() -> None:
    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    arrays = jax.eval_shape(lambda: {"w": jnp.ones((6, 8)), "b": jnp.ones(3), "n": jnp.ones(())})
    part = {"w": PartitionSpec(None, "data"), "b": PartitionSpec(), "n": PartitionSpec()}
    whole = jax.tree.map(lambda _: PartitionSpec(), arrays)
    for stage, params in ((2, whole), (3, part)):
        found = sharding.shardings_of(stage, mesh, arrays, arrays)
        for tree, wanted in (
            (found.params, params),
            (found.gradients, part),
            (found.opt_state, part),
        ):
            assert jax.tree.map(lambda s: s.spec, tree) == wanted


def test_the_processes_divide_the_batch() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.zero", "--processes=3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 1
    assert "--processes=3 does not divide --batch=32" in done.stderr


# Process 1 ends as told, the others wait; each leaves a file with its id.
WORKER = """
import os, pathlib, sys, time
from examples.zero.processes import exit_with_parent
exit_with_parent()
folder, ending, process, _ = sys.argv[1:]
file = pathlib.Path(folder, process)
file.with_suffix(".part").write_text(str(os.getpid()))
file.with_suffix(".part").rename(file.with_suffix(".pid"))
if process == "--process=1":
    exec(ending)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a module `waiting_worker` is found, by processes that are started."""
    tmp_path.joinpath("waiting_worker.py").write_text(WORKER)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", path)
    return tmp_path


def wait_until_none_runs(folder: Path, count: int) -> None:
    """Fails if some of the processes still run after a while."""
    deadline = time.monotonic() + 60
    pids: list[int] = []
    while time.monotonic() < deadline:
        pids = [int(file.read_text()) for file in folder.glob("*.pid")]
        if len(pids) == count and not any(map(is_running, pids)):
            return
        time.sleep(0.05)
    raise AssertionError(pids)


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("sys.exit('what went wrong')", r"process 1 of 3 failed with exit code 1.*\nwhat went"),
        ("os.kill(os.getpid(), 9)", r"process 1 of 3 was ended by SIGKILL.*\n\(it said nothing\)"),
    ],
    ids=["error", "killed"],
)
def test_when_a_process_fails_the_others_are_stopped(ending: str, said: str, folder: Path) -> None:
    # It waits for the others, so that they have begun.
    ending = f"while len(list(file.parent.glob('*.pid'))) < 3: time.sleep(0.01)\n{ending}"
    with pytest.raises(processes.ProcessFailedError, match=said):
        processes.run_processes("waiting_worker", [str(folder), ending], 3)
    wait_until_none_runs(folder, 3)


def test_no_process_outlives_the_command(folder: Path) -> None:
    program = (
        "import sys; from examples.zero.processes import run_processes;"
        " run_processes('waiting_worker', [sys.argv[1], 'pass'], 2)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)]) as command:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("*.pid"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        command.kill()
    wait_until_none_runs(folder, 2)
