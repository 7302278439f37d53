"""Every dtype, shape and kind of argument: the same values, types and kinds as plain JAX gives."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.lowering.passes import fusion
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits, bits_of
from tests.testing.processes import output_of

FRONT_ENDS = ["run", "remat_eager"]
both_front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)

POOLED = """
    bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64
    float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2
    float8_e5m2fnuz float8_e8m0fnu
""".split()
# Fewer than 8 bits: counted, but outside the pool.
UNPOOLED = ["int2", "int4", "uint2", "uint4", "float4_e2m1fn"]
# Much like others: once will do.
SELDOM = """
    uint16 uint32 int2 uint2
    float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu
""".split()


def make(front_end: str, fn: Any, budget: Any = None, **options: Any) -> Any:
    if front_end == "run":
        return coop_jax.run(fn, budget=budget, **options)
    return coop_jax.remat_eager(fn, budget=budget)


def kinds(tree: Any) -> Any:
    """What a caller can tell of arrays besides their contents."""

    def one(x: Any) -> Any:
        if not isinstance(x, jax.Array):
            return x
        return x.shape, str(x.dtype), bool(getattr(x, "weak_type", False)), str(x.sharding)

    return [one(x) for x in jax.tree.leaves(tree)], jax.tree.structure(tree)


def check_like_jax(front_end: str, fn: Any, *args: Any, exact: bool = True, **named: Any) -> Any:
    """Runs `fn` as plain JAX does, without a budget and in one; returns what came without one."""
    given, words = jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else x, (args, named)
    )
    expected = jax.jit(fn)(*args, **named) if front_end == "run" else fn(*given, **words)
    unbudgeted = make(front_end, fn)
    found = unbudgeted(*args, **named)
    assert kinds(found) == kinds(expected)
    if exact:
        assert_same_bits(found, expected)
    peak_bytes = unbudgeted.runtime.stats().peak_bytes
    if peak_bytes < 2048:  # nothing that a pool would hold
        return unbudgeted.runtime.stats()
    tight: list[Any] = []

    def attempt(budget_bytes: int) -> None:
        step = make(front_end, fn, budget_bytes)
        tight[:] = [step, step(*args, **named)]

    least = smallest_feasible(attempt, max(peak_bytes // 2, 1), peak_bytes)
    assert_same_bits(tight[1], found)
    assert kinds(tight[1]) == kinds(found)
    assert tight[0].runtime.stats().peak_bytes <= least
    return tight[0].runtime.stats()


def _array_of(name: str, shape: tuple[int, ...] = (32, 64)) -> jax.Array:
    values = np.arange(int(np.prod(shape))).reshape(shape) % 7
    if name.startswith("float8_e8m0"):
        values = 2.0 ** (values - 3)
    elif name.startswith(("float", "bfloat", "complex")):
        values = values / 2 - 1
    return jnp.asarray(values).astype(getattr(jnp, name if name != "bool" else "bool_"))


def _chain(x: jax.Array) -> Any:
    """Values of x's dtype that are read again in the opposite order: some have to come back."""
    kept = [x]
    for number in range(8):
        rolled = jnp.roll(kept[-1], number + 1, axis=0)
        kept.append(jnp.where(rolled == kept[-1], jnp.flip(rolled, axis=1), rolled))
    total = kept.pop()
    while kept:
        other = kept.pop()
        total = jnp.where(total == other, other, jnp.roll(total, 1, axis=1))
    return total, total.reshape(-1)[:5]


@pytest.mark.unless_fused("few operations are left: nothing to evict, or it does not fit")
@both_front_ends
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SELDOM else ()) for n in POOLED + UNPOOLED],
)
def test_every_dtype(front_end: str, name: str) -> None:
    x = _array_of(name)
    assert x.dtype.name == name
    stats = check_like_jax(front_end, _chain, x)
    if name in POOLED:
        assert stats.rematerialisations > 0
    identity = make(front_end, lambda x: (jnp.roll(x, 1), x), "1MiB")
    rolled, same = identity(x)
    memory = identity.runtime.memory()
    assert (memory.offset_of(rolled) >= 0) == (name in POOLED)
    again = identity(rolled)[0]  # what lies in the pool is given back
    assert_same_bits((same, again), (x, jnp.roll(rolled, 1)))


@both_front_ends
@pytest.mark.parametrize("name", UNPOOLED)
def test_narrow_types_from_anywhere(front_end: str, name: str) -> None:
    x = _array_of(name)
    fn = make(front_end, lambda x: jnp.roll(x, 1, axis=0))
    expected = fn(x)
    assert_same_bits(fn(np.asarray(x)), expected)
    assert_same_bits(fn(jax.device_put(x, jax.devices()[0])), expected)


