"""Functions that run operation by operation, and what they learn from their last calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.planning import constants, recorded_calls, result_layout
from coop_jax._src.planning.local_search import Hints
from tests.testing.comparison import assert_same_bits

LAYERS, WIDTH, BATCH = 12, 64, 256
State = tuple[jax.Array, jax.Array]


def initial() -> State:
    w = jnp.asarray(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)) / 8, jnp.float32)
    return w, jnp.zeros_like(w)


X = np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32)


def mean_square(w: jax.Array, x: jax.Array, layers: int = LAYERS) -> jax.Array:
    """What layers with the same weights make of a batch."""
    for _ in range(layers):
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def train(state: State, x: jax.Array, layers: int = LAYERS) -> tuple[State, jax.Array]:
    """A step that returns another state, with momentum."""
    w, momentum = state
    value, grad = jax.value_and_grad(mean_square)(w, x, layers)
    momentum = 0.9 * momentum + grad
    return (w - 0.1 * momentum, momentum), value


def blocks_of(step: Any) -> list[tuple[int, int]]:
    """(offset, bytes) of what somebody holds in the pool."""
    pool = step.runtime.memory().pool
    pool.drain_freed()
    found: list[tuple[int, int]] = pool.live_blocks()
    return found


def part(step: Callable[..., Any], *args: Any, share: float = 0.55) -> int:
    """Bytes: a share of the memory that a call needs."""
    eager = coop_jax.remat_eager(step)
    eager(*args)
    return int(share * eager.runtime.stats().peak_bytes)


def recomputations(step: Any, calls: Iterator[Any]) -> list[int]:
    """How many operations each call runs again."""
    counts, before = [], 0
    for _ in calls:
        now = step.runtime.stats().rematerialisations
        counts.append(now - before)
        before = now
    return counts


@pytest.mark.unless_forced("counts what a plan recomputes")
def test_a_step_that_is_given_what_it_returned_settles_on_a_better_plan() -> None:
    def deep(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        """Twelve layers with weights of their own, and Adam."""

        def loss(ws: list[jax.Array]) -> jax.Array:
            h = x
            for w in ws:
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        ws, first, second = state
        value, grads = jax.value_and_grad(loss)(ws)
        first = [0.9 * m + g for m, g in zip(first, grads, strict=True)]
        second = [0.99 * v + g * g for v, g in zip(second, grads, strict=True)]
        updated = zip(ws, first, second, strict=True)
        ws = [w - 0.01 * m / (jnp.sqrt(v) + 1e-3) for w, m, v in updated]
        return (ws, first, second), value

    def start() -> Any:
        w, zeros = initial()
        return [w * (1 + n / 50) for n in range(LAYERS)], [zeros] * LAYERS, [zeros] * LAYERS

    x = np.tile(X, (4, 1))
    budget = part(deep, start(), x, share=0.6)
    places: list[list[tuple[int, int]]] = []  # of the state after each call

    def trained(policy: str) -> tuple[list[int], Any]:
        step = coop_jax.remat_eager(deep, budget=budget, policy=policy)
        results = []
        places.clear()

        def calls() -> Iterator[None]:
            state = start()
            for _ in range(16):
                state, value = step(state, x)
                results.append(np.array(value))
                places.append(blocks_of(step))
                yield
            results.append(state)

        return recomputations(step, calls()), results

    coop, expected = trained("coop")
    learned, found = trained("lookahead")
    assert_same_bits(found, expected)
    assert learned[0] > 0
    assert coop[0] > 0
    assert sum(learned[-2:]) < sum(coop[-2:])
    # Every other call finds the same state of the pool, and does the same: results lie side by
    # side, before or behind the arguments.
    assert learned[-4:-2] == learned[-2:]
    assert places[-4:-2] == places[-2:]
    for blocks in places[-2:]:
        assert len(blocks) == 3 * LAYERS
        assert blocks[-1][0] + blocks[-1][1] - blocks[0][0] == sum(n for _, n in blocks)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans that lessons make."""
    made: list[Any] = []
    planned = recorded_calls.Lesson._planned

    def recorded(self: Any, *args: Any) -> Any:
        made.append(planned(self, *args))
        return made[-1]

    monkeypatch.setattr(recorded_calls.Lesson, "_planned", recorded)
    return made


