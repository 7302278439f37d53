"""A training loop's step is planned a few times, whatever its optimizer keeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coop_jax
from coop_jax._src.planning import settling
from tests.testing.comparison import assert_same_bits

WIDTH, ROWS, LAYERS = 80, 256, 3


def params() -> Any:
    generator = np.random.default_rng(0)
    shapes = [s for _ in range(LAYERS) for s in ((WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH), (WIDTH,))]
    return [jnp.asarray(generator.normal(size=s).astype(np.float32) / 8) for s in shapes]


def loss(params: Any, x: jax.Array) -> jax.Array:
    h = x
    for k in range(LAYERS):
        up, down, bias = params[3 * k : 3 * k + 3]
        h = h + jnp.tanh(h @ up) @ down + bias
    return (h**2).mean()


def with_average(transformation: Any) -> Any:
    """Keeps an average of the parameters beside the optimizer's state."""

    def init(params: Any) -> Any:
        return transformation.init(params), jax.tree.map(jnp.copy, params)

    def update(grads: Any, state: Any, params: Any) -> Any:
        inner, average = state
        updates, inner = transformation.update(grads, inner, params)
        return updates, (inner, jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, params))

    return optax.GradientTransformation(init, update)


def oldest_first(history: int) -> Any:
    """Keeps the last gradients, each in the place of the one before it."""

    def init(params: Any) -> Any:
        return [jax.tree.map(jnp.zeros_like, params) for _ in range(history)]

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        state = [*state[1:], grads]
        return jax.tree.map(lambda *g: -0.01 * sum(g), *state), state

    return optax.GradientTransformation(init, update)


OPTIMIZERS = {
    "adafactor": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adafactor(1e-3)),
    "factored": lambda: optax.adafactor(1e-3, min_dim_size_to_factor=16, momentum=0.9),
    "adamw, schedule": lambda: optax.adamw(optax.cosine_decay_schedule(1e-3, 100)),
    "lion": lambda: optax.lion(1e-3),
    "sm3": lambda: optax.sm3(1e-2),
    "average": lambda: with_average(optax.sgd(1e-2, momentum=0.9)),
    "amsgrad": lambda: optax.amsgrad(1e-3),
    "history": lambda: oldest_first(2),
}


def step_of(optimizer: Any) -> Callable[..., Any]:
    """A train step of its state and a batch."""

    def step(state: Any, x: jax.Array) -> Any:
        p, kept = state
        value, grads = jax.value_and_grad(loss)(p, x)
        updates, kept = optimizer.update(grads, kept, p)
        return (optax.apply_updates(p, updates), kept), value

    return step


@pytest.mark.parametrize("budget", [None, 0.9])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_has_at_most_three_plans(name: str, budget: float | None) -> None:
    optimizer = OPTIMIZERS[name]()
    step = step_of(optimizer)
    fn = coop_jax.run(step, budget=budget, donate_argnums=0)
    state = (params(), optimizer.init(params()))
    # The same program, whose arguments come from outside the pool at each step.
    anew = coop_jax.run(step, donate_argnums=0)
    expected = jax.tree.map(np.array, state)
    x = jnp.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)
    for n in range(8):
        state, value = fn(state, x)
        if n < 3:
            expected = jax.tree.map(np.array, anew(jax.tree.map(jnp.array, expected), x)[0])
            assert_same_bits(jax.tree.map(np.array, state), expected)
    assert np.isfinite(float(value))
    (signature,) = fn._signatures.values()
    assert signature.planned <= 3, signature.planned
    if budget is not None:
        stats = fn.runtime.stats()
        assert stats.peak_bytes <= stats.budget_bytes


