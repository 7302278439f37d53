"""The comparison with PyTorch's memory budget counts right, and does without torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from tests.benchmarks import torch_budget
from tests.benchmarks.torch_budget import Recomputation, TorchRow
from tests.testing.processes import output_of

WIDTH = 64
MATMUL_FLOPS = 2.0 * WIDTH**3


@pytest.mark.parametrize("there_is_a_python", [False, True])
def test_where_torch_cannot_be_imported_one_line_says_so(
    there_is_a_python: bool, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    if there_is_a_python:
        python.write_text("#!/bin/sh\necho 'No module named torch' >&2\nexit 1\n")
        python.chmod(0o755)
    torch_budget.main([f"--torch_python={python}"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"torch cannot be imported by {python}")


def test_flops_of_matrix_products_include_those_of_inner_programs() -> None:
    @jax.jit
    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(x @ y)

    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (product(x, x), None), x, length=3)[0] + x @ x

    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    assert torch_budget.matmul_flops(jax.make_jaxpr(looped)(x).jaxpr) == 4 * MATMUL_FLOPS
    wide = jax.ShapeDtypeStruct((WIDTH, 3 * WIDTH), jnp.float32)
    assert torch_budget.matmul_flops(jax.make_jaxpr(product)(x, wide).jaxpr) == 3 * MATMUL_FLOPS


@pytest.mark.parametrize("fusion", [False, True])
def test_what_a_plan_computes_again_is_counted(fusion: bool) -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(16):
            x = x @ w
        return (x * x).sum()

    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    program = coop_jax.trace_program(jax.grad(loss), x, x, fusion=fusion)
    without = coop_jax.simulate(program)
    full = torch_budget.simulated(program, without.unbudgeted_peak_bytes)
    assert full == Recomputation(0.0, 0, 0.0)
    assert torch_budget.simulated(program, x.size) is None
    budget = without.unbudgeted_peak_bytes * 3 // 4
    less = torch_budget.simulated(program, budget)
    found = coop_jax.simulate(program, budget=budget)
    assert less is not None
    assert found.peak_bytes <= budget
    assert less.operations == found.rematerialisations
    # Matrix products are all that the forward pass has.
    assert less.matmul_flops == MATMUL_FLOPS * less.operations > 0
    assert 0 < less.work < 1


def test_a_compiled_plan_is_counted_from_its_jaxpr() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return x.sum()

    step = jax.grad(loss)
    args = jnp.ones((WIDTH, WIDTH)), jnp.ones((16 * WIDTH, WIDTH))
    needed = coop_jax.jit(step).plan(*args).needed_bytes
    assert torch_budget.compiled(step, args, needed) == Recomputation(0.0, 0, 0.0)
    assert torch_budget.compiled(step, args, needed // 10) is None
    less = torch_budget.compiled(step, args, needed * 3 // 4)
    assert less is not None
    assert less.matmul_flops >= 16 * MATMUL_FLOPS
    assert less.matmul_flops % (16 * MATMUL_FLOPS) == 0


def row_of(operations: list[tuple[bool, int, int]], budget: float | None = 0.5) -> TorchRow:
    return TorchRow(budget, 1.0, 1.0, 0, 0, 0, sum(f for _, f, _ in operations), operations)


def test_what_pytorch_computes_again_is_priced_as_ours() -> None:
    found = row_of([(False, 4000, 0), (True, 1000, 0), (True, 0, 0)]).recomputation
    assert found == Recomputation(1000, 2, pytest.approx(0.25))
    assert row_of([(False, 0, 600), (True, 0, 300)]).recomputation.work == pytest.approx(0.5)


def test_memory_is_that_of_generated_code_where_it_is_known() -> None:
    row = row_of([(False, 4000, 0)])
    assert row.as_compiled() == row
    compiled = dataclasses.replace(row, inductor_bytes=(3, 5)).as_compiled()
    assert (compiled.held_bytes, compiled.peak_bytes) == (3, 5)
    assert compiled.operations == row.operations


def test_cells_that_are_not_better_are_marked() -> None:
    theirs = Recomputation(1e9, 10, 0.2)
    better = Recomputation(0.5e9, 12, 0.1)
    assert torch_budget.cell(None, theirs) == "does not fit"
    assert torch_budget.cell(better, theirs).endswith("  ")
    assert torch_budget.cell(theirs, theirs).endswith("  ")
    assert torch_budget.cell(dataclasses.replace(better, work=0.3), theirs).endswith(" w")
    assert torch_budget.cell(dataclasses.replace(better, matmul_flops=2e9), theirs)[-2:] == "! "
    verdict = torch_budget.Verdict()
    for ours in (0.5, 1.0, 1.0, 2.0):
        verdict.add(ours, 1.0)
    assert str(verdict) == "less in 1 rows, as much in 2, more in 1"


def test_budgets_that_need_more_than_larger_ones_are_found() -> None:
    assert torch_budget.rises([(1.0, 50), (0.8, 40), (0.6, 45), (0.4, 40), (0.2, 41)]) == [0.6, 0.2]
    assert torch_budget.rises([(1.0, 50), (0.8, 40), (0.6, 40)]) == []


_MEASURED = """
import dataclasses, json, torch
from tests.benchmarks import torch_gpt
p = {"w": torch.ones(64, 64, requires_grad=True)}
for budget in (None, 0.0):
    row = torch_gpt.measured(lambda p, x: (x @ p["w"]).tanh().sum(), p, torch.ones(32, 64), budget)
    print(json.dumps(dataclasses.asdict(row)))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_what_pytorch_holds_and_computes_again_is_counted() -> None:
    lines = output_of(_MEASURED, warnings="default").splitlines()
    without, least = (TorchRow(**json.loads(line)) for line in lines)
    matrix, product, scalar = 64 * 64 * 4, 32 * 64 * 4, 4
    for row in (without, least):
        assert row.argument_bytes == matrix + product
    assert without.held_bytes == product + scalar
    assert without.recomputation == Recomputation(0, 0, 0.0)
    assert without.matmul_flops == 2 * (2 * 32 * 64 * 64)
    assert least.held_bytes == scalar
    assert least.recomputation.matmul_flops == 2 * 32 * 64 * 64
    assert least.recomputation.operations == 2  # the product and tanh
    assert least.matmul_flops == 3 * (2 * 32 * 64 * 64)
    assert row.peak_bytes >= row.argument_bytes + 2 * product
