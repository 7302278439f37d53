"""Sums of what was split or transposed alike: one sum, split or transposed once."""

from __future__ import annotations

import collections
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.comparison import assert_same_bits


def counts(fn: Any, *args: Any) -> collections.Counter[str]:
    """How many equations of each primitive the fused program has."""
    program = coop_jax.trace_program(fn, *args, fusion=True).program
    kernels = [op.kernel for op in program.operations]
    return collections.Counter(e.primitive.name for k in kernels for e in k.equations)


def values(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def terms(count: int, *shape: int) -> list[jax.Array]:
    return [values(*shape, seed=k) for k in range(count)]


def added(columns: Any) -> list[jax.Array]:
    """Each column's sum, first to last."""
    totals = []
    for column in columns:
        total = column[0]
        for x in column[1:]:
            total = total + x
        totals.append(total)
    return totals


def split_sums(xs: list[jax.Array]) -> list[jax.Array]:
    parts = [jnp.split(jnp.sin(x), 4, axis=1) for x in xs]
    return added(zip(*parts, strict=True))


def test_parts_are_added_together() -> None:
    xs = terms(5, 6, 8)
    found = counts(split_sums, xs)
    assert (found["split"], found["add"]) == (1, 4)
    for a, b in zip(coop_jax.run(split_sums, fusion=True)(xs), split_sums(xs), strict=True):
        assert_same_bits(a, b)


def test_one_after_the_other() -> None:
    """Transposed, then split: the sum is of what neither was done to."""

    def fn(xs: list[jax.Array]) -> list[jax.Array]:
        return split_sums([jnp.cos(x).T[:, ::-1] for x in xs])

    xs = terms(4, 8, 6)
    found = counts(fn, xs)
    # What is computed of each term before comes between.
    assert (found["split"], found["add"], found["transpose"]) == (1, 3, 4)

    def plain(xs: list[jax.Array]) -> list[jax.Array]:
        parts = [jnp.split(jnp.sin(x).T[:, ::-1], 4, axis=1) for x in xs]
        return added(zip(*parts, strict=True))

    found = counts(plain, xs)
    wanted = {"split": 1, "add": 3, "transpose": 1, "rev": 1}
    assert {name: found[name] for name in wanted} == wanted
    for a, b in zip(coop_jax.run(plain, fusion=True)(xs), plain(xs), strict=True):
        assert_same_bits(a, b)


def test_the_gradient_of_what_is_concatenated_in_each_step() -> None:
    def loss(ws: list[jax.Array], xs: list[jax.Array]) -> jax.Array:
        h = jnp.zeros((3, 8))
        for x in xs:
            a, b = jnp.split(jnp.concatenate([h, x], axis=1) @ jnp.concatenate(ws, axis=1), 2, 1)
            h = jnp.sin(a) * jnp.cos(b)
        return (h**2).sum()

    ws, xs = [values(12, 8), values(12, 8, seed=1)], terms(6, 3, 4)
    found = counts(jax.grad(loss), ws, xs)
    # One for each step's share in both weights together, but the first.
    assert found["add_any"] == 5, found
    grads = coop_jax.run(jax.grad(loss), fusion=True)(ws, xs)
    for a, b in zip(grads, jax.grad(loss)(ws, xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_what_is_found_late_is_made_early() -> None:
    """The second parts are added once it is seen that they were transposed alike: the first were
    added, and read, before that."""

    def fn(x: jax.Array, y: jax.Array) -> Any:
        (a, b), (c, d) = jnp.split(jnp.sin(x), 2), jnp.split(jnp.cos(y), 2)
        first = jnp.sort(a + c)
        second = jnp.sort(first @ first.T) @ first
        return second, b.T + d.T

    args = values(6, 5), values(6, 5, seed=1)
    found = counts(fn, *args)
    assert (found["split"], found["add"]) == (1, 1)
    for a, b in zip(coop_jax.run(fn, fusion=True)(*args), fn(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


OTHERWISE = [
    "returned",
    "read twice",
    "one part alone",
    "crosswise",
    "another split",
    "with itself",
    "in another shape",
    "the other way round",
]


@pytest.mark.parametrize("which", OTHERWISE)
def test_what_is_read_otherwise_stays(which: str) -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        a, b = jnp.split(jnp.sin(x), 2), jnp.split(jnp.cos(y), 2)
        if which == "returned":
            return a[0] + b[0], a[1] + b[1], a[0]
        if which == "read twice":
            return a[0] + b[0], a[1] + b[1], jnp.sort(b[1])
        if which == "one part alone":
            return a[0] + b[0], jnp.sort(a[1]), jnp.sort(b[1])
        if which == "crosswise":
            return a[0] + b[1], a[1] + b[0]
        if which == "another split":
            c = jnp.split(jnp.cos(y), [4])
            return a[0] + c[0][:3], a[1][:2] + c[1]
        if which == "in another shape":  # a view of a part, where it is large enough to be one
            return a[0] + b[0], a[1].reshape(-1) + b[1].reshape(-1)
        if which == "the other way round":  # of two NaNs the first one's bits stay
            return a[0] + b[0], b[1] + a[1]
        return a[0] + a[1], b[0] + b[1]

    args = values(6, 500), values(6, 500, seed=1)
    budgeted = coop_jax.run(fn, fusion=True)
    for a, b in zip(budgeted(*args), fn(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    assert counts(fn, *args)["split"] >= (2 if which != "another split" else 1)


@pytest.mark.parametrize("seed", range(12))
def test_random_sums(seed: int) -> None:
    """Whole numbers, split and transposed at random, added in random orders and read by others."""
    random_ = random.Random(seed)
    shape = (4, 6)

    def rearranged(x: jax.Array, axis: int, how: int) -> list[jax.Array]:
        x = x.T if how & 1 else x
        x = x[::-1] if how & 2 else x
        return jnp.split(x, 2, axis=axis)

    plan = [(random_.randrange(2), random_.choice([0, 0, 1, 2, 3])) for _ in range(6)]
    orders = [random_.sample(range(6), 6) for _ in range(2)]
    if random_.random() < 0.6:
        orders[1] = orders[0]
        plan = [random_.choice(plan)] * 6
    extra = random_.random() < 0.3

    def fn(xs: list[jax.Array]) -> Any:
        parts = [rearranged(jnp.abs(x), *how) for x, how in zip(xs, plan, strict=True)]
        totals = []
        for k, order in enumerate(orders):
            by_shape: dict[Any, jax.Array] = {}
            for n in order:
                x = parts[n][k]
                by_shape[x.shape] = by_shape[x.shape] + x if x.shape in by_shape else x
            totals.append(list(by_shape.values()))
        return (totals, parts[2][1] * 2) if extra else totals

    xs = [
        jnp.asarray(np.random.default_rng(k).integers(-9, 9, shape), jnp.float32) for k in range(6)
    ]
    assert_same_bits(coop_jax.run(fn, fusion=True)(xs), fn(xs))


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """Whole numbers, rearranged, added and read by others in any order."""
    random_ = random.Random(seed)

    def fn(xs: list[jax.Array]) -> Any:
        values, sums = [jnp.abs(x) for x in xs], []
        for _ in range(20):
            x = random_.choice(values[-8:])
            how = random_.randrange(6)
            if how == 0:
                values += jnp.split(x, 2) if x.shape[0] % 2 == 0 else [x[::-1]]
            elif how == 1:
                values.append(x.T)
            elif how == 2:
                values.append(jnp.sort(x, axis=0))
            else:
                alike = [y for y in values if y.shape == x.shape and y is not x]
                if alike:
                    sums.append(x + random_.choice(alike[-4:]))
                    values.append(sums[-1])
        return values[-4:], sums[-3:]

    drawn = [np.random.default_rng(k).integers(-9, 9, (4, 4)) for k in range(3)]
    xs = [jnp.asarray(x, jnp.float32) for x in drawn]
    state = random_.getstate()
    found = coop_jax.run(fn, fusion=True)(xs)
    random_.setstate(state)
    assert_same_bits(found, fn(xs))
