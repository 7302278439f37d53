"""Plans that `coop_jax.jit` keeps on disk: taken where they are the same, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.processes import output_of

LAYERS, WIDTH, ROWS = 6, 64, 512


def loss(params: Any, x: Any, scale: Any = 1.0) -> Any:
    for w in params:
        x = jnp.tanh(x @ w) * scale
    return (x**2).mean()


def step(params: Any, x: Any) -> tuple[Any, Any]:
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    weights = [0.1 * jax.random.normal(k, (WIDTH, WIDTH)) for k in keys[1:]]
    return weights, jax.random.normal(keys[0], (ROWS, WIDTH))


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where plans are kept during a test."""
    monkeypatch.setenv("COOP_JAX_STORED_PLANS", "1")
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "coop_jax_plans"
    jax.config.update("jax_compilation_cache_dir", before)


def plans_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*")} if folder.exists() else set()


PROCESS = """
import coop_jax, json, jax
from coop_jax._src.jit import program_planner
from tests.unit.jit.test_jit_stored_plans import arguments, step

planned = 0
make = program_planner.ProgramPlanner.__init__
def counting(*args, **kwargs):
    global planned
    planned += 1
    make(*args, **kwargs)
program_planner.ProgramPlanner.__init__ = counting
compiled = []
jax.monitoring.register_event_listener(
    lambda event, **_: compiled.append(event) if event.endswith("cache_misses") else None)
fn = coop_jax.jit(step, budget=0.75, donate_argnums=0)
given = jax.block_until_ready(arguments())
compiled.clear()
weights, value = fn(*given)
print(json.dumps({
    "planned": planned, "compiled": len(compiled), "stored": fn.plan(*arguments()).is_stored,
    "deleted": given[0][0].is_deleted(), "value": float(value),
    "weights": [float(w.sum()) for w in weights],
}))
"""


def test_a_second_process_neither_plans_nor_compiles(tmp_path: Path) -> None:
    environment = {"COOP_JAX_STORED_PLANS": "1", "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    first, second = (json.loads(output_of(PROCESS, environment=environment)) for _ in range(2))
    assert (first["planned"], first["stored"]) == (1, False)
    assert first["compiled"] >= 2
    assert (second["planned"], second["compiled"], second["stored"]) == (0, 0, True)
    assert second["deleted"]
    assert (first["value"], first["weights"]) == (second["value"], second["weights"])


def test_the_report_is_that_of_the_plan(folder: Path) -> None:
    made = coop_jax.jit(step, budget=0.75).plan(*arguments())
    found = coop_jax.jit(step, budget=0.75).plan(*arguments())
    assert len(plans_in(folder)) == 1
    assert (made.is_stored, found.is_stored) == (False, True)
    assert "stored" in str(found)
    for name in ("budget_bytes", "jit_bytes", "needed_bytes", "attempts", "lines"):
        assert getattr(found, name) == getattr(made, name)


def test_memory_names_the_lines_of_a_stored_plan(folder: Path) -> None:
    made, found = (
        str(coop_jax.memory(coop_jax.jit(step, budget=0.75), *arguments())) for _ in range(2)
    )
    assert found == made
    assert "call_exported" not in found
    assert f"{Path(__file__).name}:" in found


def jit(fn: Callable[..., Any], **options: Any) -> Any:
    return coop_jax.jit(fn, **{"budget": 0.75, **options})


@pytest.mark.parametrize(
    "other",
    [
        lambda: jit(step, budget=0.8),
        lambda: jit(step, budget=200_000_000),
        lambda: jit(step, donate_argnums=0),
        lambda: jit(step, policy="coop"),
        lambda: jit(step, device_profile=coop_jax.DeviceProfile("fast", 1e12, 1e11, 1e-6)),
        lambda: jit(step, compiler_options={"xla_cpu_enable_fast_math": True}),
        lambda: jit(lambda p, x: step(p, x * 2.0)),
    ],
)
def test_what_decides_is_in_the_key(folder: Path, other: Callable[[], Any]) -> None:
    jit(step).plan(*arguments())
    before = plans_in(folder)
    assert not other().plan(*arguments()).is_stored
    assert before <= plans_in(folder)


def test_constants_are_in_the_key(folder: Path) -> None:
    params, x = arguments()

    def closing_over(scale: Any) -> Any:
        return jit(lambda p, x: jax.grad(lambda p: loss(p, x, scale))(p))

    for number in (1.0, 2.0):
        for scale in (np.full(WIDTH, number, np.float32), jnp.full(WIDTH, number)):
            found = closing_over(scale)(params, x)
            expected = jax.jit(jax.grad(lambda p, x, s=scale: loss(p, x, s)))(params, x)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # A closure over the same numbers is the same program.
    assert closing_over(jnp.full(WIDTH, 2.0)).plan(params, x).is_stored


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "other bytes"])
def test_what_cannot_be_read_is_planned_again(folder: Path, damage: str) -> None:
    expected = jit(step)(*arguments())
    (name,) = plans_in(folder)
    whole = (folder / name).read_bytes()
    damaged = {
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "garbage": b"\x00\xff" * 100,
        "other bytes": whole[:-1] + bytes([whole[-1] ^ 1]),
    }
    (folder / name).write_bytes(damaged[damage])
    again = jit(step)
    assert not again.plan(*arguments()).is_stored
    assert_equal(again(*arguments()), expected)
    assert (folder / name).read_bytes() != damaged[damage]
    assert jit(step).plan(*arguments()).is_stored


