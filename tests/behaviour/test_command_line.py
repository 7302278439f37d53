"""`coop-jax`: what each command prints and writes, and what it says of mistakes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator

import jax
import pytest

import coop_jax
from coop_jax.__main__ import main

STEPS = """
import jax
import jax.numpy as jnp

import coop_jax

number = 3


def train_step(params, batch):
    def loss(params):
        x = batch
        for w in params:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments():
    w = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    return [w] * 6, jax.ShapeDtypeStruct((512, 32), jnp.float32)


def named_arguments():
    params, batch = arguments()
    return {"batch": batch, "params": params}


def make_step():
    print("printed by the module")
    return jax.jit(train_step, donate_argnums=0), arguments()


def make_named():
    params, batch = arguments()
    return jax.jit(train_step, donate_argnums=0), (params,), {"batch": batch}


def make_list():
    return [1, 2, 3]


def fails():
    raise RuntimeError("planted in the module")


def fails_when_traced():
    def step(x):
        return x @ jnp.ones((3, 3))

    return step, (jnp.ones((4, 4)),)


def interrupts():
    raise KeyboardInterrupt


def takes_text():
    return train_step, ("text", "text")


def too_small():
    return coop_jax.jit(train_step, budget="100KiB"), arguments()
"""
FILES = {
    "cli_steps.py": STEPS,
    "package/__init__.py": "",
    "package/inner.py": STEPS,
    "needs_more.py": "import a_library_that_is_not_there\n",
    "no_python.py": "def f(:\n",
    "a_script.py": "import sys\nsys.exit(3)\n",
    "truncated.json": '{"format": "coop_jax program", "version": 1, "name": "a", "storages": [[4',
    "other.json": "[]\n",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's folder, which is the current one, and a terminal of 80 columns."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def cli_steps(tmp_path: pathlib.Path) -> types.ModuleType:
    """The user's module."""
    spec = importlib.util.spec_from_file_location("steps_of_the_user", tmp_path / "cli_steps.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def program(cli_steps: types.ModuleType) -> str:
    """A file of the user's program."""
    fn = jax.jit(cli_steps.train_step, donate_argnums=0)
    coop_jax.save_program(coop_jax.trace_program(fn, *cli_steps.arguments()), "program.json")
    return "program.json"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command prints."""
    found = main(arguments)
    out, err = capsys.readouterr()
    assert found == code, err
    return out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """What the command says on stderr; it answers nothing."""
    found = main(arguments)
    out, err = capsys.readouterr()
    assert found == code, err
    assert out == ""
    return err


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    # What runs in the background ignores SIGINT, and so would the process.
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
        " os.execv(sys.executable, [sys.executable, '-m', 'coop_jax', *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", program, *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, text=True, **streams)


TARGETS = [
    "cli_steps:make_step",
    "cli_steps:make_named",
    "cli_steps.py:make_step",
    "./cli_steps.py:make_step",
    "package.inner:make_step",
    "package/inner.py:make_step",
]


@pytest.mark.parametrize("target", TARGETS)
def test_memory_prints_the_report(
    target: str, cli_steps: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    report = coop_jax.memory(
        jax.jit(cli_steps.train_step, donate_argnums=0), *cli_steps.arguments()
    )
    printed = answer(capsys, "memory", target)
    assert printed.startswith("train_step needs ")
    assert max(map(len, printed.splitlines())) <= 80
    said = json.loads(answer(capsys, "memory", target, "--json"))
    assert said["peak_bytes"] == report.peak_bytes


@pytest.mark.parametrize("arguments", ["cli_steps:arguments", "cli_steps:named_arguments"])
def test_arguments_may_be_named_apart(
    arguments: str, cli_steps: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    report = coop_jax.memory(cli_steps.train_step, *cli_steps.arguments())
    given = ("memory", "cli_steps:train_step", "--args", arguments)
    assert json.loads(answer(capsys, *given, "--json"))["peak_bytes"] == report.peak_bytes


def test_memory_says_what_budgets_cost_and_writes_a_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = answer(capsys, "memory", "cli_steps:make_step", "--budgets", "--html", "memory.html")
    assert " 50% " in printed
    page = pathlib.Path("memory.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "train_step needs" in page


def test_what_the_module_prints_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "cli_steps:make_step", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "train_step"
    assert err == "printed by the module\n"


def test_simulate_prints_a_table(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    budgets, policies = "none,75%,0.5,1%,300KB", "coop,dtr,lookahead"
    printed = answer(capsys, "simulate", program, "--budget", budgets, "--policy", policies)
    lines = printed.splitlines()
    assert lines[0].startswith("train_step: ")
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines[3 : 3 + 15]]
    assert [row[:2] for row in rows] == [
        [policy, budget] for policy in policies.split(",") for budget in budgets.split(",")
    ]
    assert "smallest budget for coop: " in printed


@pytest.mark.parametrize("kind", ["a file", "a module"])
def test_simulate_answers_as_the_library_does(
    kind: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = program if kind == "a file" else "cli_steps:make_step"
    given = ("simulate", target, "--budget", "60%,0.4", "--policy", "coop,dtr", "--json")
    said = json.loads(answer(capsys, *given))
    traced = coop_jax.load_program(program)
    assert said["name"] == "train_step"
    peak = coop_jax.simulate(traced, policy="coop").peak_bytes
    assert said["unbudgeted_peak_bytes"] == peak
    asked = [(p, b, s) for p in ("coop", "dtr") for b, s in (("60%", 0.6), ("0.4", 0.4))]
    for (policy, budget, share), found in zip(asked, said["simulations"], strict=True):
        simulation = coop_jax.simulate(traced, budget=int(share * peak), policy=policy)
        assert (found["policy"], found["budget"]) == (policy, budget)
        for field in dataclasses.fields(simulation):
            if isinstance(getattr(simulation, field.name), int) and "smallest" not in field.name:
                assert found[field.name] == getattr(simulation, field.name), field.name


def test_timeline_writes_a_page_of_two_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("cli_steps:make_step", "--budget", "90%", "--beside-budget", "none")
    printed = answer(capsys, "timeline", *given, "-o", "step.html")
    assert printed.splitlines()[0].startswith("90%: peak ")
    assert printed.splitlines()[-1] == "written: step.html"
    page = pathlib.Path("step.html").read_text()
    assert "train_step, lookahead, 90%" in page
    assert "train_step, lookahead, no budget" in page


def test_timeline_of_what_xla_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    printed = answer(capsys, "timeline", "cli_steps:make_step", "-o", "jit.html", "--compiled")
    assert printed.startswith("peak ")
    assert "train_step" in pathlib.Path("jit.html").read_text()


def test_timeline_writes_other_files(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "timeline", program, "-o", "step.json", "--budget", "90%", "--policy", "coop")
    assert json.loads(pathlib.Path("step.json").read_text())["traceEvents"]
    answer(capsys, "timeline", program, "-o", "step.pickle")
    assert pickle.loads(pathlib.Path("step.pickle").read_bytes())


def test_the_doctor_says_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(answer(capsys, "doctor", "--json"))
    assert said["ok"]
    names = {check["name"]: check["status"] for check in said["checks"]}
    assert names["coop_jax.run"] == names["remat_eager"] == names["coop_jax.jit"] == "ok"
    assert all(check["advice"] for check in said["checks"] if check["status"] != "ok")


MISTAKES = {
    "invalid choice: 'memry'": ("memry",),
    "required: TARGET": ("memory",),
    "'cli_steps' names no function: write module:function": ("memory", "cli_steps"),
    "no module 'stepz'": ("memory", "stepz:make_step"),
    "no module 'package.nothing'": ("memory", "package.nothing:make_step"),
    "'.cli_steps' is no name of a module": ("memory", ".cli_steps:make_step"),
    "no Python file stepz.py": ("memory", "stepz.py:make_step"),
    "did you mean 'make_step'?": ("memory", "cli_steps:make_stp"),
    "has no 'zzz': name one": ("memory", "cli_steps:zzz"),
    "is no function but int 3": ("memory", "cli_steps:number"),
    "add --args": ("memory", "cli_steps:train_step"),
    "must return (fn, args)": ("memory", "cli_steps:make_list"),
    "(x,) for a single one": ("memory", "cli_steps:train_step", "--args", "cli_steps:number"),
    "takes none itself": ("memory", "cli_steps:train_step", "--args", "cli_steps:train_step"),
    "non-array argument": ("memory", "cli_steps:takes_text"),
    "make the folder nothing first": ("memory", "cli_steps:make_step", "--html", "nothing/a.html"),
    "no file nothing.json": ("simulate", "nothing.json", "--budget", "50%"),
    "leave --args out": (
        "simulate",
        "other.json",
        "--budget",
        "50%",
        "--args",
        "cli_steps:arguments",
    ),
    "truncated.json, line 1": ("simulate", "truncated.json", "--budget", "50%"),
    "write the file again with coop_jax.save_program": (
        ("simulate", "other.json", "--budget", "50%")
    ),
    "required: --budget": ("simulate", "cli_steps:make_step"),
    "'5x' is no size: write 50%": ("simulate", "cli_steps:make_step", "--budget", "5x"),
    "'' is no size": ("simulate", "cli_steps:make_step", "--budget", "50%,"),
    "'150%' is more than all": ("simulate", "cli_steps:make_step", "--budget", "150%"),
    "must be positive": ("simulate", "cli_steps:make_step", "--budget", "0GiB"),
    "unknown policy 'cop'": ("simulate", "a:b", "--budget", "50%", "--policy", "dtr,cop"),
    "ends in .html": ("timeline", "cli_steps:make_step", "-o", "step.txt"),
    "make the folder away first": ("timeline", "cli_steps:make_step", "-o", "away/step.html"),
    "let the name of -o end in .html": (
        ("timeline", "cli_steps:make_step", "-o", "a.json", "--beside-budget", "50%")
    ),
    "--compiled has no plan": (
        *("timeline", "cli_steps:make_step", "-o", "a.html", "--compiled"),
        *("--budget", "50%"),
    ),
    "required: -o/--output": ("timeline", "cli_steps:make_step"),
    "unrecognized arguments: more": ("doctor", "more"),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_do(
    said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = complaint(capsys, *MISTAKES[said], code=2).removeprefix("printed by the module\n")
    assert message.startswith("coop-jax: error: ")
    assert message.endswith("\n")
    assert message.count("\n") == 1
    assert said in message
    assert not list(pathlib.Path().glob("*.html"))


def test_a_file_that_hides_behind_another_module_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pathlib.Path("json.py").touch()
    said = complaint(capsys, "memory", "json.py:f", code=2)
    assert "is called 'json' as well; rename the file" in said


def test_a_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "memory", "stepz:f", "--traceback", code=2)
    assert "Traceback (most recent call last)" in said
    assert said.splitlines()[-1].startswith("coop-jax: error: there is no module 'stepz'")


ERRORS_OF_THE_MODULE = {
    "cli_steps:fails": "RuntimeError: planted in the module",
    "cli_steps:fails_when_traced": "TypeError: dot_general",
    "needs_more:f": "ModuleNotFoundError: No module named 'a_library_that_is_not_there'",
    "no_python.py:f": "SyntaxError",
}


@pytest.mark.parametrize("target", ERRORS_OF_THE_MODULE)
def test_an_error_of_the_module_is_shown_as_its_own(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, "memory", target, code=1)
    assert ERRORS_OF_THE_MODULE[target] in said
    assert target.partition(":")[0].removesuffix(".py") + ".py" in said
    assert os.path.dirname(coop_jax.__file__) not in said


def test_a_module_that_exits_is_told_how_not_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert "__name__ == '__main__'" in complaint(capsys, "memory", "a_script:f", code=1)


def test_a_budget_that_does_not_suffice_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("memory", "cli_steps:too_small")) == 1
    assert "does not fit into" in capsys.readouterr().out
    said = complaint(
        capsys, "timeline", "cli_steps:make_step", "--budget", "1%", "-o", "a.html", code=1
    )
    assert "does not fit into" in said
    assert not pathlib.Path("a.html").exists()


def test_an_interrupt_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "memory", "cli_steps:interrupts", code=130)
    assert said == "coop-jax: interrupted\n"


@pytest.mark.parametrize("command", [(), ("memory",), ("timeline",), ("simulate",), ("doctor",)])
def test_help_fits_a_terminal_and_shows_examples(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\nexamples:\n  coop-jax " in shown


def test_without_arguments_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "commands:" in complaint(capsys, code=2)


def test_ctrl_c_ends_the_process_without_a_word() -> None:
    pathlib.Path("slow.py").write_text(
        "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n"
    )
    with start("memory", "slow:f") as process:
        while not pathlib.Path("begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")  # a shell says 130


def test_a_closed_pipe_ends_the_process_quietly(program: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with start("simulate", program, "--budget", "60%", stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, "")


def test_the_console_script_is_the_module() -> None:
    script = pathlib.Path(sys.executable).parent / "coop-jax"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"coop-jax {coop_jax.__version__}\n"