@pytest.mark.unless_forced("compares with a plan")
def test_what_was_planned_is_what_happens(plans: list[Any]) -> None:
    state = initial()
    step = coop_jax.remat_eager(train, budget=part(train, state, X), policy="lookahead")

    def calls() -> Iterator[None]:
        for _ in range(4):
            step(state, X)  # what it returns goes at once, so the pool is as before
            yield

    counts = recomputations(step, calls())
    assert len(plans) == 1  # in the second call, which did what the first did
    stats = plans[0].plan.stats
    assert stats.recomputations < counts[0]
    assert counts[2:] == [stats.recomputations] * 2


@pytest.mark.unless_forced("compares with a plan")
def test_what_is_dear_is_held_for_what_is_made_from_it(plans: list[Any]) -> None:
    def pairs(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        """Keeps two values of each layer, made from one that it lets go of."""
        saved = []
        for w in ws:
            y = x @ w
            saved.append((jnp.sin(y), jnp.cos(y)))
            del y
            x = saved[-1][0] * saved[-1][1]
        while saved:
            a, b = saved.pop()
            x = x * a + b
        return x.sum()

    ws = [initial()[0] * (1 + n / 50) for n in range(LAYERS)]
    step = coop_jax.remat_eager(pairs, budget=part(pairs, ws, X), policy="lookahead")
    expected = coop_jax.remat_eager(pairs)(ws, X)

    def calls() -> Iterator[None]:
        for _ in range(5):
            assert_same_bits(step(ws, X), expected)
            yield

    counts = recomputations(step, calls())
    (found,) = plans
    held = [operation for operation in found.hints.held_for if operation >= 0]
    assert held
    assert min(held) > 4 * LAYERS  # for the way back
    assert counts[2:] == [found.plan.stats.recomputations] * 3


def test_a_call_that_does_something_else_goes_on_online() -> None:
    layers = [12, 12, 12, 5, 12, 14, 14, 14, 12]

    def expected(number: int) -> Any:
        return coop_jax.remat_eager(lambda s, x: train(s, x, number))(initial(), X)

    depth = [0]
    budget = part(lambda s, x: train(s, x, 14), initial(), X)
    step = coop_jax.remat_eager(
        lambda s, x: train(s, x, depth[0]), budget=budget, policy="lookahead"
    )
    for number in layers:
        depth[0] = number
        assert_same_bits(step(initial(), X), expected(number))
    assert step.runtime.stats().peak_bytes <= budget
    assert step.runtime.stats().evictions > 0


def test_an_error_in_a_call_leaves_what_was_learned() -> None:
    fails = [False]

    def step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
        (w, momentum), value = train(state, x)
        if fails[0]:
            raise RuntimeError("asked for")
        return (w, momentum), value

    expected = coop_jax.remat_eager(step)(initial(), X)
    eager = coop_jax.remat_eager(step, budget=part(step, initial(), X), policy="lookahead")
    for fail in (False, False, True, False, True, False):
        fails[0] = fail
        if fail:
            with pytest.raises(RuntimeError, match="asked for"):
                eager(initial(), X)
        else:
            assert_same_bits(eager(initial(), X), expected)
    if not eager.runtime.policy.evict_always:  # then nothing is learned
        (lesson,) = eager._lessons._known.values()
        assert lesson.history.repetitions == 3


def test_a_call_that_survives_an_error_is_not_learned_from() -> None:
    fails = [False]

    def step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
        if fails[0]:
            with pytest.raises(coop_jax.BudgetExceededError):
                jnp.zeros((1 << 12, 1 << 10)) + x[0, 0]
        return train(state, x)

    expected = coop_jax.remat_eager(train)(initial(), X)
    eager = coop_jax.remat_eager(step, budget=part(train, initial(), X), policy="lookahead")
    kept = []  # so that each call finds the pool otherwise
    for fail in (False, False, True, False, True, True, False):
        fails[0] = fail
        state, value = eager(initial(), X)
        assert_same_bits((state, value), expected)
        kept = [state] if fail else []
    del kept
    if not eager.runtime.policy.evict_always:
        (lesson,) = eager._lessons._known.values()
        assert lesson.history.repetitions == 3
        assert sum(known.calls for known in lesson._states.values()) == 4


@pytest.mark.unless_forced("nothing is learned then")
def test_calls_with_other_shapes_are_learned_apart() -> None:
    batches = [X, X[:128]]
    expected = [coop_jax.remat_eager(train)(initial(), x) for x in batches]
    step = coop_jax.remat_eager(train, budget=part(train, initial(), X), policy="lookahead")
    for n in range(8):
        assert_same_bits(step(initial(), batches[n % 2]), expected[n % 2])
    lessons = step._lessons._known.values()
    assert [lesson.history.repetitions for lesson in lessons] == [3, 3]


@pytest.mark.unless_forced("counts what a plan recomputes")
def test_a_program_that_loops_on_values_learns_too() -> None:
    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, grad = jax.value_and_grad(mean_square)(w, x)
        # The step is as large as makes the loss less.
        scale = jax.lax.while_loop(
            lambda s: mean_square(w - s * grad, x) > value, lambda s: s * 0.5, jnp.float32(1)
        )
        return w - scale * grad, value

    def trained(budget: int | None, policy: str) -> tuple[list[int], Any, Any]:
        run = coop_jax.run(step, budget=budget, policy=policy, fusion=False)
        results = []

        def calls() -> Iterator[None]:
            for _ in range(4):
                results.append(jax.tree.map(np.array, run(initial()[0], X)))
                yield

        return recomputations(run, calls()), results, run.runtime.stats()

    *_, expected, stats = trained(None, "coop")
    budget = stats.peak_bytes // 3
    coop, found, _ = trained(budget, "coop")
    assert_same_bits(found, expected)
    learned, found, _ = trained(budget, "lookahead")
    assert_same_bits(found, expected)
    assert 0 < learned[-1] < coop[-1]


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ([], [64, 128]),
        ([(64, 100)], [192, 256]),  # behind, aligned
        ([(128, 64)], [192, 256]),  # they do not fit before
        ([(192, 64)], [64, 128]),
        ([(192, 64), (320, 64)], [64, 128]),
        ([(64, 1300)], [1408, 1472]),
        ([(64, 1900)], []),  # there is no room
        ([(0, 1700)], []),  # or little
    ],
)
def test_results_go_side_by_side(taken: list[tuple[int, int]], expected: list[int]) -> None:
    assert result_layout.side_by_side([64, 64], taken, 2048, 64) == expected


