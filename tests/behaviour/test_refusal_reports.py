"""What an error says of the memory when a budget does not suffice: it adds up, and names lines."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax

PARAMS = {f"w{n}": jnp.eye(64) * 0.5 for n in range(6)}
X = jnp.ones((512, 64))


def _layers(params: Any, x: jax.Array) -> jax.Array:
    for n in range(6):
        x = jnp.tanh(x @ params[f"w{n}"])
    return (x**2).mean()


def _step(params: Any, x: jax.Array) -> Any:
    grads = jax.grad(_layers)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _scores(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x @ x.T).sum()


def _depends(params: Any, x: jax.Array) -> Any:
    x = jax.lax.while_loop(lambda x: x.sum() < 1, lambda x: x + 1, x)
    return jax.grad(_layers)(params, x)


def _collect(params: Any, x: jax.Array) -> jax.Array:
    kept: list[jax.Array] = []
    while len(kept) < 20:
        x = jnp.tanh(x @ params["w0"])
        kept.append(x)
        if float(x.sum()) > 1e9:
            break
    return jnp.stack(kept)


def _calls_back(params: Any, x: jax.Array) -> jax.Array:
    read = [jax.pure_callback(lambda x: x, x, x + n) for n in range(4)]
    return _layers(params, x) + sum(jnp.sin(n).sum() for n in read)


def _of_run(fn: Any, *args: Any, budget: str | int, **settings: Any) -> Any:
    return _refused(coop_jax.run(fn, budget, **settings), *args)


def _of_eager(fn: Any, *args: Any, budget: str | int, recorded: bool = False) -> Any:
    runtime = coop_jax.Runtime(budget)
    recording = coop_jax.record_timeline(runtime) if recorded else contextlib.nullcontext()
    with recording:
        return _refused(coop_jax.remat_eager(fn, runtime=runtime), *args)


def _refused(step: Any, *args: Any) -> Any:
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        step(*args)
    return caught.value


REFUSALS: dict[str, Any] = {
    "not donated": lambda: _of_run(_step, PARAMS, X, budget="256KiB"),
    "operand": lambda: _of_run(_step, PARAMS, X, budget="448KiB"),
    "no room for arguments": lambda: _of_run(_step, PARAMS, X, budget="192KiB"),
    "donated": lambda: _of_run(_step, PARAMS, X, budget="192KiB", donate_argnums=0),
    "all donated": lambda: _of_run(_step, PARAMS, X, budget="64KiB", donate_argnums=(0, 1)),
    "batch too large": lambda: _of_run(
        _step, PARAMS, jnp.ones((8192, 64)), budget="4MiB", donate_argnums=0
    ),
    "one huge operation": lambda: _of_run(_scores, X, budget="512KiB"),
    "dtr": lambda: _of_run(_step, PARAMS, X, budget="288KiB", policy="dtr"),
    "depends on values": lambda: _of_run(_depends, PARAMS, X, budget="320KiB"),
    "depends on values, donated": lambda: _of_run(
        _depends, jax.tree.map(jnp.copy, PARAMS), X + 0, budget="320KiB", donate_argnums=(0, 1)
    ),
    "never repeated": lambda: _of_eager(_calls_back, PARAMS, X, budget="600KiB"),
    "never repeated, planned": lambda: _of_run(_calls_back, PARAMS, X, budget="600KiB"),
    "eager": lambda: _of_eager(_step, PARAMS, X, budget="320KiB"),
    "eager, no room for arguments": lambda: _of_eager(_step, PARAMS, X, budget="100KiB"),
    "eager in a loop": lambda: _of_eager(_collect, PARAMS, X, budget="1MiB"),
    "eager, recorded": lambda: _of_eager(_collect, PARAMS, X, budget="1MiB", recorded=True),
}


@pytest.fixture(scope="module", params=REFUSALS)
def error(request: pytest.FixtureRequest) -> coop_jax.BudgetExceededError:
    refused = REFUSALS[request.param]()
    assert isinstance(refused, coop_jax.BudgetExceededError)
    return refused


def test_what_is_listed_adds_up(error: coop_jax.BudgetExceededError) -> None:
    report = error.report
    assert isinstance(report, coop_jax.BudgetReport)
    assert sum(storage.nbytes for storage in report.held) == report.in_use_bytes
    assert sum(storage.nbytes for storage in report.pinned) == report.pinned_bytes
    assert sum(report.by_kind.values()) == report.in_use_bytes
    if report.requested:
        assert sum(storage.nbytes for storage in report.requested) == report.requested_bytes
    assert all(storage.nbytes > 0 for storage in (*report.held, *report.requested))
    assert report.held or report.requested


def test_the_message_adds_up_and_is_short(error: coop_jax.BudgetExceededError) -> None:
    report = error.report
    lines = str(error).splitlines()
    assert len(lines) <= 20
    blocks: dict[str, int] = {}
    heading = ""
    for line in lines:
        if line.startswith("    "):
            found = re.search(r"\((\d+) bytes\)", line)
            assert found is not None
            blocks[heading] = blocks.get(heading, 0) + int(found[1])
        else:
            heading = line.strip().partition(":")[0].partition(" (")[0]
    known = {
        "in use": report.in_use_bytes,
        "pinned": report.pinned_bytes,
        "requested": report.requested_bytes,
    }
    assert blocks.items() <= known.items()
    assert blocks


def test_the_first_three_lines_say_what_to_do(error: coop_jax.BudgetExceededError) -> None:
    first, second, third = str(error).splitlines()[:3]
    assert first.startswith("the budget does not suffice: ")
    assert second.startswith("  smallest budget that would do: ")
    assert third.startswith("What to change: ")


def test_the_report_as_json(error: coop_jax.BudgetExceededError) -> None:
    assert coop_jax.BudgetReport.from_json(error.report.to_json()) == error.report
    assert pickle.loads(pickle.dumps(error)).report == error.report


def test_the_message_is_the_same_each_time() -> None:
    for name in ("not donated", "eager in a loop"):
        assert str(REFUSALS[name]()) == str(REFUSALS[name]())


def _why(report: coop_jax.BudgetReport) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for storage in (*report.held, *report.requested):
        found.setdefault(storage.why, set()).add(storage.what)
    return found


def test_why_memory_cannot_be_evicted() -> None:
    not_donated = _why(REFUSALS["not donated"]().report)
    assert {"argument params['w0']", "argument x"} <= not_donated["argument"]
    donated = _why(REFUSALS["all donated"]().report)
    assert "argument" not in donated
    assert "argument params['w0']" in donated["donated argument"]
    for name in ("never repeated", "never repeated, planned"):
        found = REFUSALS[name]()
        assert "never repeated" in _why(found.report)
        assert "; its operation is never repeated" in str(found)
    assert _why(REFUSALS["operand"]().report)["operand"]


def test_lines_of_what_holds_memory() -> None:
    """Of a planned program always; of one that runs operation by operation where it is recorded."""
    code, first = inspect.getsourcelines(_collect)
    line = first + next(n for n, text in enumerate(code) if "tanh" in text)
    unrecorded = REFUSALS["eager in a loop"]().report
    assert {s.source for s in unrecorded.held if s.kind == "values"} == {""}
    recorded = REFUSALS["eager, recorded"]()
    sources = {s.source for s in recorded.report.held if s.kind == "values"}
    assert any(f"{__file__}:{line} " in source for source in sources)
    assert f"{__file__}:{line} " in str(recorded)
    code, first = inspect.getsourcelines(_layers)
    line = first + next(n for n, text in enumerate(code) if "tanh" in text)
    planned = REFUSALS["operand"]().report
    assert any(f"{__file__}:{line} " in s.source for s in planned.held)


@pytest.mark.parametrize("name", REFUSALS)
def test_the_timeline_up_to_where_it_failed(name: str, tmp_path: Any) -> None:
    error = REFUSALS[name]()
    if error.evidence is None:
        pytest.skip("the call is not planned, and was not recorded")
    timeline = coop_jax.timeline(error)
    assert timeline.budget_bytes == error.report.budget_bytes
    assert timeline.peak_bytes <= error.report.budget_bytes
    if "recorded" not in name:  # the last moment is that of the failure
        rows = timeline.residences
        last = (rows.end == timeline.moments) & (rows.address >= 0)
        assert rows.nbytes[last].sum() == error.report.in_use_bytes
    timeline.save(tmp_path / "refused.html")
    assert (tmp_path / "refused.html").stat().st_size > 1000


def test_errors_of_which_there_is_no_timeline() -> None:
    with pytest.raises(ValueError, match="record_timeline"):
        coop_jax.timeline(REFUSALS["eager"]())
    with pytest.raises(ValueError, match="copies"):
        coop_jax.timeline(pickle.loads(pickle.dumps(REFUSALS["not donated"]())))
    with pytest.raises(TypeError, match="BudgetExceededError"):
        coop_jax.timeline(ValueError("no"))  # type: ignore[arg-type]


@pytest.mark.parametrize("donate", [(), (0,)])
def test_a_refusal_of_jit_says_what_the_smallest_plan_consists_of(donate: tuple[int, ...]) -> None:
    params, x = jax.tree.map(jnp.copy, PARAMS), jnp.ones((4096, 64))
    error = _refused(coop_jax.jit(_step, budget="1MiB", donate_argnums=donate), params, x)
    report = error.report
    assert isinstance(report, coop_jax.CompiledBudgetReport)
    assert report.smallest_budget_bytes <= report.smallest_plan_bytes
    assert sum(storage.nbytes for storage in report.alive) == report.alive_bytes
    assert sum(report.by_kind.values()) == report.alive_bytes
    assert report.alive_bytes == pytest.approx(report.smallest_plan_bytes, rel=0.25)
    given = report.by_kind.get("arguments", 0) + report.by_kind.get("donated arguments", 0)
    assert given == report.argument_bytes
    assert report.by_kind.get("results", 0) == pytest.approx(report.result_bytes, abs=256)
    code, first = inspect.getsourcelines(_layers)
    line = first + next(n for n, text in enumerate(code) if "tanh" in text)
    values = [storage for storage in report.alive if storage.kind == "values"]
    assert f"{__file__}:{line} " in values[0].source
    lines = str(error).splitlines()
    assert lines[1].startswith("  smallest budget that would do: ")
    assert lines[2].startswith("What to change: ")
    listed = [re.search(r"\((\d+) bytes\)", text) for text in lines if text.startswith("    ")]
    assert sum(int(found[1]) for found in listed if found) == report.alive_bytes
    assert coop_jax.CompiledBudgetReport.from_json(report.to_json()) == report
    assert pickle.loads(pickle.dumps(error)).report == report
    with pytest.raises(ValueError, match="XLA places its buffers"):
        coop_jax.timeline(error)
