"""What is made of the steps of recurrent networks: of gates, derivatives, bundles, their plan."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.execution.instructions import Run, View
from coop_jax._src.lowering import build, constants
from coop_jax._src.lowering.passes import launch_clustering
from tests.testing.comparison import assert_same_bits

WIDTH, ROWS = 32, 8


def cell(state: Any, x: jax.Array, w: jax.Array, u: jax.Array) -> Any:
    c, h = state
    i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def loss(weights: Any, xs: jax.Array) -> jax.Array:
    state = (jnp.zeros((ROWS, WIDTH)),) * 2
    for x in xs:
        state = cell(state, x, *weights)
    return (state[1] ** 2).sum()


def weights() -> list[np.ndarray]:
    random_ = np.random.default_rng(0)
    return [random_.normal(size=(WIDTH, 4 * WIDTH)).astype(np.float32) / 6 for _ in range(2)]


def steps(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, ROWS, WIDTH)).astype(np.float32)


def unbundled(monkeypatch: pytest.MonkeyPatch, fn: Any, *args: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(build, "bundle", lambda operations, *_: operations)
        return coop_jax.trace_program(fn, *args, fusion=True)


def test_gates_are_split_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = unbundled(monkeypatch, loss, weights(), steps(6))
    made = [[e.primitive.name for e in op.kernel.equations] for op in traced.program.operations]
    for names in made:
        if "split" in names:
            assert names[-1] != "split", names


def test_derivatives_of_gates_are_not_kept() -> None:
    """They are made of the gate, which is read as late."""

    def deep(w: jax.Array, h: jax.Array) -> jax.Array:
        for _ in range(16):
            h = jax.nn.sigmoid(h @ w)
        return h.sum()

    w = np.ones((64, 64), np.float32)
    traced = coop_jax.trace_program(jax.grad(deep), w, w, fusion=True)
    values = coop_jax.simulate(traced, budget=None).peak_bytes / w.nbytes
    assert values < 16 + 8, values


def test_steps_compute_what_they_did() -> None:
    args = weights(), steps(12)
    expected = jax.jit(jax.value_and_grad(loss))(*args)
    budgeted = coop_jax.run(jax.value_and_grad(loss), fusion=True)
    found = budgeted(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    smaller = coop_jax.run(jax.value_and_grad(loss), budget=0.85, fusion=True)
    assert_same_bits(smaller(*args), found)


def test_what_no_instruction_mentions_has_no_place() -> None:
    """Values are numbered from 0 on; a value that is made is there when it is read."""
    budgeted = coop_jax.run(jax.grad(loss), budget=0.85, fusion=True)
    budgeted(weights(), steps(12))
    (signature,) = budgeted._signatures.values()
    assert signature.program is not None
    (plan,) = signature.plans.values()
    assert plan.values <= len(signature.program.values)
    assert len(plan.inputs) == len(signature.program.inputs)
    assert len(plan.constants) == len(signature.program.constants)
    there, mentioned = {*plan.inputs, *plan.constants}, {*plan.inputs, *plan.constants}
    for instruction in plan.instructions:
        if type(instruction) is Run:
            assert there.issuperset(instruction.operands)
            assert there.issuperset(instruction.forget)
            there -= {*instruction.forget}
            made = {v for v in instruction.results if v >= 0}
        elif type(instruction) is View:
            made = {instruction.value}
        else:
            assert there.issuperset(instruction.values)
            there -= {*instruction.values}
            made = set()
        there |= made
        mentioned |= made
    assert there.issuperset(value for value, _, _ in plan.outputs)
    assert mentioned == set(range(plan.values))


def test_what_was_computed_just_before_is_one_value() -> None:
    def fn(x: jax.Array, between: int) -> Any:
        for _ in range(5):  # further from the arguments than what is always one value
            x = jnp.sin(x) * x
        a, y = jnp.cos(x), x
        for _ in range(between):
            y = jnp.sort(y)
        return jnp.sort(a), jnp.sort(jnp.cos(x), axis=0), y

    def cosines(between: int) -> int:
        x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        traced = coop_jax.trace_program(lambda x: fn(x, between), x, fusion=True)
        made = [e.primitive.name for op in traced.program.operations for e in op.kernel.equations]
        return made.count("cos")

    assert cosines(3) == 1
    assert cosines(40) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_other_bundles_would_cost_much_less(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways to bundle random programs of a few operations, most of which fit together."""
    random_ = random.Random(seed)
    tuned = dataclasses.replace(
        constants.TUNED, cluster_max_operands=5, cluster_max_peak_fraction=1.0
    )
    monkeypatch.setattr(constants, "TUNED", tuned)

    def fn(xs: list[jax.Array]) -> Any:
        values = list(xs)
        for _ in range(8):
            a, b = random_.sample(values, 2)
            large = random_.random() < 0.15
            values.append(jnp.sort(a if large else a[:1]) + b if large else jnp.sort(a @ b))
        return values[-1], random_.choice(values)

    seen = []

    def bundle(*args: Any) -> Any:
        seen.append(args)
        return args[0]

    monkeypatch.setattr(build, "bundle", bundle)
    coop_jax.trace_program(fn, [jnp.ones((16, 16))] * 3, fusion=True)
    ((operations, flattener, outputs),) = seen
    bundler = launch_clustering._Bundler(operations, flattener, outputs)
    count = len(operations)

    def cost(begin: int, end: int) -> float | None:
        found = launch_clustering._Bundle(bundler, begin)
        while found.end < end:
            if not bundler.small[begin] or not found.extend():
                return None
        members, storages = operations[begin:end], flattener.storages
        made = {storages[v] for op in members for v in op.results}
        later = {storages[v] for op in operations[end:] for v in op.operands}
        later |= {storages[v] for v in outputs}
        read = {storages[v] for op in members for v in op.operands} - made
        launch, operand = tuned.cluster_launch_cost, tuned.cluster_operand_cost
        assert found.cost() == launch + len(made & later) + operand * len(read)
        return found.cost()

    def total(cuts: tuple[int, ...]) -> float | None:
        costs = [cost(*pair) for pair in itertools.pairwise((0, *cuts, count))]
        return None if None in costs else sum(c for c in costs if c is not None)

    ways = [
        total(cuts)
        for kept in range(count)
        for cuts in itertools.combinations(range(1, count), kept)
    ]
    beginnings, end, chosen = bundler._beginnings(), count, 0.0
    while end:
        found = cost(beginnings[end], end)
        assert found is not None
        chosen, end = chosen + found, beginnings[end]
    # What is passed over may have read a little less.
    least = min(w for w in ways if w is not None)
    assert least - 1e-9 <= chosen <= least + 4 * tuned.cluster_operand_cost
    assert len(ways) == 2 ** (count - 1)