def lookahead() -> coop_jax.Policy:
    """With a search in the second call, and no more than takes a moment."""
    return coop_jax.Policy("lookahead", search_effort=20_000)


def with_small_values(x: jax.Array) -> list[jax.Array]:
    """Large values that many small ones outside the pool make; results are parts of them."""
    saved = []
    h = jnp.sin(x[:, None] * x)
    for layer in range(6):
        small = [jnp.sin(x * (layer + k)) for k in range(6)]
        for shift in small:
            h = jnp.tanh(h + shift)
        saved.append(h)
    total = sum((h[:32].sum() for h in saved), jnp.float32(0))
    return [total, *(h[:32] for h in saved[::2]), saved[1]]


ROW = np.linspace(0.1, 1, 128).astype(np.float32)


@pytest.mark.unless_forced("nothing is learned then")
@pytest.mark.parametrize("share", [0.375, 0.3775, 0.4, 0.45])
def test_what_fits_in_the_first_call_fits_in_those_that_learn(share: float) -> None:
    """Of the first two the plan once had more beside the pool than was kept for it."""
    step = coop_jax.remat_eager(
        with_small_values, budget=part(with_small_values, ROW, share=share), policy=lookahead()
    )
    expected = coop_jax.remat_eager(with_small_values)(ROW)
    for _ in range(5):
        assert_same_bits(step(ROW), expected)
    stats = step.runtime.stats()
    assert stats.rematerialisations > 0
    assert stats.peak_bytes <= step.runtime.budget_bytes


@pytest.mark.unless_forced("compares with a plan")
@pytest.mark.parametrize("share", [0.375, 0.4, 0.5])
def test_results_that_are_handed_out_stay_in_the_plan(plans: list[Any], share: float) -> None:
    """What the plan evicts and recomputes is what the call does."""
    runtime = coop_jax.Runtime(part(with_small_values, ROW, share=share), lookahead())
    step = coop_jax.remat_eager(with_small_values, runtime=runtime)
    stats = []
    for _ in range(3):
        before = runtime.stats()
        step(ROW)
        after = runtime.stats()
        counted = ("evictions", "rematerialisations")
        stats.append([getattr(after, name) - getattr(before, name) for name in counted])
    (found,) = plans
    (lesson,) = step._lessons._known.values()
    (state,) = lesson._states.values()
    assert state.way is not None
    assert stats[2] == [found.plan.stats.evictions, found.plan.stats.recomputations]


