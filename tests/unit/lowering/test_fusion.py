"""Fusion: what runs as one operation, and that it changes neither bits nor memory for the worse."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import coop_jax
from coop_jax._src.planning import planner
from examples.paper.networks import NETWORKS
from tests.testing import models
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits, bits_of

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
ROW = jax.ShapeDtypeStruct((64,), jnp.float32)


def labels(fn: Any, *args: Any, **kwargs: Any) -> list[str]:
    """The primitives of each operation, in program order."""
    program = coop_jax.trace_program(fn, *args, fusion=True, **kwargs).program
    return [" ".join(e.primitive.name for e in op.kernel.equations) for op in program.operations]


def test_a_chain_of_loops_is_one_operation() -> None:
    assert labels(lambda x: jnp.tanh(x * 2 + 1).sum(axis=0), X) == ["mul add tanh reduce_sum"]


def test_without_fusion_each_primitive_is_one() -> None:
    program = coop_jax.trace_program(lambda x: jnp.tanh(x * 2 + 1), X, fusion=False).program
    assert [op.kernel.label for op in program.operations] == ["mul", "add", "tanh"]


def test_a_product_takes_what_follows_and_not_what_goes_in() -> None:
    found = labels(lambda x, w, b: jnp.tanh(jnp.tanh(x) @ w + b), X, X, ROW)
    assert found == ["tanh", "dot_general broadcast_in_dim add tanh"]


def test_what_is_written_over_all_of_an_array_is_no_operation() -> None:
    def update(old: jax.Array, new: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(old, jnp.tanh(new)[:64], (3, 0))

    assert labels(update, X, X) == ["tanh"]
    row = jax.ShapeDtypeStruct((1, 64), jnp.float32)
    part = labels(lambda old, new: lax.dynamic_update_slice(old, new, (3, 0)), X, row)
    assert part == ["dynamic_update_slice"]
    step = coop_jax.run(update, "1MiB", donate_argnums=0)
    old, new = jnp.zeros(X.shape), jax.random.normal(jax.random.key(0), X.shape)
    assert_same_bits(step(old, new), jnp.tanh(new))
    assert old.is_deleted()


def test_a_program_without_operations_is_fused_too() -> None:
    assert labels(lambda x: x, X) == []


def test_two_products_are_never_one() -> None:
    found = labels(lambda x, w: jnp.tanh(x @ w + w @ x), X, X)
    assert sorted(x.count("dot_general") for x in found) == [1, 1]


def test_what_is_larger_than_the_result_is_not_hidden_inside() -> None:
    big = jax.ShapeDtypeStruct((1024, 64), jnp.float32)
    assert labels(lambda x, w: (x @ w).sum(), big, X) == ["dot_general", "reduce_sum"]


def test_not_too_much_is_read_at_once() -> None:
    """A sum of sixteen arrays as one operation would need all of them."""
    found = labels(lambda *xs: sum(x * 2 for x in xs), *[X] * 16)
    assert 3 <= len(found) <= 8


def test_cheap_values_are_computed_where_they_are_read() -> None:
    def two_readers(x: jax.Array, row: jax.Array) -> Any:
        wide = jnp.broadcast_to(row, x.shape)
        return jnp.tanh(x @ x + wide), jnp.sin(x @ x.T * wide)

    found = labels(two_readers, X, ROW)
    assert [x.count("broadcast_in_dim") for x in found if "dot_general" in x] == [1, 1]


def test_costly_values_with_two_readers_are_computed_once() -> None:
    def two_readers(x: jax.Array) -> Any:
        y = jnp.tanh(x)
        return jnp.sin(y), jnp.cos(y).sum(axis=0)

    assert sum(x.count("tanh") for x in labels(two_readers, X)) == 1


def test_nothing_large_is_kept_alive_for_what_is_small() -> None:
    """The sum is made at once, though only the last operation reads it."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jnp.sin(x @ w)
        total = (y * y).sum(axis=1)
        for _ in range(3):
            y = jnp.sin(y @ w)
        return y * total[:, None]

    found = labels(fn, X, X)
    assert found[1].endswith("reduce_sum"), found
    assert "reduce_sum" not in found[-1]


def test_views_between_members_are_followed() -> None:
    def fn(x: jax.Array) -> jax.Array:
        y = (x * 3).reshape(16, 256)
        z = lax.bitcast_convert_type(jnp.exp(y), jnp.int32)
        return (z.reshape(64, 64) & 0xFFFF).T

    x = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    step = coop_jax.run(fn, fusion=True)
    np.testing.assert_array_equal(step(x), jax.jit(fn)(x))
    assert len(labels(fn, X)) == 1


