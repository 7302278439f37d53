"""Arguments that make no sense get one clear error where they are given; nothing stays behind."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.simulate.dtr.log_reader import read_log
from tests.testing.processes import TWO_DEVICES, output_of

LONG, LONGER = "9" * 400, "9" * 5000  # Python's int() takes the first, not the second
X = jnp.ones((8, 8))


def _square(x: jax.Array) -> jax.Array:
    return (x @ x).sum()


def _refused(call: Callable[[], Any], name: str = "") -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    message = str(caught.value)
    assert name in message
    assert len(message) < 400, message
    for unclear in ("incompatible function arguments", "not iterable", "integer string conversion"):
        assert unclear not in message


_ANYWHERE: list[dict[str, Any]] = [
    {"budget": 2**63},
    {"budget": 10**30},
    {"budget": 10**5000},
    {"budget": -(10**5000)},
    {"budget": LONG},
    {"budget": LONGER},
    {"budget": [1]},
    {"budget": float("nan")},
    {"budget": True},
    {"device": "cpu"},
    {"device": 0},
    {"runtime": 3},
    {"policy": 3},
    {"policy": []},
    {"policy": "best"},
]


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
@pytest.mark.parametrize("options", _ANYWHERE, ids=lambda o: next(iter(o)))
def test_options_of_front_ends(front_end: str, options: dict[str, Any]) -> None:
    _refused(lambda: getattr(coop_jax, front_end)(_square, **options), next(iter(options)))


@pytest.mark.parametrize(
    "options",
    [
        {"fusion": "yes"},
        {"fusion": 1},
        {"donate_argnums": 1.0},
        {"donate_argnums": "0"},
        {"donate_argnums": (0, 1.5)},
        {"donate_argnums": True},
        {"static_argnums": [[]]},
    ],
    ids=str,
)
def test_options_of_run(options: dict[str, Any]) -> None:
    _refused(lambda: coop_jax.run(_square, **options), next(iter(options)))


def test_none_of_the_arguments_is_donated_or_static() -> None:
    step = coop_jax.run(_square, "1MiB", donate_argnums=None, static_argnums=None)
    assert float(step(X)) == 512
    assert not X.is_deleted()


def test_functions_that_are_none() -> None:
    for make in (coop_jax.run, coop_jax.remat_eager, coop_jax.trace_program, coop_jax.simulate):
        _refused(lambda make=make: make(3), "fn")  # type: ignore[misc]


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 0.5},
        {"budget": 2**64},
        {"policy": 3},
        {"device": "cpu"},
        {"workspace": "a lot"},
        {"workspace": -1},
        {"workspace": 0.5},
        {"workspace": 2**70},
        {"verify": "yes"},
    ],
    ids=str,
)
def test_options_of_a_runtime(options: dict[str, Any]) -> None:
    _refused(lambda: coop_jax.Runtime(**{"budget": "1MiB", **options}))


_SIMULATED: list[dict[str, Any]] = [
    {"policy": 3},
    {"donate_argnums": 1.5},
    {"static_argnums": "x"},
    {"device_profile": 3},
    {"device_profile": []},
    {"device_profile": "abacus"},
    {"workspace": 1.5},
    {"workspace": -1},
    {"workspace": [0]},
    {"workspace": ["a", "b"]},
    {"workspace": [2**70, 1]},
    {"workspace": [-1, 1]},
    {"workspace": {}},
    {"workspace": LONGER},
    {"workspace": True},
]


@pytest.mark.parametrize("options", _SIMULATED, ids=lambda o: next(iter(o)))
def test_options_of_simulations(options: dict[str, Any]) -> None:
    def two(x: jax.Array) -> jax.Array:
        return jnp.sort(x) @ x

    for call in (coop_jax.simulate, coop_jax.min_budget, coop_jax.cutoff_budget):
        _refused(lambda call=call: call(two, X, **options))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (coop_jax.simulate, {"budget": 2**63}),
        (coop_jax.simulate, {"budget": []}),
        (coop_jax.simulate, {"costs": 3}),
        (coop_jax.simulate, {"alternatives": "both"}),
        (coop_jax.min_budget, {"max_overhead": "x"}),
        (coop_jax.min_budget, {"max_overhead": -1}),
        (coop_jax.min_budget, {"max_overhead": float("nan")}),
        (coop_jax.min_budget, {"resolution": 0}),
        (coop_jax.min_budget, {"resolution": "fine"}),
        (coop_jax.cutoff_budget, {"resolution": 2}),
        (coop_jax.cutoff_budget, {"resolution": None}),
        (coop_jax.sweep, {"budget": "4MiB"}),
        (coop_jax.sweep, {"budget": 0.5}),
        (coop_jax.sweep, {"budget": [2**64]}),
        (coop_jax.sweep, {"budget": [0.5], "policy": 3}),
        (coop_jax.sweep, {"budget": [0.5], "policy": ["dtr", 3]}),
        (coop_jax.sweep, {"budget": [0.5], "give_up": "x"}),
        (coop_jax.sweep, {"budget": [0.5], "give_up": -1}),
        (coop_jax.sweep, {"budget": [0.5], "progress": "x"}),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_options_of_searches(call: Any, options: dict[str, Any]) -> None:
    _refused(lambda: call(_square, X, **options), next(reversed(options)))


@pytest.mark.parametrize(
    "options",
    [
        {"heuristic": 3},
        {"heuristic": "x"},
        {"neighborhood": 3},
        {"sliding_window": "yes"},
        {"evict_always": 1},
        {"search_effort": 2**70},
        {"search_effort": 1.5},
    ],
    ids=str,
)
def test_switches_of_a_policy(options: dict[str, Any]) -> None:
    _refused(lambda: coop_jax.Policy(**options), next(iter(options)))


@pytest.mark.parametrize(
    "rates", [("x", 0, 1, 1), ("x", 1, -1, 1), ("x", "a", 1, 1), ("x", 1, 1, float("nan"))], ids=str
)
def test_rates_of_a_device(rates: Any) -> None:
    _refused(lambda: coop_jax.DeviceProfile(*rates))


def test_bytes_are_exact_and_bounded() -> None:
    assert coop_jax.parse_bytes("9007199254740993") == 2**53 + 1
    assert coop_jax.parse_bytes("1.5GiB") == 3 * 2**29
    for text in (LONG, LONGER, "1e400", f"{2**62}", "1e-400", "0.1b", "?" * 1000):
        _refused(lambda text=text: coop_jax.parse_bytes(text))  # type: ignore[misc]


# --- Files ---

_NUMBER = re.compile(r"(?<![\w.:-])-?\d+(\.\d+)?(e-?\d+)?(?![\w.])")
_NO_NUMBERS = (LONG, LONGER, f"-{LONG}", f'"{LONGER}"', "1e400", "NaN", "null", "[]", "{}")


def test_every_number_of_a_program_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "program.json"
    coop_jax.save_program(coop_jax.trace_program(_square, X), path)
    text = path.read_text()
    for match in _NUMBER.finditer(text):
        for other in _NO_NUMBERS:
            path.write_text(text[: match.start()] + other + text[match.end() :])
            with pytest.raises(coop_jax.ProgramFileError, match="line"):
                coop_jax.simulate(coop_jax.load_program(path))


def test_every_number_of_measured_costs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "costs.json"
    numbers = {"workspace_bytes": 64, "kernels": {"dot": {"seconds": 0.5, "samples": 1}}}
    head = {"format": "coop_jax costs", "version": 1, "device": "cpu"}
    for where in ("version", "workspace_bytes", "seconds"):
        text = json.dumps({**head, **numbers})
        for other in (LONGER, f"-{LONG}", f'"{LONGER}"', "1e400", "NaN", "null", "[]"):
            path.write_text(re.sub(f'("{where}": )[0-9.]+', rf"\g<1>{other}", text))
            with pytest.raises(coop_jax.ProgramFileError):
                coop_jax.MeasuredCosts.load(path)


@pytest.mark.parametrize("other", [LONG, LONGER, f'"{LONG}"', f'"{LONGER}"', "1e400", "1.5", "-5"])
def test_numbers_of_a_log(other: str) -> None:
    lines = [
        '{"INSTRUCTION": "CONSTANT", "NAME": "a"}',
        f'{{"INSTRUCTION": "MEMORY", "NAME": "a", "MEMORY": {other}}}',
    ]
    with pytest.raises(coop_jax.ProgramFileError) as caught:
        read_log(lines)
    assert len(str(caught.value)) < 250


def test_paths_that_are_none() -> None:
    program = coop_jax.trace_program(_square, X)
    for path in (0, None, 1.5, []):  # 0 would be standard input
        for use in (
            coop_jax.load_program,
            coop_jax.MeasuredCosts.load,
            coop_jax.MeasuredCosts().save,
            lambda path: coop_jax.save_program(program, path),
        ):
            _refused(lambda use=use, path=path: use(path), "path")  # type: ignore[misc]
    _refused(lambda: coop_jax.save_program(3, "program.json"), "program")  # type: ignore[arg-type]
    _refused(lambda: read_log(3), "file")  # type: ignore[arg-type]


# --- What would be ignored ---


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_what_a_runtime_has(front_end: str) -> None:
    make = getattr(coop_jax, front_end)
    runtime = coop_jax.Runtime("1MiB")
    first = jax.devices()[0]
    for name, value in {"budget": "1MiB", "policy": "dtr", "device": first}.items():
        _refused(lambda n=name, v=value: make(_square, runtime=runtime, **{n: v}), f"{name}=")  # type: ignore[misc]
        if name == "budget":
            continue
        step = make(_square, **{name: value})
        with runtime:
            _refused(lambda step=step: step(X), f"{name}=")  # type: ignore[misc]
        assert float(step(X)) == 512  # in a runtime of its own, as nothing was settled
        assert step.runtime is not runtime
    with runtime:
        own = make(_square, budget="2MiB", policy="dtr")
        own(X)
    assert own.runtime.policy.heuristic == "dtr"
    assert runtime.stats().operations == 0


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_compilations_count_however_the_budget_is_written(front_end: str) -> None:
    counts = []
    for n, budget in enumerate(("1MiB", 2**20, 1.0, None)):
        made = getattr(coop_jax, front_end)(_square, budget=budget)
        # A shape of its own for each: what was compiled before is not compiled again.
        width = 40 + 8 * n + (front_end == "run")
        made(jnp.ones((width, width)))
        counts.append(made.runtime.stats().compilations)
    assert counts[0] > 0
    assert len(set(counts)) == 1, counts


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_a_refused_call_joins_no_runtime(front_end: str) -> None:
    step, runtime = getattr(coop_jax, front_end)(_square), coop_jax.Runtime("1MiB")
    gone = jnp.ones(3)
    gone.delete()
    with runtime:
        with pytest.raises(RuntimeError, match="deleted"):
            step(gone)
        if front_end == "run":
            assert step.simulate(X).budget_bytes == 2**20
            with pytest.raises(TypeError):
                step("text")
    step(X)
    assert step.runtime is not runtime


def test_closing_twice() -> None:
    runtime = coop_jax.Runtime("1MiB")
    step = coop_jax.run(_square, runtime=runtime)
    step(X)
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeError, match="closed"):
        step(X)


# --- What a refused call leaves behind: nothing ---

_MESHES = """
import coop_jax, jax, jax.numpy as jnp, sys
from jax.sharding import NamedSharding, PartitionSpec

