"""Donated arguments whose memory somebody else reads are kept, and what was donated is never lost.

As under `jax.jit`: the step works, views keep what they show, and a warning says what it cost.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.compat import holders
from tests.testing.comparison import assert_same_bits

W = (np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7 - 3) / 16
X = np.arange(8 * 64, dtype=np.float32).reshape(8, 64) / 500


def planned(state: Any, x: Any) -> Any:
    grads = jax.grad(lambda s: (jnp.tanh(x @ s["w"] + s["b"]) ** 2).sum())(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)


def dynamic(state: Any, x: Any) -> Any:
    """Its order depends on a value."""
    return jax.lax.cond(x[0, 0] >= 0, planned, lambda s, x: jax.tree.map(jnp.sin, s), state, x)


def start() -> Any:
    return {"w": jnp.asarray(W), "b": jnp.linspace(-1, 1, 64)}


@pytest.fixture(params=[planned, dynamic], ids=["planned", "dynamic"])
def step(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return coop_jax.run(request.param, budget="2MiB", donate_argnums=0)


class Buffer:
    """A consumer that holds a DLPack capsule, as a tensor of another library does."""

    def __init__(self, array: Any):
        self.capsule = array.__dlpack__()


REFERENCES = {
    "asarray": np.asarray,
    "device_get": jax.device_get,
    "part of a view": lambda x: np.asarray(x)[3:9, ::2],
    "memoryview": memoryview,
    "DLPack of NumPy": np.from_dlpack,
    "DLPack of JAX": jax.dlpack.from_dlpack,
    "capsule": Buffer,
}


@pytest.mark.parametrize(
    ("fn", "kind", "steps"),  # outside the pool, inside, on the short way
    [
        *((planned, kind, 1) for kind in REFERENCES),
        *((planned, "asarray", steps) for steps in (0, 6)),
        *((dynamic, "asarray", steps) for steps in (0, 6)),
        (planned, "capsule", 6),
        (dynamic, "capsule", 1),
    ],
)
def test_a_view_of_a_donated_argument_keeps_what_it_shows(fn: Any, kind: str, steps: int) -> None:
    step = coop_jax.run(fn, budget="2MiB", donate_argnums=0)
    state = start()
    for _ in range(steps):
        state = step(state, X)
    expected = plain_steps(step, state, 3)
    view, before = REFERENCES[kind](state["w"]), np.array(state["w"])
    first = state
    with pytest.warns(UserWarning, match=r"argument 0\['w'\] \(float32\[64,64\]\)") as caught:
        state = step(state, X)
    assert "16,384 bytes" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert_same_bits(state, expected[0])
    for n in range(1, 3):
        other = REFERENCES[kind](state["w"])  # of which nothing more is said
        state = step(state, X)
        assert_same_bits(state, expected[n])
    assert other is not None
    assert not first["w"].is_deleted()
    assert_same_bits(np.array(first["w"]), before)
    if not isinstance(view, Buffer):
        shown = before[3:9, ::2] if kind == "part of a view" else before
        assert_same_bits(np.array(view), shown)


@functools.cache
def without_donation(fn: Any) -> Any:
    return coop_jax.run(fn)


def plain_steps(step: Any, state: Any, count: int) -> list[Any]:
    """What the same function gives where nothing is donated."""
    found = []
    for _ in range(count):
        state = without_donation(step.__wrapped__)(state, X)
        found.append(jax.tree.map(np.array, state))
    return found


def test_once_the_view_is_gone_the_argument_is_donated_again(step: Callable[..., Any]) -> None:
    state = step(start(), X)
    view = np.asarray(state["w"])
    with pytest.warns(UserWarning, match="1 donated"):
        kept, state = state, step(state, X)
    assert not kept["w"].is_deleted()
    assert kept["b"].is_deleted()
    del view
    for _ in range(4):
        given, state = state, step(state, X)
        assert given["w"].is_deleted()


def test_a_copy_for_the_host_costs_nothing(step: Callable[..., Any]) -> None:
    state = step(start(), X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            copies = jax.tree.map(np.array, state)
            given, state = state, step(state, X)
            assert given["w"].is_deleted()
    assert copies


def test_a_budget_too_small_for_both_is_refused_with_everything_intact() -> None:
    """The old and the new value are there at once where somebody reads the old one."""
    fn = coop_jax.run(lambda w: w * 2 + 1, budget=3 * W.nbytes // 2, donate_argnums=0)
    w = fn(jnp.asarray(W))
    view = np.asarray(w)
    before = view.copy()
    with (
        pytest.warns(UserWarning, match="16,384 bytes"),
        pytest.raises(coop_jax.BudgetExceededError),
    ):
        fn(w)
    assert not w.is_deleted()
    assert_same_bits(view, before)
    del view
    assert_same_bits(fn(w), before * 2 + 1)


# --- What the function closes over ---


@pytest.mark.parametrize("inside", [False, True])
def test_a_function_that_closes_over_what_it_is_given(inside: bool) -> None:
    closed = jnp.asarray(W)
    if inside:
        closed = coop_jax.run(lambda x: x + 1, runtime=coop_jax.Runtime("1MiB"))(W)
    before = np.array(closed)
    for fn in (
        lambda q: jnp.tanh(q @ q) + 2 * closed,
        lambda q: jax.lax.cond(q[0, 0] < 100, jnp.tanh, jnp.sin, q) + 2 * closed,
    ):
        step = coop_jax.run(fn, budget="1MiB", donate_argnums=0)
        with pytest.warns(UserWarning, match="closes over"):
            found = step(closed)
        again = step(found)
        plain = coop_jax.run(fn)
        assert found.is_deleted()
        assert_same_bits(again, plain(plain(before)))
        assert_same_bits(closed, before)


@pytest.mark.parametrize("how", ["jit", "run", "delete"])
def test_what_a_function_closes_over_may_be_given_away(how: str) -> None:
    """`jax.jit` has it in the program."""
    closed = jnp.asarray(W) + 1
    fn = coop_jax.run(lambda x: x @ closed, budget="1MiB")
    expected = np.array(fn(W))
    if how == "jit":
        jax.jit(lambda x: x * 0, donate_argnums=0)(closed)
    elif how == "delete":
        closed.delete()
    else:
        with pytest.warns(UserWarning, match="donated"):
            coop_jax.run(lambda x: x * 0, donate_argnums=0)(closed)
    for _ in range(2):
        assert_same_bits(fn(W), expected)


# --- Arguments that share memory, that are empty, that are returned ---


@pytest.mark.parametrize("fn", [planned, dynamic])
def test_one_array_in_two_donated_arguments(fn: Any) -> None:
    both = coop_jax.run(
        lambda a, b, x: (fn(a, x), jax.tree.map(jnp.cos, b)), budget="2MiB", donate_argnums=(0, 1)
    )
    shared = start()
    expected = coop_jax.run(both.__wrapped__)(shared, shared, X)
    with pytest.warns(UserWarning, match="2 donated .* passed more than once"):
        found = both(shared, shared, X)
    assert_same_bits(found, expected)
    assert not shared["w"].is_deleted()
    again = both(*found, X)
    assert found[0]["w"].is_deleted()
    assert found[1]["w"].is_deleted()
    assert np.isfinite(np.array(again[0]["w"])).all()


@pytest.mark.parametrize("donate", [(), 0, (0, 1)])
def test_float0_arguments_and_results(donate: Any) -> None:
    def fn(p: Any, i: Any, z: Any) -> Any:
        grads = jax.grad(lambda p, i: (p[i] ** 2).sum(), argnums=(0, 1), allow_int=True)(p, i)
        return p - 0.1 * grads[0], grads[1], z

    step = coop_jax.run(fn, budget="1MiB", donate_argnums=donate)
    p, i = jnp.linspace(0, 1, 300), jnp.arange(300)
    zero = np.zeros((4, 2), jax.dtypes.float0)
    for _ in range(3):
        given = p
        p, gi, z = step(p, jnp.arange(300), zero)
        assert given.is_deleted() == (donate != ())
        for found, shape in ((gi, (300,)), (z, (4, 2))):
            assert found.dtype == jax.dtypes.float0
            assert found.shape == shape
    assert_same_bits(p, coop_jax.run(fn)(given_steps(fn, i, zero), i, zero)[0])


def given_steps(fn: Any, i: Any, zero: Any) -> Any:
    p, plain = jnp.linspace(0, 1, 300), coop_jax.run(fn)
    for _ in range(2):
        p = plain(p, i, zero)[0]
    return p


@pytest.mark.parametrize("fn", [planned, dynamic])
def test_empty_arrays_and_what_is_returned_as_it_is(fn: Any) -> None:
    step = coop_jax.run(
        lambda s, e, r, x: (fn(s, x), e, r), budget="2MiB", donate_argnums=(0, 1, 2)
    )
    state, empty, same = start(), jnp.zeros((0, 5)), jnp.asarray(W)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            state, empty, same = step(state, empty, same, X)
    assert empty.shape == (0, 5)
    assert_same_bits(same, W)


def test_arguments_that_lie_in_the_pool_of_another_runtime() -> None:
    ones = coop_jax.run(lambda x: x + 1, runtime=coop_jax.Runtime("1MiB"))
    other = coop_jax.run(planned, runtime=coop_jax.Runtime("2MiB"), donate_argnums=0)
    state = {"w": ones(W), "b": ones(np.linspace(-1, 1, 64, dtype=np.float32))}
    expected = coop_jax.run(planned)(state, X)
    given, state = state, other(state, X)
    assert given["w"].is_deleted()
    assert_same_bits(state, expected)
    assert ones.runtime.memory().pool.live_blocks() == []


def test_references_to_the_memory_of_an_array_are_counted() -> None:
    """Of arrays made in every way: by a compiled function, from the host, in a pool."""
    count = holders.count_of_holders(jax.devices()[0])
    assert count is not None
    made = jax.jit(lambda x: x + 1)(W)
    lent = coop_jax.run(lambda x: x + 1, budget="1MiB")(W)
    for x in (made, lent, jnp.asarray(W), jax.device_put(W), jnp.zeros((), jnp.bfloat16)):
        assert count.of(x) == 0
        held = [np.asarray(x), x.__dlpack__(), jax.dlpack.from_dlpack(x)]
        assert count.of(x) == 3
        del held
        assert count.of(x) == 0


# --- Parts of an array: a scan reads views of what lies in the pool ---


def layers(stack: Any, x: Any) -> Any:
    def loss(stack: Any) -> Any:
        return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0] ** 2).sum()

    return stack - 0.1 * jax.grad(loss)(stack)


def stacked() -> Any:
    return jnp.stack([jnp.asarray(W)] * 3)


@pytest.mark.filterwarnings("ignore:.*cannot be updated in place:UserWarning")
@pytest.mark.parametrize("fusion", [False, True])
def test_a_stack_that_is_scanned_and_closed_over_is_kept(fusion: bool) -> None:
    closed = stacked()

    def step(stack: Any, x: Any) -> Any:
        return layers(stack, x) + closed

    made = coop_jax.run(step, donate_argnums=0, fusion=fusion)
    expected = coop_jax.run(step, fusion=fusion)(stacked(), X)
    assert_same_bits(made(closed, X), expected)
    assert_same_bits(made(made(closed, X), X), coop_jax.run(step, fusion=fusion)(expected, X))
    assert_same_bits(closed, stacked())


@pytest.mark.filterwarnings("ignore:.*cannot be updated in place:UserWarning")
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_stack_that_is_scanned_and_referred_to_is_kept(reference: str, steps: int) -> None:
    made, plain = coop_jax.run(layers, donate_argnums=0), coop_jax.run(layers)
    stack = stacked()
    for _ in range(steps):
        stack = made(stack, X)
    before = np.array(stack)
    view = REFERENCES[reference](stack)
    shown = np.array(view) if isinstance(view, np.ndarray) else None
    assert_same_bits(made(stack, X), plain(jnp.asarray(before), X))
    if shown is not None:
        np.testing.assert_array_equal(view, shown)


@pytest.mark.filterwarnings("ignore:.*cannot be updated in place:UserWarning")
def test_a_stack_that_is_scanned_and_passed_twice_is_kept() -> None:
    def step(a: Any, b: Any, x: Any) -> Any:
        return layers(a, x), layers(b, x)

    stack = stacked()
    expected = coop_jax.run(step)(stack, stack, X)
    found = coop_jax.run(step, donate_argnums=(0, 1))(stack, stack, X)
    assert_same_bits(found, expected)
    assert_same_bits(stack, stacked())


@pytest.mark.filterwarnings("ignore:.*cannot be updated in place:UserWarning")
def test_what_is_kept_beside_a_copy_counts() -> None:
    def peak(view: Any) -> int:
        stack = stacked()
        held = view(stack)
        step = coop_jax.run(layers, donate_argnums=0, fusion=False)
        step(stack, X)
        del held
        return step.runtime.stats().peak_bytes

    nbytes = stacked().nbytes
    assert peak(np.asarray) - peak(lambda x: None) == nbytes
