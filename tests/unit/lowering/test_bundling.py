"""Operations that take less time than to launch them run together."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import coop_jax
from coop_jax._src.ir import program
from coop_jax._src.lowering import build, constants
from tests.testing.comparison import assert_same_bits

WIDTH, BATCH = 32, 8


def recurrent(params: Any, x: jax.Array) -> jax.Array:
    """A gated cell over the first axis of x, layer by layer; a scalar."""
    for w, u, b in params:

        def cell(h: jax.Array, x: jax.Array, w: Any = w, u: Any = u, b: Any = b) -> Any:
            gate, new = jnp.split(x @ w + h @ u + b, 2, axis=-1)
            h = h + jax.nn.sigmoid(gate) * (jnp.tanh(new) - h)
            return h, h

        _, x = lax.scan(cell, jnp.zeros(x.shape[1:]), x)
    return (x**2).mean()


def first(layers: int = 2) -> Any:
    random = np.random.default_rng(0)
    return [
        tuple(
            random.normal(size=shape).astype(np.float32) / 6
            for shape in ((WIDTH, 2 * WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH,))
        )
        for _ in range(layers)
    ]


def data(length: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(length, BATCH, WIDTH)).astype(np.float32)


ADAM = optax.adam(1e-3)


def step(params: Any, state: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(recurrent)(params, x)
    updates, state = ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def arguments(length: int = 16) -> Any:
    params = first()
    return params, jax.tree.map(np.array, ADAM.init(params)), data(length)


def operations(fn: Any, *args: Any, donate: Any = ()) -> tuple[program.Operation, ...]:
    traced = coop_jax.trace_program(fn, *args, donate_argnums=donate, fusion=True)
    return traced.program.operations


def unbundled(monkeypatch: pytest.MonkeyPatch, fn: Any, *args: Any, donate: Any = ()) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(build, "bundle", lambda operations, *_: operations)
        return coop_jax.trace_program(fn, *args, donate_argnums=donate, fusion=True)


def test_a_recurrent_network_is_far_fewer_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments()
    before = unbundled(monkeypatch, step, *args, donate=(0, 1)).program.operations
    after = operations(step, *args, donate=(0, 1))
    assert len(after) * 2 < len(before), (len(after), len(before))


@pytest.mark.parametrize(
    "policy", ["coop", pytest.param("dtr", marks=pytest.mark.slow), "lookahead"]
)
@pytest.mark.no_recomputation("the budgets are those of the test")
def test_every_budget_gives_the_same_bits(policy: str) -> None:
    args = arguments()
    expected = coop_jax.run(step, donate_argnums=(0, 1), fusion=True)(*args)
    seen = 0
    for share in (0.9, 0.7, 0.5):
        budgeted = coop_jax.run(
            step, budget=share, policy=policy, donate_argnums=(0, 1), fusion=True
        )
        try:
            found = budgeted(*args)
        except coop_jax.BudgetExceededError:
            continue
        assert_same_bits(found, expected)
        stats = budgeted.runtime.stats()
        assert stats.peak_bytes <= stats.budget_bytes
        seen += stats.evictions > 0
    assert seen


def test_close_to_what_jit_computes() -> None:
    args = arguments()
    expected = jax.jit(step)(*args)
    found = coop_jax.run(step, donate_argnums=(0, 1), fusion=True)(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)


def test_donated_arrays_keep_their_addresses() -> None:
    bundled = coop_jax.run(step, donate_argnums=(0, 1), fusion=True)
    params, state, x = arguments()
    places = []
    for _ in range(4):
        params, state, _ = bundled(params, state, x)
        leaves = jax.tree.leaves((params, state))
        places.append([a.unsafe_buffer_pointer() for a in leaves if a.nbytes > 256])
    assert places[1:] == [places[0]] * 3


def test_longer_sequences_have_no_more_different_operations() -> None:
    kinds = [
        len({op.kernel.key for op in operations(jax.grad(recurrent), first(1), data(length))})
        for length in (32, 64)
    ]
    assert kinds[1] <= 1.25 * kinds[0], kinds


def bytes_at_once(op: program.Operation, traced: Any) -> int:
    """What an operation reads and writes, but for what the program returns."""
    made = traced.program
    returned = {made.values[v].storage for v in made.outputs}
    storages = {made.values[v].storage for v in (*op.operands, *op.results)} - returned
    return sum(made.storages[s].nbytes for s in storages)


def test_no_bundle_needs_more_at_once_than_the_most_demanding_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = first(1), data(32)
    fn = jax.value_and_grad(recurrent)
    before = unbundled(monkeypatch, fn, *args)
    after = coop_jax.trace_program(fn, *args, fusion=True)
    most = max(bytes_at_once(op, before) for op in before.program.operations)
    assert max(bytes_at_once(op, after) for op in after.program.operations) <= most
    least = [coop_jax.min_budget(traced) for traced in (before, after)]
    assert least[1] <= 1.3 * least[0], least


def test_what_takes_longer_than_to_launch_it_stays_alone() -> None:
    x = np.ones((512, 512), np.float32)

    def fn(x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.sort(x @ x) @ x)

    assert all(len(op.kernel.equations) == 1 for op in operations(fn, x))


def test_effects_stay_operations_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        x = jnp.sort(x) * 2
        jax.debug.print("sum {}", x.sum())
        return jnp.sort(jnp.sin(x)) + 1

    x = np.ones(128, np.float32)
    labels = [op.kernel.label for op in operations(fn, x)]
    assert "debug_print" in labels or "debug_callback" in labels, labels
    coop_jax.run(fn, fusion=True)(x)
    jax.effects_barrier()
    assert capfd.readouterr().out == "sum 256.0\n"


def test_views_between_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reshape costs nothing between operations, and is one inside a bundle."""

    def fn(x: jax.Array, large: jax.Array) -> Any:
        a = jnp.sort(x)
        b = a.reshape(32, 16)
        c = jnp.sort(b @ b.T)
        return c, jnp.sort(a.reshape(-1)[::-1]), b, jnp.sort(large)

    x = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    large = np.ones((128, 512), np.float32)  # beside which the others are small
    before = unbundled(monkeypatch, fn, x, large).program.operations
    assert len(operations(fn, x, large)) < len(before)
    expected = fn(x, large)
    for a, b in zip(coop_jax.run(fn, fusion=True)(x, large), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_small_is_in_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = dataclasses.replace(constants.TUNED, cluster_max_member_work=0.0)
    monkeypatch.setattr(constants, "TUNED", tuned)
    args = arguments()
    assert len(operations(step, *args)) > 100
