"""Five planted problems in plain JAX: the first three lines name the line or the argument."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax

import coop_jax

_HERE = pathlib.Path(__file__)


def line_of(marker: str) -> str:
    """ "file:line" of the only line that ends with a comment."""
    lines = _HERE.read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return f"{_HERE.name}:{number}"


def abstract(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def top(report: coop_jax.MemoryReport) -> list[str]:
    return str(report).splitlines()[:3]


def test_a_residual_kept_by_accident() -> None:
    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    def spread(x: Any) -> Any:
        apart = x[:, None, :] - x[None, :, :]  # all differences
        return jnp.sqrt((jnp.abs(apart) ** 3).sum(-1) + 1e-6).mean()

    def loss(w: Any, x: Any) -> Any:
        for _ in range(4):
            x = layer(w, x)
        return (x**2).mean() - 0.01 * spread(x)

    report = coop_jax.memory(jax.jit(jax.grad(loss)), abstract(64, 64), abstract(256, 64))
    assert any(line_of("all differences") in line for line in top(report)), str(report)
    assert report.by_kind["residuals"] > 0.4 * report.peak_bytes


def test_a_mask_of_the_square_of_the_length() -> None:
    def loss(w: Any, x: Any, documents: Any) -> Any:
        same = documents @ documents.T  # n by n
        for _ in range(3):
            x = jnp.tanh(same @ x @ w)
        return (x**2).mean()

    length = 1024
    args = abstract(16, 16), abstract(length, 16), abstract(length, 8)
    report = coop_jax.memory(jax.jit(jax.grad(loss)), *args)
    assert any(line_of("n by n") in line for line in top(report)), str(report)
    assert any(f"float32[{length},{length}]" in line for line in top(report))


def test_an_optimizer_in_float32() -> None:
    optimizer = optax.adam(1e-3)

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return (jnp.tanh(batch @ params["kernel"]) ** 2).astype(jnp.float32).mean()

        grads = jax.grad(loss)(state["params"])
        wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        updates, opt_state = optimizer.update(wide, state["opt_state"])
        params = jax.tree.map(lambda p, u: p + u.astype(p.dtype), state["params"], updates)
        return {"params": params, "opt_state": opt_state}

    params = {"kernel": abstract(1024, 1024, dtype=jnp.bfloat16)}
    wide = {"kernel": abstract(1024, 1024)}
    state = {"params": params, "opt_state": jax.eval_shape(optimizer.init, wide)}
    report = coop_jax.memory(
        jax.jit(step, donate_argnums=0), state, abstract(8, 1024, dtype=jnp.bfloat16)
    )
    assert any("state['opt_state'][0].mu['kernel']" in line for line in top(report)), str(report)
    (hint,) = [h for h in report.hints if h.kind == "optimizer dtype"]
    assert hint.nbytes == 2 * 1024 * 1024 * (4 - 2)
    assert "optimizer state is float32, parameters are bfloat16" in hint.text


def test_a_batch_too_large() -> None:
    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            x = batch["image"]
            for w in params:
                x = jnp.tanh(x @ w)
            return (x**2).mean()

        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = [abstract(64, 64) for _ in range(4)]
    batch = {"image": abstract(8192, 64), "label": abstract(8192, dtype=jnp.int32)}
    report = coop_jax.memory(jax.jit(step, donate_argnums=0), params, batch)
    assert any("batch['image'] has 8192 rows" in line for line in top(report)), str(report)
    (hint,) = [h for h in report.hints if h.kind == "batch"]
    assert hint.nbytes > 0.9 * report.peak_bytes


def test_a_leak_from_step_to_step() -> None:
    step = jax.jit(lambda w, x: (w - 0.1 * (x @ w), (x @ w).mean(0)))
    w, x = jnp.ones((64, 64)), jnp.ones((64, 64))
    history = []
    for _ in range(8):
        w, _ = step(w, x)
        history.append(w + 0)
    report = coop_jax.memory(step, w, x)
    found = [line for line in top(report) if "history" in line]
    assert found, str(report)
    assert "8 arrays" in found[0]
    assert f"{_HERE.name}:" in found[0]
    (held,) = [h for h in report.elsewhere if h.variable == "history"]
    assert held.nbytes == 8 * 64 * 64 * 4
    assert report.elsewhere_bytes >= held.nbytes


def test_an_argument_that_grows_is_named_with_its_size() -> None:
    def step(state: Any, x: Any) -> Any:
        loss = (x @ state["w"]).mean()
        return {"w": state["w"] - 0.1, "outputs": [*state["outputs"], x @ state["w"]]}, loss

    def after(steps: int) -> coop_jax.MemoryReport:
        outputs = [abstract(512, 64) for _ in range(steps)]
        state = {"w": abstract(64, 64), "outputs": outputs}
        return coop_jax.memory(jax.jit(step, keep_unused=True), state, abstract(512, 64))

    few, many = after(2), after(8)
    assert many.argument_bytes - few.argument_bytes == 6 * 512 * 64 * 4
    assert any("['outputs'][*]" in line for line in top(many)), str(many)