def test_what_is_read_in_parts_is_stored() -> None:
    """The scan reads slices where the array lies."""

    def fn(x: jax.Array) -> jax.Array:
        stack = jnp.sin(x) * 2
        return lax.scan(lambda c, part: (jnp.tanh(c + part), None), x[0], stack)[0]

    x = np.linspace(-1, 1, 4 * 64 * 64, dtype=np.float32).reshape(4, 64, 64)
    found = coop_jax.run(fn, fusion=True)(x)
    np.testing.assert_allclose(found, jax.jit(fn)(x), rtol=1e-6)
    assert labels(fn, jax.ShapeDtypeStruct(x.shape, x.dtype))[0].startswith("sin")


def test_effects_stay_apart_and_in_order() -> None:
    seen: list[tuple[str, float]] = []

    def fn(x: jax.Array) -> jax.Array:
        y = x * 2
        jax.debug.callback(lambda v: seen.append(("first", float(v))), y.sum(), ordered=True)
        y = y + 1
        jax.debug.callback(lambda v: seen.append(("second", float(v))), y.sum(), ordered=True)
        return y * 3

    x = np.ones((64, 64), np.float32)
    out = coop_jax.run(fn, fusion=True)(x)
    jax.effects_barrier()
    assert seen == [("first", 8192.0), ("second", 12288.0)]
    np.testing.assert_array_equal(out, x * 9)