def mislead(monkeypatch: pytest.MonkeyPatch, first_bytes: int, gap_bytes: int) -> list[Any]:
    """Has results go to the middle of the pool, where they are in everybody's way."""
    planned = recorded_calls.Lesson._planned
    made: list[Any] = []

    def wrong(self: Any, *args: Any) -> Any:
        found = planned(self, *args)
        in_pool = {storage for kind in self.history.kinds for storage in kind}
        places = [-1] * self.history.storage_count
        for number, storage in enumerate(sorted(in_pool.intersection(self.history.outputs))):
            places[storage] = first_bytes + number * gap_bytes
        found.hints = dataclasses.replace(found.hints, places=places)
        made.append(found)
        return found

    monkeypatch.setattr(recorded_calls.Lesson, "_planned", wrong)
    return made


@pytest.mark.unless_forced("nothing is learned then")
def test_a_call_that_was_misled_is_run_once_more_without(monkeypatch: pytest.MonkeyPatch) -> None:
    misled = mislead(monkeypatch, 65_536, 81_920)

    def step(x: jax.Array) -> list[jax.Array]:
        def goes_on(n: jax.Array) -> jax.Array:
            h = jnp.sin(x[:, None] * x)
            return n + 0 * jnp.tanh(h @ h).sum() < x[0]

        one = jax.lax.while_loop(goes_on, lambda n: n + 1, jnp.float32(0))
        return with_small_values(x + 0 * one)

    free = coop_jax.run(step, fusion=False)
    expected = [np.array(x) for x in free(ROW)]
    budget = int(0.48 * free.runtime.stats().peak_bytes)
    run = coop_jax.run(step, budget=budget, policy=lookahead(), fusion=False)
    for _ in range(5):
        assert_same_bits([np.array(x) for x in run(ROW)], expected)
    assert misled
    assert run.runtime.stats().peak_bytes <= budget
    (signature,) = run._signatures.values()
    assert list(signature.lesson._refused) == [()]


@pytest.mark.unless_forced("nothing is learned then")
def test_the_call_after_one_that_was_misled_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    misled = mislead(monkeypatch, 49_152, 32_768)
    budget = part(with_small_values, ROW, share=0.375)
    expected = coop_jax.remat_eager(with_small_values)(ROW)
    step = coop_jax.remat_eager(with_small_values, budget=budget, policy=lookahead())
    for number in range(6):
        if number == 2:  # plain Python: what it has done cannot be done again
            with pytest.raises(coop_jax.BudgetExceededError):
                step(ROW)
        else:
            assert_same_bits(step(ROW), expected)
    assert misled
    assert step.runtime.memory().pool.live_blocks() == []