@both_front_ends
def test_matmuls_in_narrow_types(front_end: str) -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            h = x.astype(jnp.bfloat16)
            for _ in range(4):
                narrow = h.astype(jnp.float8_e4m3fn)
                h = jnp.tanh(jnp.matmul(narrow.astype(jnp.bfloat16), w.astype(jnp.bfloat16)))
                h = h + (h * 7).astype(jnp.int4).astype(jnp.bfloat16) / 8
            return (h.astype(jnp.float32) ** 2).mean()

        return jax.value_and_grad(loss)(w)

    random = np.random.default_rng(0)
    x = random.standard_normal((256, 32)).astype(np.float32)
    w = (random.standard_normal((32, 32)) / 6).astype(np.float32)
    assert check_like_jax(front_end, fn, x, w, exact=False).rematerialisations > 0


# --- Random keys ---


@both_front_ends
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_arrays_of_typed_keys_live_in_the_pool(front_end: str, impl: str) -> None:
    def fn(key: jax.Array) -> Any:
        keys = jax.random.split(key, 512)
        kept = [keys]
        for number in range(5):
            kept.append(jax.vmap(lambda k, n=number: jax.random.fold_in(k, n))(kept[-1][::-1]))
        total = jnp.zeros((512, 2))
        while kept:
            total = total + jax.vmap(lambda k: jax.random.normal(k, (2,)))(kept.pop())
        return total, keys.reshape(64, 8), keys[3], jax.random.key_data(keys), key

    # vmap of one generator draws other bits than another (rbg), but always those of plain JAX.
    key = jax.random.key(3, impl=impl)
    stats = check_like_jax(front_end, fn, key, exact=False)
    assert stats.rematerialisations > 0 or fusion.is_default()  # which stores less
    step = make(front_end, fn, None)
    expected = jax.jit(fn)(key)
    total, keys, one, data, same = step(key)
    assert_same_bits((keys, one, data, same), expected[1:])
    np.testing.assert_allclose(total, expected[0], rtol=1e-5, atol=1e-5)
    assert step.runtime.memory().offset_of(keys) >= 0
    again = make(front_end, lambda k: jax.vmap(jax.random.bits)(k.reshape(-1)), "1MiB")
    assert_same_bits(again(keys), jax.vmap(jax.random.bits)(expected[1].reshape(-1)))


def test_donated_keys_are_used_up_like_any_array() -> None:
    split = jax.jit(lambda k: jax.vmap(lambda k: jax.random.fold_in(k, 1))(k))
    step = coop_jax.run(lambda k: (split(k), jnp.zeros(3)), budget="1MiB", donate_argnums=0)
    keys = jax.random.split(jax.random.key(0), 100)
    expected = split(split(keys))
    first, _ = step(keys)
    second, _ = step(first)
    assert first.is_deleted()
    assert_same_bits(second, expected)
    branching = coop_jax.run(
        lambda k, x: (jax.lax.cond(x > 0, split, lambda k: k[::-1], k), k),
        budget="1MiB",
        donate_argnums=0,
    )
    turned, kept = branching(second, 1)
    assert_same_bits((turned, kept), (split(expected), expected))


@both_front_ends
def test_keys_of_the_old_style_and_constant_keys(front_end: str) -> None:
    constant = jax.random.split(jax.random.key(5), 300)

    def fn(key: jax.Array) -> Any:
        a, b = jax.random.split(key)
        drawn = jax.vmap(lambda k: jax.random.uniform(k, (4,)))(constant)
        return jax.random.normal(a, (300, 4)) * drawn, jax.random.permutation(b, 300), constant[7]

    check_like_jax(front_end, fn, jax.random.PRNGKey(0), exact=False)
    expected = jax.jit(fn)(jax.random.PRNGKey(0))
    found = make(front_end, fn)(jax.random.PRNGKey(0))
    assert_same_bits(found[1:], expected[1:])


# --- Weak types, shapes ---


@both_front_ends
def test_weak_types_are_those_of_plain_jax(front_end: str) -> None:
    def fn(x: Any, s: Any, b: Any) -> Any:
        big = jnp.full((100,), 2.0) * s
        return (
            s,
            b,
            s * 2,
            x * s,
            big,
            jnp.asarray(1.5),
            x.astype(jnp.bfloat16) * s,
            b & True,
            3.5 * b,
        )

    check_like_jax(front_end, fn, np.ones((32, 8), np.float32), 2.5, True)
    check_like_jax(front_end, fn, jnp.ones((32, 8), jnp.int8), 3, False)
    check_like_jax(front_end, fn, jnp.ones((32, 8)), jnp.float16(3), np.True_)
    weak = jnp.full((200,), 1.0) if front_end == "run" else jnp.asarray(2.0) * 1
    check_like_jax(front_end, lambda x: (x, x * 2, x + jnp.int32(1)), weak)


