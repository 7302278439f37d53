"""`MemoryReport`: what it tells apart, how it is shown, what `memory` takes."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import coop_jax

HERE = "test_memory_report.py"


def abstract(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x + nn.Dense(x.shape[-1])(jnp.tanh(nn.Dense(4 * x.shape[-1])(x)))


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(3):
            x = Block()(x)
        return x


OPTIMIZER = optax.adam(1e-3)


def train_step(state: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        return (Network().apply({"params": params}, batch["x"]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, value


@functools.cache
def example() -> tuple[Any, Any]:
    init = Network().init
    params = jax.eval_shape(lambda: init(jax.random.key(0), jnp.ones((1, 32)))["params"])
    state = {"params": params, "opt_state": jax.eval_shape(OPTIMIZER.init, params)}
    return state, {"x": abstract(512, 32)}


@functools.cache
def report() -> coop_jax.MemoryReport:
    return coop_jax.memory(jax.jit(train_step, donate_argnums=0), *example())


def test_parameters_optimizer_state_and_inputs_are_told_apart() -> None:
    state, batch = example()

    def nbytes(tree: Any) -> int:
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))

    kinds = report().by_kind
    assert kinds["parameters"] == nbytes(state["params"])
    assert kinds["optimizer state"] == nbytes(state["opt_state"])
    assert kinds["inputs"] == nbytes(batch)
    paths = {b.path for b in report().buffers}
    assert "state['params']['Block_0']['Dense_0']['kernel']" in paths
    assert "state['opt_state'][0].mu['Block_0']['Dense_0']['kernel']" in paths
    assert "batch['x']" in paths


def test_buffers_have_the_modules_of_flax_and_the_users_lines() -> None:
    residuals = [b for b in report().buffers if b.kind == "residuals" and b.nbytes >= 512 * 128 * 4]
    assert {b.module.split("/")[1] for b in residuals} == {"Block_0", "Block_1", "Block_2"}
    assert all(re.search(rf"{HERE}:\d+ \(Block\.__call__\)$", b.source) for b in residuals)
    assert all((b.shape, b.dtype) == ((512, 128), "float32") for b in residuals)
    modules = report().by_module
    assert modules["Network"] >= sum(modules[f"Network/Block_{n}"] for n in range(3))
    assert any("Block.__call__" in source for source in report().by_source)


def test_the_peak_is_at_an_operation_of_the_program() -> None:
    peak = report().peak
    assert peak is not None
    assert 0 < peak.position < 1
    assert HERE in peak.source
    assert peak.operation


def test_what_is_read_backward_only_is_a_residual() -> None:
    def loss(w: Any, x: Any) -> Any:
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    args = abstract(64, 64), abstract(1024, 64)
    assert "residuals" not in coop_jax.memory(loss, *args).by_kind
    kinds = coop_jax.memory(jax.grad(loss), *args).by_kind
    assert kinds["residuals"] >= 3 * 1024 * 64 * 4


def test_stacks_of_a_scan_come_from_the_operation_that_fills_them() -> None:
    def body(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w), None  # stacked

    def loss(ws: Any, x: Any) -> Any:
        return (jax.lax.scan(body, x, ws)[0] ** 2).mean()

    found = coop_jax.memory(jax.grad(loss), abstract(8, 32, 32), abstract(512, 32))
    stacks = [b for b in found.buffers if b.shape == (8, 512, 32)]
    assert all(b.kind == "residuals" for b in stacks)
    # Of a carry it may be the line that scans.
    assert sum(".body)" in b.source for b in stacks) >= len(stacks) - 1 > 0


def test_results_that_could_be_written_over_arguments_are_noticed() -> None:
    args = example()
    given = coop_jax.memory(train_step, *args)
    assert [h.kind for h in report().hints if h.kind == "donation"] == []
    (hint,) = [h for h in given.hints if h.kind == "donation"]
    assert hint.nbytes == given.by_kind["parameters"] + given.by_kind["optimizer state"]
    assert "state, which is not donated" in hint.text


def test_an_array_given_is_not_held_elsewhere() -> None:
    x, other = jnp.ones((128, 128)), jnp.ones((256, 128))
    fn = lambda x, y: x @ y  # noqa: E731
    held = {h.variable for h in coop_jax.memory(fn, x, abstract(128, 256)).elsewhere}
    assert "other" in held
    assert "x" not in held
    held = {h.variable for h in coop_jax.memory(fn, x, abstract(*other.shape[::-1])).elsewhere}
    assert "x" not in held
    held = {h.variable for h in coop_jax.memory(fn, abstract(64, 256), other).elsewhere}
    assert "other" not in held


def test_arrays_of_unknown_holders_are_listed_but_stand_out_nowhere() -> None:
    unknown = jnp.ones((4096, 512))
    keeping = (lambda x: lambda: x)(unknown)  # no variable holds it, but a closure's cell
    del unknown
    found = report.__wrapped__()
    assert found.elsewhere_bytes >= keeping().nbytes
    assert "arrays of unknown variables" not in str(found).split("peak after")[0]


def test_lines_fit_a_terminal_and_the_first_ones_say_most() -> None:
    lines = str(report()).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("train_step needs ")
    assert "residuals" in lines[1]
    assert f"{HERE}:" in lines[1]
    assert "batch['x'] has 512 rows" in lines[2]
    assert len(lines) < 40


def test_html_escapes_what_comes_from_the_program() -> None:
    def fn(tree: Any) -> Any:
        return tree["<script>&"] * 2

    html = coop_jax.memory(fn, {"<script>&": abstract(1000)})._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;&amp;" in html


def test_json_has_stable_keys() -> None:
    found = json.loads(report().to_json())
    assert set(found) == {
        *("name", "platform", "devices", "peak_bytes", "argument_bytes", "output_bytes"),
        *("alias_bytes", "temporary_bytes", "library_bytes", "peak", "buffers", "moments"),
        *("hints", "elsewhere", "elsewhere_bytes", "budgets", "recommended_budget"),
        *("refusal", "by_kind", "by_source", "by_module"),
    }
    assert sum(b["nbytes"] for b in found["buffers"]) == found["peak_bytes"]
    assert set(found["buffers"][0]) == {
        *("nbytes", "kind", "shape", "dtype", "allocation", "offset", "first", "last"),
        *("instruction", "operation", "source", "module", "path", "phase"),
    }
    full = json.loads(report().to_json(lifetimes=True))
    assert len(full["lifetimes"]) == len(report().lifetimes)


def test_convolutions_on_a_cpu_take_memory_beside_it() -> None:
    def fn(x: Any, k: Any) -> Any:
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")

    found = coop_jax.memory(fn, abstract(8, 16, 64, 64), abstract(32, 16, 3, 3))
    assert found.library_bytes > 1 << 20
    assert "XLA's CPU libraries" in str(found)
    assert report().library_bytes < found.library_bytes


def test_arguments_of_modules_have_the_users_names() -> None:
    model = nnx.Linear(16, 32, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        grads = nnx.grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, grads)

    found = coop_jax.memory(step, model, optimizer, jnp.ones((8, 16)))
    kinds = {b.path: b.kind for b in found.buffers}
    assert {kinds[p] for p in kinds if p.startswith("model.kernel")} == {"parameters"}
    mu = [p for p in kinds if p.startswith("optimizer.opt_state") and ".mu" in p]
    assert {kinds[p] for p in mu} == {"optimizer state"}
    assert kinds["x"] == "inputs"


def test_haiku_and_equinox_names_are_known() -> None:
    hk, eqx = pytest.importorskip("haiku"), pytest.importorskip("equinox")
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([256, 8], name="head")(x)))
    x = abstract(512, 16)
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.ones((1, 16))))
    found = coop_jax.memory(jax.grad(lambda p, x: net.apply(p, x).sum()), params, x)
    assert any(module.startswith("head") for module in found.by_module)

    model = eqx.nn.MLP(16, 4, 128, 2, key=jax.random.key(0))
    grad = eqx.filter_jit(eqx.filter_grad(lambda m, x: (jax.vmap(m)(x) ** 2).mean()))
    found = coop_jax.memory(grad, model, jnp.ones((512, 16)))
    assert any("MLP" in module for module in found.by_module)


@pytest.mark.parametrize("front_end", [jax.jit, coop_jax.jit, lambda f: f])
def test_budgets_are_planned_on_request(front_end: Any) -> None:
    def loss(w: Any, x: Any) -> Any:
        for _ in range(12):
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    fn = front_end(jax.grad(loss))
    args = abstract(64, 64), abstract(4096, 64)
    assert coop_jax.memory(fn, *args).budgets == ()
    found = coop_jax.memory(fn, *args, budgets=True)
    overheads = [b.overhead for b in found.budgets if b.feasible]
    assert overheads == sorted(overheads)
    assert found.recommended_budget in [b.budget_bytes for b in found.budgets]
    assert found.recommended_budget < found.peak_bytes
    assert f"budget={found.recommended_budget}" in str(found)
    report = coop_jax.jit(jax.grad(loss), budget=found.recommended_budget).plan(*args)
    assert report.recompute_share / (1 - report.recompute_share) <= 0.1


def test_operations_of_a_plan_keep_the_users_lines() -> None:
    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    def loss(w: Any, x: Any) -> Any:
        for _ in range(8):
            x = layer(w, x)
        return (x**2).mean()

    planned = coop_jax.jit(jax.grad(loss), budget=0.6)
    args = abstract(64, 64), abstract(1024, 64)
    assert planned.plan(*args).recomputations > 0
    found = coop_jax.memory(planned, *args)
    activations = [b for b in found.buffers if b.shape == (1024, 64) and b.kind != "inputs"]
    assert activations
    assert all(".layer)" in b.source and HERE in b.source for b in activations)


@pytest.mark.parametrize("front_end", [coop_jax.run, coop_jax.jit])
def test_a_budget_that_does_not_suffice_is_said_beside_the_program(front_end: Any) -> None:
    step = front_end(train_step, budget="300KiB", donate_argnums=0)
    report = coop_jax.memory(step, *example())
    enough = coop_jax.memory(front_end(train_step, budget=None, donate_argnums=0), *example())
    assert report.peak_bytes == enough.peak_bytes
    assert report.by_source == enough.by_source
    assert re.fullmatch(r"does not fit into 300.00 KiB; fits into .*, and into .*", report.refusal)
    for shown in (str(report), report.to_html(), report.to_json()):
        assert "does not fit into 300.00 KiB" in shown
    assert not enough.refusal


def test_a_budget_that_does_not_suffice_for_a_method_or_a_library_function() -> None:
    class Model:
        @functools.partial(coop_jax.jit, budget="1MiB", static_argnums=0)
        def loss(self, x: Any) -> Any:
            return (jnp.tanh(jnp.tanh(x) @ x.T) ** 2).mean()

    def loss(model: nnx.Linear, x: Any) -> Any:
        return (jnp.tanh(model(x)) ** 2).mean()

    assert coop_jax.memory(Model().loss, abstract(1024, 512)).refusal
    library = coop_jax.jit(nnx.jit(loss), budget="64KiB")
    found = coop_jax.memory(library, nnx.Linear(64, 512, rngs=nnx.Rngs(0)), jnp.ones((512, 64)))
    assert found.refusal


def test_equal_results_of_a_list_are_one_row() -> None:
    def step(weights: Any, x: Any) -> Any:
        return [w + x for w in weights], (weights[0][0], x.sum())

    report = coop_jax.memory(step, [abstract(64, 64)] * 12, abstract(64, 64))
    rows = [line for line in str(report).splitlines() if "result[" in line]
    assert any("result[0][*]  12 × float32[64,64]" in row for row in rows)
    assert len(rows) <= 3


def test_functions_bound_to_arguments_are_taken() -> None:
    class Holder:
        @functools.partial(jax.jit, static_argnums=0)
        def method(self, x: Any) -> Any:
            return jnp.tanh(x)

    bound = functools.partial(jax.jit(jnp.dot, donate_argnums=0), jnp.ones((8, 8)))
    assert coop_jax.memory(bound, abstract(8, 8)).alias_bytes == 8 * 8 * 4
    assert coop_jax.memory(Holder().method, abstract(100)).argument_bytes == 400


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a function or a compiled program"):
        coop_jax.memory(3)  # type: ignore[arg-type]
    compiled = jax.jit(jnp.tanh).lower(abstract(8)).compile()
    with pytest.raises(TypeError, match="has its arguments"):
        coop_jax.memory(compiled, abstract(8))
    with pytest.raises(TypeError, match="budgets=True needs the function"):
        coop_jax.memory(compiled, budgets=True)
    with pytest.raises(TypeError, match="budgets must be True or False"):
        coop_jax.memory(jnp.tanh, abstract(8), budgets=0.5)  # type: ignore[arg-type]


def test_lines_are_those_of_the_file_as_it_is(tmp_path: Any) -> None:
    """Also where JAX's persistent cache holds the same program of an older file."""
    for blank in (1, 5):
        path = tmp_path / "moved.py"
        path.write_text("\n" * blank + "def moved(x):\n    return (x @ x) @ x\n")
        names: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        found = coop_jax.memory(names["moved"], abstract(128, 128))
        (source,) = found.by_source
        assert f"moved.py:{blank + 2} " in source