def test_keys_weak_types_and_donation_come_out_alike(folder: Path) -> None:
    def training(state: Any, x: Any) -> Any:
        params, key, count = state
        key, sub = jax.random.split(key)
        kept = jax.random.bernoulli(sub, 0.9, x.shape)
        grads = jax.grad(lambda p: loss(p, jnp.where(kept, x, 0.0)))(params)
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], key, count + 1

    def state() -> Any:
        return arguments()[0], jax.random.key(7), 0

    x = arguments()[1]
    expected = jit(training, donate_argnums=0)(state(), x)
    stored, given = jit(training, donate_argnums=0), state()
    assert_equal(stored(given, x), expected)
    assert stored.plan(state(), x).is_stored
    assert all(p.is_deleted() for p in given[0])
    assert_equal(stored(*[stored(state(), x)], x), stored(expected, x))


def test_calls_of_another_kind_are_told_apart(folder: Path) -> None:
    jit(step)(*arguments())
    stored = jit(step)
    stored(*arguments())
    params, x = arguments()
    larger = jnp.concatenate([x, x])
    found, expected = stored(params, larger)[1], jax.jit(step)(params, larger)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_was_traced_is_the_plan(folder: Path) -> None:
    made = str(jit(step).trace(*arguments()).jaxpr)
    stored = jit(step)
    assert stored.plan(*arguments()).is_stored
    assert str(stored.trace(*arguments()).jaxpr) == made
    assert "optimization_barrier" in stored.lower(*arguments()).as_text()


def test_what_calls_back_into_python_is_not_kept(folder: Path) -> None:
    seen = []

    def talking(params: Any, x: Any) -> Any:
        jax.debug.callback(seen.append, x[0, 0])
        return step(params, x)

    for _ in range(2):
        talked = jit(talking)
        jax.block_until_ready(talked(*arguments()))
        jax.effects_barrier()
        assert not talked.plan(*arguments()).is_stored
    assert len(seen) == 2
    assert not plans_in(folder)


def test_nothing_is_kept_where_jax_keeps_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("COOP_JAX_STORED_PLANS", "0")
        jit(step).plan(*arguments())
    names = ("jax_enable_compilation_cache", "jax_persistent_cache_min_compile_time_secs")
    for name, value in zip(names, (False, 1000.0), strict=True):
        before = getattr(jax.config, name)
        jax.config.update(name, value)
        try:
            jit(step).plan(*arguments())
        finally:
            jax.config.update(name, before)
    with jax.debug_nans(True):
        jit(step).plan(*arguments())
    with pytest.raises(coop_jax.BudgetExceededError):
        jit(step, budget=0.01).plan(*arguments())
    jit(step, budget=None).plan(*arguments())
    jit(step, budget=1.0).plan(*arguments())
    assert not plans_in(folder)


def test_a_folder_that_cannot_be_written_does_no_harm(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder would be")
    assert jit(step).plan(*arguments()).attempts