@both_front_ends
def test_scalars_empty_arrays_and_many_axes(front_end: str) -> None:
    def fn(x: Any, empty: Any) -> Any:
        many = x.reshape((2,) * 10)
        turned = jnp.transpose(many, (9, 0, 8, 1, 7, 2, 6, 3, 5, 4))
        return {
            "many": turned + 1,
            "sum": many.sum(axis=tuple(range(9))),
            "scalar": x[0, 0] * 3,
            "empty": empty * 2,
            "joined": jnp.concatenate([empty, x]),
            "sums": (empty.sum(), empty.sum(axis=0), empty.prod(axis=1)),
            "contract": empty.T @ empty,
            "none": None,
        }

    x = np.arange(1024, dtype=np.float32).reshape(32, 32)
    check_like_jax(front_end, fn, x, np.zeros((0, 32), np.float32))


# --- Constants ---


@both_front_ends
def test_a_large_constant_is_counted_and_not_copied_for_each_call(front_end: str) -> None:
    table = jnp.asarray(np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32))
    also = np.asarray(np.random.default_rng(1).standard_normal((256, 256)), np.float32)
    runtime = coop_jax.Runtime("8MiB")
    make_in: Any = getattr(coop_jax, front_end)
    first = make_in(lambda x: jnp.sin(x @ table), runtime=runtime)
    second = make_in(lambda x: (x @ table).sum() + (x * also).sum(), runtime=runtime)
    x = np.ones((256, 256), np.float32)
    results = [(np.array(first(x)), np.array(second(x))) for _ in range(3)]
    for result in results[1:]:
        assert_same_bits(result, results[0])
    np.testing.assert_allclose(results[0][0], np.sin(x @ np.asarray(table)), rtol=1e-3, atol=1e-3)
    stats = runtime.stats()
    assert table.nbytes <= stats.external_bytes <= 4 * table.nbytes
    assert stats.bytes_in_use == 0
    with pytest.raises(coop_jax.BudgetExceededError):
        make(front_end, lambda x: x[:64] @ table, table.nbytes)(x[:64])


# --- Arguments ---


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any
    note: str = "a"


jax.tree_util.register_dataclass(Pair, ["left", "right"], ["note"])
Point = collections.namedtuple("Point", "x y")
X = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)


@both_front_ends
def test_pytrees_keyword_arguments_and_none(front_end: str) -> None:
    def fn(pair: Any, *rest: Any, scale: Any = 2.0, extra: Any = None) -> Any:
        total = pair.left @ pair.right.T * scale + sum(r.x.sum() * r.y for r in rest)
        if extra is not None:
            total = total + extra["a"]
        return Pair(total, None, pair.note), Point(x=pair.left * 2, y=[None, (scale,)]), {}

    pair = Pair(X, X * 2, "kept")
    check_like_jax(front_end, fn, pair, Point(X, 2.0), Point(X * 3, 1), exact=False)
    extra = {"a": np.float32(3), "none": None}
    check_like_jax(front_end, fn, pair, scale=jnp.float32(3), extra=extra, exact=False)
    result = make(front_end, fn)(pair)[0]
    assert isinstance(result, Pair)
    assert result.note == "kept"


@both_front_ends
def test_inputs_constants_and_nothing_as_results(front_end: str) -> None:
    constant = jnp.arange(200.0)
    x, y = jnp.asarray(X), jnp.arange(3)
    check_like_jax(front_end, lambda x, y: (x, y, x, constant, 1.5, y), x, y)
    step = make(front_end, lambda x: None)
    assert step(x) is None
    assert make(front_end, lambda: jnp.ones(100) * 2)().shape == (100,)
    assert make(front_end, lambda x: [])(x) == []


@both_front_ends
def test_the_same_array_twice_and_aliases(front_end: str) -> None:
    x = jnp.asarray(X)
    check_like_jax(front_end, lambda a, b: (a @ b.T, a, b), x, x, exact=False)
    step = make(front_end, lambda a, b: (a * 2 + b, a - b), "1MiB")
    total, _ = step(x, x)
    view = np.asarray(total)
    again, zero = step(total, total)  # an array of the pool, twice, with a view of it alive
    np.testing.assert_array_equal(view, X * 3)
    assert_same_bits((again, zero), (total * 3, total - total))
    donating = coop_jax.run(lambda a, b: (a * 2 + b, a - b), budget="1MiB", donate_argnums=0)
    given = jnp.array(X)
    with pytest.warns(UserWarning, match="passed more than once"):
        more, zero = donating(given, given)
    assert_same_bits((more, zero), (total, total - total))