@pytest.mark.unless_forced("the limit is not for that")
def test_plans_keep_the_limit_of_recomputations(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    planned = recorded_calls.Lesson._planned

    def recorded(*args: Any) -> Any:
        asked.append((*args, planned(*args)))
        return asked[-1][-1]

    monkeypatch.setattr(recorded_calls.Lesson, "_planned", recorded)
    gradient = jax.grad(lambda w, x: mean_square(w, x, layers=600))
    args = initial()[0], X[:WIDTH]
    budget = part(gradient, *args, share=0.06)
    runtime = coop_jax.Runtime(
        budget, coop_jax.Policy("lookahead", search_effort=0), max_recompute=32.0
    )
    step = coop_jax.remat_eager(gradient, runtime=runtime)
    for _ in range(2):
        step(*args)
    ((lesson, settings, *rest, found),) = asked
    assert settings.max_recompute == runtime.max_recompute
    stats = found.plan.stats
    assert found.plan.feasible
    # Of a limit, 1024 are allowed besides.
    assert stats.recomputations > 1024
    less = (stats.recomputations - 1024 - 1) / stats.operations
    tight = planned(lesson, dataclasses.replace(settings, max_recompute=less), *rest).plan
    assert not tight.feasible or tight.stats.recomputations < stats.recomputations


@pytest.mark.unless_forced("nothing is learned then")
@pytest.mark.parametrize("share", [0.42, 0.44])
def test_results_go_nowhere_in_particular_where_no_plan_would_fit(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    def in_the_way(history: Any, *_: Any) -> Hints:
        asked.append(history)  # to plan for the second call, and after it
        places = [-1] * history.storage_count
        in_pool = {storage for kind in history.kinds for storage in kind}
        for number, storage in enumerate(sorted(in_pool.intersection(history.outputs))):
            places[storage] = 49_152 + number * 32_768
        return Hints(places=places)

    asked: list[Any] = []
    monkeypatch.setattr(recorded_calls, "layout", in_the_way)
    # However long it recomputes, by the clock.
    monkeypatch.setattr(
        constants, "TUNED", dataclasses.replace(constants.TUNED, tight_share=math.inf)
    )
    budget = part(with_small_values, ROW, share=share)
    expected = coop_jax.remat_eager(with_small_values)(ROW)
    step = coop_jax.remat_eager(with_small_values, budget=budget, policy=lookahead())
    kept = step(ROW)[1]  # so that the next call finds another state of the pool
    assert_same_bits(kept, expected[1])
    assert_same_bits(step(ROW), expected)
    assert asked
    (lesson,) = step._lessons._known.values()
    assert not lesson._refused
    assert step.runtime.stats().peak_bytes <= budget


@pytest.fixture
def hold_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has calls that follow what is known hold every value to their end."""
    begin = recorded_calls.Lesson.begin

    def held(self: recorded_calls.Lesson, *args: Any) -> Any:
        policy = begin(self, *args)
        if self.follows and self.history.storage_count:
            to_the_end = [max(self.history.made_by)] * self.history.storage_count
            self.history.advise([], [], [], to_the_end)
        return policy

    monkeypatch.setattr(recorded_calls.Lesson, "begin", held)


@pytest.mark.unless_forced("nothing is learned then")
@pytest.mark.usefixtures("hold_all")
def test_who_gives_up_lets_go_of_what_was_held() -> None:
    """Of a donated array, too, which no eviction can free: six more of its size just fit."""

    def step(x: jax.Array, row: jax.Array) -> jax.Array:
        start = 0 * x.sum()
        one = jax.lax.while_loop(
            lambda n: n < 0.5, lambda n: n + 1 + 0 * jnp.tanh(x @ x).sum(), start
        )
        parts = [f(row[:, None] * row) for f in (jnp.sin, jnp.cos, jnp.tanh)]
        return jnp.concatenate(parts)[: x.shape[0]] * one

    runtime = coop_jax.Runtime("416KiB", lookahead())
    run = coop_jax.run(step, donate_argnums=0, runtime=runtime, fusion=False)
    outer = coop_jax.run(lambda row: row[:, None] * row, runtime=runtime, fusion=False)
    state = outer(ROW)
    expected = np.sin(ROW[:, None] * ROW)
    gave_up = []
    for _ in range(4):
        state = run(state, ROW)
        np.testing.assert_allclose(state, expected, rtol=1e-5)
        (signature,) = run._signatures.values()
        gave_up.append(signature.lesson.history.gave_up)
    assert gave_up == [False, False, True, True]  # the second call's argument lies elsewhere
    assert not signature.lesson._refused


@pytest.mark.unless_forced("nothing is learned then")
@pytest.mark.usefixtures("hold_all")
def test_where_there_is_no_room_beside_the_pool_what_was_held_goes() -> None:
    """1200 small values, of which few are needed at once, in a budget that has room for 1024."""
    row = ROW[:32]

    def step(row: jax.Array) -> jax.Array:
        total = row
        for n in range(400):
            total = total + jnp.sin(row * n)
        return total

    expected = coop_jax.remat_eager(step)(row)
    step_within = coop_jax.remat_eager(step, budget="128KiB", policy=lookahead())
    gave_up = []
    for _ in range(3):
        assert_same_bits(step_within(row), expected)
        (lesson,) = step_within._lessons._known.values()
        gave_up.append(lesson.history.gave_up)
    assert gave_up == [False, True, True]
    assert not lesson._refused
    assert step_within.runtime.stats().peak_bytes <= step_within.runtime.budget_bytes