mesh = jax.make_mesh((2,), ("d",))
make = getattr(coop_jax, sys.argv[1])
x = jnp.ones((32, 64))

def step(w, x):
    def loss(w):
        return (jnp.tanh(x @ w) ** 2).mean() + (jnp.cumsum(x, axis=1) @ w).sum()
    value, grad = jax.value_and_grad(loss)(w)
    return w - 0.1 * grad, value

def refused(call):
    try:
        call()
    except ValueError as error:
        assert any(w in str(error) for w in ("one device", "alone", "runs on one")), error
        return
    raise SystemExit("not refused")

def works(w):
    before, value = make(step, budget="1MiB")(w, x)
    assert {before.sharding, value.sharding} == {w.sharding}

for n, spec in enumerate((PartitionSpec(), PartitionSpec("d"))):
    w = jnp.ones((64, 64 + n))
    spread = jax.device_put(jnp.ones((64, 64 + 2 * n)), NamedSharding(mesh, spec))
    w = jnp.ones((64, 64 + 2 * n))
    refused(lambda: make(step, budget="1MiB")(spread, x))
    refused(lambda: make(lambda x: step(spread, x), budget="1MiB")(x))
    refused(lambda: jax.grad(lambda w: make(lambda w: step(w, x)[1], budget="1MiB")(w))(spread))
    refused(lambda: coop_jax.simulate(step, spread, x))
    with jax.set_mesh(mesh):
        refused(lambda: make(step, budget="1MiB")(w, x))
    works(w)
# A mesh of one device is none.
single = NamedSharding(jax.make_mesh((1,), ("e",), devices=jax.devices()[:1]), PartitionSpec("e"))
w = jnp.ones((64, 96))
make(step, budget="1MiB")(jax.device_put(w, single), jax.device_put(x, single))
works(w)
print("fine")
"""


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_meshes(front_end: str) -> None:
    assert output_of(_MESHES, front_end, environment=TWO_DEVICES) == "fine\n"