def test_static_arguments() -> None:
    step = coop_jax.run(
        lambda x, n, how: how(x @ x.T if n > 1 else x, axis=n - 1), static_argnums=(1, 2)
    )
    for n, how in ((1, jnp.sum), (2, jnp.sum), (2, jnp.max), (1, jnp.sum)):
        expected = how(X @ X.T if n > 1 else X, axis=n - 1)
        np.testing.assert_allclose(step(X, n, how), expected, rtol=1e-3, atol=1e-4)
    with pytest.raises((TypeError, ValueError), match=r"hashable|static"):
        step(X, [1], jnp.sum)


@both_front_ends
def test_committed_arrays_give_committed_results(front_end: str) -> None:
    device = jax.devices()[0]
    for x in (X, jnp.asarray(X), jax.device_put(X, device)):
        expected = jax.jit(lambda x: (x * 2, x[0, 0], x))(x)
        found = make(front_end, lambda x: (x * 2, x[0, 0], x))(x)
        assert [a.committed for a in found[:2]] == [a.committed for a in expected[:2]]
        assert [a.sharding for a in found] == [a.sharding for a in expected]


# --- Sparse ---


@both_front_ends
def test_sparse_matrices_through_their_primitives(front_end: str) -> None:
    dense = np.where(np.random.default_rng(0).random((64, 32)) < 0.2, X, 0)
    matrix = jax.experimental.sparse.BCOO.fromdense(dense)

    def fn(matrix: Any, w: jax.Array) -> Any:
        def loss(data: jax.Array, w: jax.Array) -> jax.Array:
            sparse = jax.experimental.sparse.BCOO((data, matrix.indices), shape=matrix.shape)
            h = w
            for _ in range(3):
                h = jnp.tanh(sparse.T @ (sparse @ h)) + jnp.sin(h)
            return (h**2).sum()

        value, grads = jax.value_and_grad(loss, (0, 1))(matrix.data, w)
        return value, grads, matrix.todense() * 2, matrix.T

    w = np.random.default_rng(1).standard_normal((32, 256)).astype(np.float32)
    expected = jax.jit(fn)(matrix, w)
    found = make(front_end, fn)(matrix, w)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-3)
    stats = check_like_jax(front_end, fn, matrix, w, exact=False)
    assert stats.rematerialisations > 0


# --- 64 bits ---

_WIDE = """
import coop_jax, jax, jax.numpy as jnp, numpy as np
from test_dtypes import _chain, _array_of, check_like_jax, make
from tests.testing.comparison import bits_of
for front_end in ("run", "remat_eager"):
    for name in ("float64", "complex128", "int64", "uint64"):
        x = _array_of(name)
        assert x.dtype.name == name
        assert check_like_jax(front_end, _chain, x).rematerialisations > 0
    def fn(x, w):
        def loss(w):
            h = x
            for _ in range(5):
                h = jnp.tanh(h @ w)
            return (h**2).sum()
        return jax.value_and_grad(loss)(w), jnp.arange(3), 2.5, 3
    random = np.random.default_rng(0)
    x, w = random.standard_normal((128, 32)), random.standard_normal((32, 32)) / 6
    assert check_like_jax(front_end, fn, x, w, exact=False).rematerialisations > 0
    (value, grad), *_ = make(front_end, fn)(x, w)
    assert grad.dtype == "float64"
    np.testing.assert_allclose(value, jax.jit(fn)(x, w)[0][0], rtol=1e-12)
print("fine")
"""


@pytest.mark.unless_fused("few operations are left: nothing to evict, or it does not fit")
def test_64_bits() -> None:
    assert output_of(_WIDE, environment={"JAX_ENABLE_X64": "1"}) == "fine\n"


@both_front_ends
def test_64_bits_switched_on_for_a_call(front_end: str) -> None:
    step = make(front_end, lambda x: (x * 2, jnp.cumsum(x)))
    narrow = step(X)
    with jax.enable_x64(True):
        wide = step(np.asarray(X, np.float64))
        assert wide[0].dtype == wide[1].dtype == np.float64
    assert_same_bits(step(X), narrow)
    assert bits_of(narrow)[0][0] == "float32"