def layers(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


ADAM = optax.adam(1e-2)


def adam_step(params: Any, state: Any, x: jax.Array) -> Any:
    grads = jax.grad(layers)(params, x)
    updates, state = ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def adam_first() -> Any:
    rng = np.random.default_rng(0)
    params = [rng.normal(0, 0.3, (64, 64)).astype(np.float32) for _ in range(4)]
    return params, jax.tree.map(np.array, ADAM.init(params))


def test_an_update_is_one_operation_right_after_its_gradient() -> None:
    """So gradients do not wait for the optimizer."""
    program = coop_jax.trace_program(
        adam_step, *adam_first(), X, donate_argnums=(0, 1), fusion=True
    ).program
    updates = [
        n
        for n, op in enumerate(program.operations)
        if len(op.results) == 3 and all(i >= 0 for i in op.in_place)
    ]
    assert len(updates) == 4
    assert updates[0] < len(program.operations) - 6  # while the backward pass goes on


def test_updates_that_share_a_norm_wait_for_all_gradients() -> None:
    tx = optax.chain(optax.clip_by_global_norm(1.0), ADAM)

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        grads = jax.grad(layers)(params, x)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = adam_first()[0]
    first = params, jax.tree.map(np.array, tx.init(params))
    fused = coop_jax.run(step, donate_argnums=(0, 1), fusion=True)
    state, expected = first, first
    x = np.ones((64, 64), np.float32)
    places = set()
    for _ in range(3):
        state = fused(*state, x)
        expected = jax.jit(step)(*expected, x)
        places.add(tuple(a.unsafe_buffer_pointer() for a in jax.tree.leaves(state) if a.ndim))
    assert len(places) == 1
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.array(a), b, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("tx", [ADAM, optax.sgd(0.1, momentum=0.9), optax.adamw(1e-3)])
def test_each_donated_array_keeps_its_address(tx: Any) -> None:
    """Moments and parameters are of one shape: each new one takes the place of its own old one."""

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        grads = jax.grad(layers)(params, x)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = adam_first()[0]
    fused = coop_jax.run(step, donate_argnums=(0, 1), fusion=True)
    state = params, jax.tree.map(np.array, tx.init(params))
    places = []
    for _ in range(4):
        state = fused(*state, np.ones((64, 64), np.float32))
        places.append([a.unsafe_buffer_pointer() for a in jax.tree.leaves(state) if a.ndim])
    assert all(p == places[0] for p in places)


def test_donated_arrays_keep_their_addresses_where_operations_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What reads a weight is not moved past its update, whatever it is fused with."""
    training = models.gpt()
    made = []
    original = planner.make_plan
    monkeypatch.setattr(planner, "make_plan", lambda *a, **k: made.append(1) or original(*a, **k))
    fused = coop_jax.run(training.step, budget=0.6, donate_argnums=0, fusion=True)
    state = jax.tree.map(np.array, training.init)
    places, counts = [], []
    for number in range(5):
        state, _ = fused(state, training.batch(number))
        places.append([a.unsafe_buffer_pointer() for a in jax.tree.leaves(state) if a.nbytes > 256])
        counts.append(len(made))
    assert places[2:] == [places[1]] * 3
    assert counts[2:] == [counts[1]] * 3


def test_what_is_read_in_two_shapes_is_one_operand_and_updated_in_place() -> None:
    """Two arrays over one memory could not be overwritten: each step would find another pool."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            scale = w.reshape(4, 64)
            return (x * scale * scale).sum()

        return w - 0.1 * jax.grad(loss)(w) * jnp.cos(w)

    w, x = np.linspace(-1, 1, 256, dtype=np.float32), np.ones((2, 4, 64), np.float32)
    traced = coop_jax.trace_program(step, w, x, donate_argnums=0, fusion=True).program
    (op,) = traced.operations
    storages = [traced.values[v].storage for v in op.operands]
    assert len(storages) == len(set(storages)) == 2
    assert op.in_place == (storages.index(traced.values[traced.inputs[0]].storage),)
    budgeted = coop_jax.run(step, "1MiB", donate_argnums=0, fusion=True)
    once = budgeted(w, x)
    first, place = np.array(once), once.unsafe_buffer_pointer()
    twice = budgeted(once, x)
    assert twice.unsafe_buffer_pointer() == place
    np.testing.assert_allclose(first, step(w, x), rtol=1e-6)
    np.testing.assert_allclose(twice, step(first, x), rtol=1e-6)


def test_what_is_read_after_the_gradient_is_not_overwritten_before() -> None:
    """The weights are read once more when their gradient is long there."""

    def step(w: jax.Array, m: jax.Array, x: jax.Array) -> Any:
        g = x.T @ jnp.sin(x)
        m2 = 0.9 * m + g
        y = jnp.cos(x)
        for _ in range(3):
            y = jnp.sin(y @ w)
        return w - 0.1 * m2, m2, y

    x, w = (np.random.default_rng(n).normal(size=(64, 64)).astype(np.float32) for n in (0, 1))
    expected = jax.jit(step)(w, w, x)
    fused = coop_jax.run(step, donate_argnums=(0, 1), fusion=True)
    first = [jax.device_put(w), jax.device_put(w.copy())]
    found = fused(*first, x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.array(a), b, rtol=1e-4, atol=1e-5)


def dropout_step(w: jax.Array, key: jax.Array, x: jax.Array) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        y = x
        for k in jax.random.split(key, 4):
            y = jnp.tanh(y @ w)
            y = jnp.where(jax.random.bernoulli(k, 0.5, y.shape), y * 2, 0)
        return (y**2).mean()

    return jax.value_and_grad(loss)(w)


def test_random_masks_are_the_same_when_they_are_recomputed() -> None:
    w, x = (np.random.default_rng(n).normal(size=(64, 64)).astype(np.float32) for n in (0, 1))
    free = coop_jax.run(dropout_step, fusion=True)
    expected = bits_of(free(w, jax.random.key(3), x))
    found: list[Any] = []

    def attempt(budget: int) -> None:
        step = coop_jax.run(dropout_step, budget, fusion=True)
        found[:] = [bits_of(step(w, jax.random.key(3), x)), step.runtime.stats()]

    peak = free.runtime.stats().peak_bytes
    smallest_feasible(attempt, peak // 2, peak)
    assert found[0] == expected
    assert found[1].rematerialisations > 0


@pytest.mark.parametrize("policy", ["coop", "dtr", "lookahead"])
@pytest.mark.parametrize("name", ["cnn", "mlp", "gpt"])
def test_a_fused_training_does_not_depend_on_the_budget(name: str, policy: str) -> None:
    program: models.TrainingProgram = getattr(models, name)()

    def train(budget: int | None) -> tuple[Any, coop_jax.Stats]:
        step = coop_jax.run(program.step, budget, policy, donate_argnums=0, fusion=True)
        state, losses = program.init, []
        for number in range(2):
            state, loss = step(state, program.batch(number))
            losses.append(np.array(loss))
        return (jax.tree.map(np.array, state), losses), step.runtime.stats()

    expected, free = train(None)
    found: list[Any] = []

    def attempt(budget: int) -> None:
        found[:] = train(budget)

    budget = smallest_feasible(attempt, free.peak_bytes // 2, free.peak_bytes)
    assert_same_bits(found[0], expected)
    assert found[1].peak_bytes <= budget < free.peak_bytes
    assert found[1].rematerialisations > 0


@pytest.mark.parametrize("name", list(NETWORKS))
def test_fusion_needs_no_more_memory_and_no_more_time(name: str) -> None:
    """Simulated: of the small networks, without a budget and at 60% of what they need unfused."""
    step = NETWORKS[name].make_step("small", "none")
    peaks, seconds = [], []
    for fusion in (False, True):
        traced = coop_jax.trace_program(
            step.fn, *step.arguments, donate_argnums=step.donate_argnums, fusion=fusion
        )
        free = coop_jax.simulate(traced, device_profile="a100-80gb-fp32")
        peaks.append(free.peak_bytes)
        tight = coop_jax.simulate(
            traced, budget=int(0.6 * peaks[0]), device_profile="a100-80gb-fp32"
        )
        assert tight.feasible or not fusion
        seconds.append((free.compute_seconds, tight.compute_seconds + tight.recompute_seconds))
    assert peaks[1] <= peaks[0]
    assert seconds[1][0] < seconds[0][0]
    assert seconds[1][1] < seconds[0][1]


def test_equal_layers_share_their_operations() -> None:
    program = coop_jax.trace_program(
        adam_step, *adam_first(), X, donate_argnums=(0, 1), fusion=True
    ).program
    kernels = collections.Counter(op.kernel.key for op in program.operations)
    assert kernels.most_common(1)[0][1] >= 3


def test_the_default_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.tanh(x * 2 + 1)

    for text, count in (("", 1), ("0", 3), ("1", 1)):
        monkeypatch.setenv("COOP_JAX_FUSION", text)
        assert len(coop_jax.trace_program(fn, X).program.operations) == count
    monkeypatch.setenv("COOP_JAX_FUSION", "maybe")
    with pytest.raises(ValueError, match="COOP_JAX_FUSION must be 0 or 1"):
        coop_jax.run(fn)


def test_what_is_computed_twice_of_the_same_is_one_value() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        return jnp.sin(x @ w).sum() + jnp.cos(x @ w).sum() + jnp.tanh(w @ x).sum()

    assert sum(x.count("dot_general") for x in labels(fn, X, X)) == 2
    unfused = coop_jax.trace_program(fn, X, X, fusion=False).program
    assert sum(op.kernel.label == "dot_general" for op in unfused.operations) == 3


def test_what_a_scan_makes_of_its_constants_is_made_once() -> None:
    def loss(ws: Any, x: jax.Array) -> jax.Array:
        def body(h: jax.Array, _: Any) -> Any:
            return jnp.tanh(h @ jnp.concatenate(ws, axis=1)), None

        return (lax.scan(body, x, None, length=8)[0] ** 2).sum()

    halves = tuple(jax.ShapeDtypeStruct((64, 32), jnp.float32) for _ in range(2))
    found = labels(jax.grad(loss), halves, X)
    assert sum("concatenate" in x for x in found) == 1


def test_results_written_twice_are_two_arrays() -> None:
    def start(x: jax.Array) -> Any:
        return jnp.sin(x @ x), jnp.sin(x @ x), jnp.sin(x @ x).reshape(-1)

    x = jnp.arange(64 * 64, dtype=jnp.float32).reshape(64, 64) / 5000
    first, second, flat = coop_jax.run(start, fusion=True)(x)
    expected = np.asarray(second)
    changed = coop_jax.run(lambda a: a * 2, donate_argnums=0)(first)
    assert first.is_deleted()
    np.testing.assert_array_equal(second, expected)
    np.testing.assert_array_equal(flat, expected.reshape(-1))
    np.testing.assert_array_equal(changed, expected * 2)


def test_effects_are_never_one() -> None:
    seen = []

    def fn(x: jax.Array) -> jax.Array:
        for _ in range(2):
            jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return x * 2

    coop_jax.run(fn, fusion=True)(jnp.ones(4)).block_until_ready()
    jax.effects_barrier()
    assert seen == [4.0, 4.0]


def test_an_update_of_three_arrays_with_one_that_stays_does_not_rotate() -> None:
    """The scale is read in two shapes, so it is made elsewhere; its moments keep their places."""

    def step(state: Any, x: jax.Array) -> Any:
        scale, mu, nu = state

        def loss(scale: jax.Array) -> jax.Array:
            return (jnp.tanh(x * scale.reshape(1, 128)) ** 2).sum()

        g = jax.grad(loss)(scale)
        mu, nu = 0.9 * mu + g, 0.9 * nu + g * g
        return (scale - 0.1 * mu / (jnp.sqrt(nu) + 1), mu, nu), loss(scale)

    budgeted = coop_jax.run(step, donate_argnums=0, fusion=True)
    state: Any = (jnp.ones(128), jnp.zeros(128), jnp.zeros(128))
    x = jnp.arange(64 * 128, dtype=jnp.float32).reshape(64, 128) / 5000
    for _ in range(12):
        state, _ = budgeted(state, x)
    (signature,) = budgeted._signatures.values()
    assert signature.planned <= 5


def test_results_that_are_computed_twice_are_two_arrays() -> None:
    def twice(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x @ x) + 1, jnp.sin(x @ x) + 1

    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    first, second = coop_jax.run(twice, fusion=True)(x)
    expected = np.array(second)
    assert first.unsafe_buffer_pointer() != second.unsafe_buffer_pointer()
    jax.block_until_ready(jax.jit(lambda a: a * 0, donate_argnums=0)(first))  # given away
    assert_same_bits(second, expected)