@pytest.mark.parametrize(
    ("budget", "rows"),
    [(None, (ROWS,)), (None, (ROWS, ROWS // 2, ROWS // 4)), (0.8, (8 * ROWS,))],
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_without_donation_settles_too(
    name: str, budget: float | None, rows: tuple[int, ...]
) -> None:
    """It goes to and fro between two places, also with arguments of several shapes."""
    optimizer = OPTIMIZERS[name]()
    step = step_of(optimizer)
    fn = coop_jax.run(step, budget=budget)
    state = expected = (params(), optimizer.init(params()))
    anew = coop_jax.run(step)  # its arguments come from outside the pool at each step
    planned = []
    # What is returned as it came stays where it is: of two old gradients three places take turns.
    most = 12 if name == "history" else 5
    for n in range(3 * most * len(rows)):
        x = jnp.linspace(-1, 1, rows[n % len(rows)] * WIDTH).reshape(-1, WIDTH)
        state, _ = fn(state, x)
        planned.append(sum(signature.planned for signature in fn._signatures.values()))
        if n < 3:
            expected = jax.tree.map(np.array, anew(expected, x)[0])
            assert_same_bits(jax.tree.map(np.array, state), expected)
    assert planned[-1] == planned[-most * len(rows)], planned
    assert planned[-1] <= most * len(rows), planned
    stats = fn.runtime.stats()
    assert budget is None or stats.peak_bytes <= stats.budget_bytes


def test_places_in_a_larger_pool_are_none_in_a_smaller_one() -> None:
    assert settling.moves({0: 1024}, {0: (0, 512)}, [], 1536) == [settling.Move(0, 1024)]
    assert settling.moves({0: 1024}, {0: (0, 512)}, [], 1535) == []
    step = step_of(optax.adam(1e-3))
    fn, anew = coop_jax.run(step), coop_jax.run(step)
    x = jnp.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)
    state = expected = (params(), optax.adam(1e-3).init(params()))
    for budget in ("1GiB", "6MiB", "1GiB", "5MiB"):
        with coop_jax.Runtime(budget) as runtime:
            for _ in range(4):
                state, _ = fn(state, x)
                expected = jax.tree.map(np.array, anew(expected, x)[0])
                assert_same_bits(jax.tree.map(np.array, state), expected)
            assert runtime.stats().peak_bytes <= runtime.budget_bytes
            state = jax.tree.map(np.array, state)


@pytest.mark.parametrize("seed", range(40))
def test_moves_go_where_nothing_lies(seed: int) -> None:
    """Against a memory of cells: contents arrive, and walls stay."""
    generator = random.Random(seed)
    unit, cells = 256, 24
    at, places = 0, []
    while at < cells:
        size = generator.randint(1, 3)
        if at + size <= cells:
            places.append((at * unit, size * unit))
        at += size + (generator.random() < 0.3)
    generator.shuffle(places)
    results = dict(enumerate(places[: generator.randint(1, len(places))]))
    walls = places[len(results) :][: generator.randint(0, 2)]
    homes = {s: at for s, (at, _) in results.items()}
    for nbytes in {n for _, n in results.values()}:  # those of one size change places
        alike = [s for s, (_, n) in results.items() if n == nbytes]
        for s, other in zip(alike, generator.sample(alike, len(alike)), strict=True):
            homes[s] = results[other][0]
    memory: dict[int, Any] = {}
    for s, (at, n) in results.items():
        memory.update((at // unit + k, (s, k)) for k in range(n // unit))
    for at, n in walls:
        memory.update((at // unit + k, "wall") for k in range(n // unit))
    capacity = (cells + 6) * unit
    now = {s: at for s, (at, _) in results.items()}
    for move in settling.moves(homes, results, walls, capacity):
        length = results[move.storage][1] // unit
        source, target = now[move.storage] // unit, move.offset // unit
        assert all(target + k not in memory for k in range(length))
        for k in range(length):
            memory[target + k] = memory.pop(source + k)
        now[move.storage] = move.offset
    assert now == homes
    for s, at in homes.items():
        assert all(memory[at // unit + k] == (s, k) for k in range(results[s][1] // unit))
