"""Programs as files: nothing is lost in a file, and what is wrong with one is told by line."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.simulate.dtr import log_simulator


def step(w: jax.Array, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """With views, small values, typed keys, a constant, an in-place update."""
    table = jnp.arange(4096.0).reshape(64, 64)

    def loss(w: jax.Array) -> jax.Array:
        h = x
        for _ in range(6):
            h = jnp.tanh(h @ w + table).reshape(32, 128).reshape(64, 64)
        return (h * jax.random.normal(key, h.shape)).mean()

    value, grad = jax.value_and_grad(loss)(w)
    return w - 0.1 * grad, value


SQUARE = jax.ShapeDtypeStruct((64, 64), jnp.float32)


@pytest.fixture(scope="module")
def traced() -> coop_jax.TracedProgram:
    key = jax.eval_shape(lambda: jax.random.key(0))
    return coop_jax.trace_program(step, SQUARE, SQUARE, key, donate_argnums=0)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "program.json"


def test_a_loaded_program_is_simulated_as_the_traced_one(
    traced: coop_jax.TracedProgram, path: pathlib.Path
) -> None:
    coop_jax.save_program(traced, path)
    loaded = coop_jax.load_program(path)
    assert loaded.name == "step"
    for profile in (None, "a100-80gb"):
        for policy in ("coop", "dtr"):
            a, b = (
                coop_jax.simulate(p, budget=0.6, policy=policy, device_profile=profile)
                for p in (traced, loaded)
            )
            assert a.evictions > 0
            assert a.actions == b.actions
            assert a.overhead == b.overhead
            assert a.unbudgeted_peak_bytes == b.unbudgeted_peak_bytes
    again = path.with_name("again.json")
    coop_jax.save_program(loaded, again)
    assert again.read_text() == path.read_text()


def test_one_entry_a_line(traced: coop_jax.TracedProgram, path: pathlib.Path) -> None:
    coop_jax.save_program(traced, path)
    data = json.loads(path.read_text())
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"name"')]
    assert len(lines) == len(data["operations"]) == len(traced.program.operations)
    assert any("test_program_files.py" in op["source"] for op in data["operations"])


def small() -> dict[str, Any]:
    """x -> y -> z, where z is the output."""
    operation = {"cost_seconds": 1e-3, "recomputable": 1, "in_place": [-1]}
    return {
        "format": "coop_jax program",
        "version": 1,
        "name": "small",
        "storages": [[1024, 0], [1024, 0], [1024, 0]],
        "values": [[s, "float32[256]", 0] for s in range(3)],
        "inputs": [[0, 0]],
        "constants": [],
        "operations": [
            {**operation, "reads": [0], "makes": [1], "releases": []},
            {**operation, "reads": [1], "makes": [2], "releases": [1]},
        ],
        "outputs": [2],
    }


def written(data: dict[str, Any]) -> str:
    """As JSON with a field of `small` a line, and its two operations on lines 9 and 10."""
    lines = []
    for key, value in data.items():
        if key == "operations":
            lines.append('"operations": [\n' + ",\n".join(map(json.dumps, value)) + "]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{" + ",\n".join(lines) + "}"


def test_a_program_by_hand(path: pathlib.Path) -> None:
    path.write_text(written(small()))
    simulation = coop_jax.simulate(coop_jax.load_program(path), device_profile="h200")
    assert simulation.compute_seconds == pytest.approx(2e-3)  # as said, whatever the device
    assert simulation.unbudgeted_peak_bytes == 3 * 1024


def change(field: str, value: Any, operation: int | None = None) -> dict[str, Any]:
    data = small()
    (data if operation is None else data["operations"][operation])[field] = value
    return data


@pytest.mark.parametrize(
    ("data", "line", "problem"),
    [
        (change("format", "xml"), 1, "format"),
        (change("version", 2), 2, "version 2"),
        (change("more", 1), 12, "unknown"),
        ({k: v for k, v in small().items() if k != "inputs"}, 10, "'inputs' is missing"),
        (change("storages", [[1024, 0], [-1, 0], [1024, 0]]), 4, "-1 bytes"),
        (change("storages", [[1024, 2], [1, 0], [1024, 0]]), 4, "0 or 1"),
        (change("storages", [[1 << 61, 0]] * 3), 4, "add up"),
        (change("values", [[3, "float32[256]", 0]]), 5, "no storage 3"),
        (change("values", [[0, "float32", 0]]), 5, "no type"),
        (change("inputs", [[0, 0], [0, 0]]), 6, "second time"),
        (change("outputs", [3]), 11, "no value 3"),
        (change("reads", [2], 0), 9, "cycle"),
        (change("reads", [1], 0), 9, "cycle"),
        (change("makes", [1], 1), 10, "second time"),
        (change("makes", [], 1), 10, "make something"),
        (change("releases", [1, 1], 1), 10, "not there"),
        (change("releases", [1], 0), 10, "after its release"),
        (change("in_place", [1], 1), 10, "in_place"),
        (change("cost_seconds", -1.0, 1), 10, "negative"),
        (change("cost_seconds", float("nan"), 1), 10, "negative"),
        (change("cost_seconds", "1", 1), 10, "cost_seconds"),
        (change("flops", -2.0, 1), 10, "negative"),
        (change("recomputable", True, 0), 9, "recomputable"),
        (change("outputs", [1, 2]), None, ""),
    ],
)
def test_mistakes_name_their_line(
    path: pathlib.Path, data: dict[str, Any], line: int | None, problem: str
) -> None:
    path.write_text(written(data))
    if line is None:  # an output may be released: it stays
        assert coop_jax.simulate(coop_jax.load_program(path)).feasible
        return
    with pytest.raises(coop_jax.ProgramFileError, match=rf"line {line}: .*{problem}") as caught:
        coop_jax.load_program(path)
    assert caught.value.line == line


def test_no_truncated_or_garbled_file_is_read(path: pathlib.Path) -> None:
    """Cut anywhere: an error. With a character changed: an error of ours, or another program."""
    text = written(small())
    for length in range(len(text) - 1):
        path.write_text(text[:length])
        with pytest.raises(coop_jax.ProgramFileError, match="line"):
            coop_jax.load_program(path)
    choose = random.Random(0)
    for _ in range(2000):
        at = choose.randrange(len(text))
        path.write_text(text[:at] + choose.choice('[]{},:-"0123456789x') + text[at + 1 :])
        try:
            loaded = coop_jax.load_program(path)
        except coop_jax.ProgramFileError:
            continue
        coop_jax.simulate(loaded, budget=4096)  # what is accepted can be planned


@pytest.mark.unless_fused("counts operations, or asserts what one primitive at a time needs")
def test_a_program_as_an_operation_log(traced: coop_jax.TracedProgram, path: pathlib.Path) -> None:
    log_simulator.write_log(traced, path)
    log = log_simulator.read_log(path)
    program = traced.program
    ours = [op for op in log.operations if op.name != "constant"]
    assert [op.name for op in ours] == [op.kernel.label for op in program.operations]
    assert [op.cost_ns for op in ours] == [
        round(op.kernel.cost_seconds * 1e9) for op in program.operations
    ]
    assert [op.result_bytes for op in ours] == [
        tuple(program.storages[program.values[v].storage].nbytes for v in op.results)
        for op in program.operations
    ]
    assert log.ignored_releases == 0
    again = log_simulator.program_of_log(log)
    released = [sorted(sizes(again, storages)) for storages in again.program.releases]
    assert released == [sorted(sizes(traced, computed(traced, r))) for r in program.releases]
    result = log_simulator.simulate_log(log, budget=0.6)
    assert result.status == "ok"
    assert result.total_over_base_compute > 1
    assert coop_jax.simulate(again, budget=0.6).evictions > 0


def sizes(traced: coop_jax.TracedProgram, storages: tuple[int, ...]) -> list[int]:
    return [traced.program.storages[s].nbytes for s in storages]


def computed(traced: coop_jax.TracedProgram, storages: tuple[int, ...]) -> tuple[int, ...]:
    """Those that are no inputs: a log's constants stay."""
    program = traced.program
    inputs = {program.values[v].storage for v in program.inputs}
    inputs |= {program.values[v].storage for v, _ in program.constants}
    return tuple(s for s in storages if s not in inputs)
