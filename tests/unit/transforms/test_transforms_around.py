"""JAX's transformations around `run` and `remat_eager` functions."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.transforms import residuals
from tests.testing.budgets import smallest_feasible
from tests.testing.comparison import assert_same_bits
from tests.testing.semantics import describe

FRONT_ENDS = ["run", "remat_eager"]
Fn = Callable[..., Any]

X = np.random.default_rng(0).standard_normal((128, 32)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32) / 6


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    h = x
    for _ in range(6):
        h = jnp.tanh(jax.nn.gelu(h @ w)) + h
    return (h**2).mean()


def layers(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.sin(jnp.tanh(x @ w) @ w) @ w)


def make(front_end: str, fn: Fn, budget: Any = None, **options: Any) -> Any:
    return getattr(coop_jax, front_end)(fn, budget=budget, **options)


# Of a scalar function (s) and one of arrays (t), of weights and inputs.
AROUND: dict[str, Fn] = {
    "grad": lambda s, t, w, x: jax.grad(s)(w, x),
    "value_and_grad of both": lambda s, t, w, x: jax.value_and_grad(s, argnums=(0, 1))(w, x),
    "grad has_aux": lambda s, t, w, x: jax.grad(
        lambda w: (lambda y: ((y**2).sum(), y))(t(w, x)), has_aux=True
    )(w),
    "vjp used three times": lambda s, t, w, x: [
        back(ct) for back in [jax.vjp(t, w, x)[1]] for ct in (x, 2 * x, x)
    ],
    "jvp": lambda s, t, w, x: jax.jvp(t, (w, x), (w + 1, x)),
    "linearize": lambda s, t, w, x: [
        y if k == 0 else y(w, x) for k, y in enumerate(jax.linearize(t, w, x))
    ],
    "linear_transpose of linearize": lambda s, t, w, x: jax.linear_transpose(
        jax.linearize(t, w, x)[1], w, x
    )(x),
    "jacrev": lambda s, t, w, x: jax.jacrev(lambda a: t(w, a * x[:8]).sum(0))(jnp.ones(32)),
    "jacfwd": lambda s, t, w, x: jax.jacfwd(lambda a: t(w, a * x[:8]))(jnp.ones(32)),
    "hessian": lambda s, t, w, x: jax.hessian(lambda a: s(a * w, x))(jnp.ones(4)[:, None].sum()),
    "grad of grad": lambda s, t, w, x: jax.grad(lambda w: (jax.grad(s)(w, x) ** 2).sum())(w),
    "jvp of grad": lambda s, t, w, x: jax.jvp(lambda w: jax.grad(s)(w, x), (w,), (w,)),
    "vmap": lambda s, t, w, x: jax.vmap(t, (None, 0), 1)(w, x.reshape(4, 32, 32)),
    "vmap of grad": lambda s, t, w, x: jax.vmap(jax.grad(s), (None, 0))(w, x.reshape(4, 32, 32)),
    "grad of vmap": lambda s, t, w, x: jax.grad(
        lambda w: jax.vmap(s, (None, 0))(w, x.reshape(4, 32, 32)).sum()
    )(w),
    "vmap with nothing batched in the result": lambda s, t, w, x: jax.vmap(
        lambda x: (s(w, w), s(w, x)), out_axes=(None, 0)
    )(x.reshape(4, 32, 32)),
    "other work around": lambda s, t, w, x: jax.grad(
        lambda w: jnp.sin(3 * s(jnp.cos(w), x)) + (t(w, x) * x).sum() + jax.jit(jnp.sum)(w)
    )(w),
    "closed over": lambda s, t, w, x: jax.grad(lambda w: jax.grad(lambda x: s(w, x))(x).sum())(w),
}


# The longest, made of what others have: once will do.
SELDOM = ["hessian", "closed over", "vjp used three times", "grad has_aux"]


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SELDOM else ()) for n in AROUND]
)
def test_transformations_around(name: str, front_end: str) -> None:
    """As JAX, and at half memory the bits of no budget."""
    around = AROUND[name]
    w, x = jnp.asarray(W), jnp.asarray(X)
    expected = around(loss, layers, w, x)

    def call(budget: int | None) -> tuple[Any, list[coop_jax.Runtime]]:
        runtime = coop_jax.Runtime(budget)
        s, t = (make(front_end, fn, runtime=runtime) for fn in (loss, layers))
        found = around(s, t, w, x)
        assert describe(found) == describe(expected)
        found = jax.tree.map(np.array, found)
        gc.collect()
        assert runtime.stats().bytes_in_use == 0
        return found, runtime

    unlimited, runtime = call(None)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), unlimited, expected
    )
    peak_bytes = runtime.stats().peak_bytes
    budget = smallest_feasible(call, peak_bytes // 2, peak_bytes)
    if "grad" in name or "vjp" in name:
        assert budget < 0.8 * peak_bytes
    for _ in range(2):
        found, tight = call(budget)
        assert_same_bits(found, unlimited)
        assert tight.stats().peak_bytes <= budget


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For each second part that ran whether it read kept residuals or computed them again."""
    log: list[str] = []
    execute = residuals._Second.execute

    def logged(self: Any, *args: Any) -> Any:
        found = execute(self, *args)
        log.append("again" if self._ran is self._again else "kept")
        return found

    monkeypatch.setattr(residuals._Second, "execute", logged)
    return log


@pytest.mark.unless_forced("asserts peaks or counts, which evictions change")
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_residuals_are_kept_where_they_fit(front_end: str, seconds: list[str]) -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    reference = make(front_end, loss)
    step = jax.value_and_grad(reference)
    expected = step(w, x)
    peak_bytes = reference.runtime.stats().peak_bytes
    assert seconds == ["kept"]
    found = {}
    for share in (1.25, 0.5, 0.4):
        budgeted = make(front_end, loss, int(share * peak_bytes))
        seconds.clear()
        for _ in range(3):
            found[share] = jax.value_and_grad(budgeted)(w, x)
            assert_same_bits(found[share], expected)
        assert budgeted.runtime.stats().peak_bytes <= share * peak_bytes
        if share == 1.25:
            assert seconds == ["kept"] * 3
            kept = budgeted.runtime.stats()
            assert kept.evictions == 0
    # The last one has no room for them, and learns that once.
    assert seconds[1:] == ["again", "again"]
    assert budgeted.runtime.stats().operations > kept.operations


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_residuals_live_in_the_pool_as_long_as_the_function(front_end: str) -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    step = make(front_end, loss, "16MiB")
    value, first = jax.vjp(step, w, x)
    with_one = step.runtime.stats().bytes_in_use
    assert with_one > 6 * X.nbytes
    _, second = jax.vjp(step, w, 2 * x)
    assert step.runtime.stats().bytes_in_use > 1.9 * with_one
    gradient = jax.tree.map(np.array, first(1.0))
    other = jax.tree.map(np.array, second(1.0))
    assert_same_bits(jax.tree.map(np.array, first(1.0)), gradient)
    assert not np.array_equal(gradient[0], other[0])
    gc.disable()  # they go at once, not when Python looks for cycles
    try:
        del first
        assert step.runtime.stats().bytes_in_use < 1.1 * with_one
        del second, value
        assert step.runtime.stats().bytes_in_use == 0
    finally:
        gc.enable()


def test_another_call_takes_the_room_of_residuals(seconds: list[str]) -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    _, back = jax.vjp(make("run", loss), w, x)
    expected = jax.tree.map(np.array, back(1.0))
    with coop_jax.Runtime(80 * X.nbytes) as runtime:
        step = make("run", loss)
        _, back = jax.vjp(step, w, x)
        assert runtime.stats().bytes_in_use > 10 * X.nbytes
        wide = make("run", lambda x: jnp.sin(jnp.tile(x, (60, 1))).sum())
        seconds.clear()
        assert np.isfinite(float(wide(x)))
        assert runtime.stats().bytes_in_use < X.nbytes
        assert_same_bits(jax.tree.map(np.array, back(1.0)), expected)
        assert seconds == ["again"]


@pytest.mark.unless_forced("asserts peaks or counts, which evictions change")
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_fraction_is_of_what_the_derivative_needs(front_end: str) -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    forward = make(front_end, loss)
    forward(w, x)
    step = make(front_end, loss, 0.75)
    gradient = jax.grad(step)(w, x)
    assert step.runtime.budget_bytes > 2 * forward.runtime.stats().peak_bytes
    assert_same_bits(gradient, jax.grad(make(front_end, loss))(w, x))


def test_a_training_loop_traces_and_compiles_once(
    backend_compilations: Callable[[], int],
) -> None:
    traces = 0

    def counted(w: jax.Array, x: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return loss(w, x)

    step = jax.value_and_grad(make("run", counted, "16MiB"))
    w, x = jnp.asarray(W), jnp.asarray(X)
    for _ in range(2):
        _, g = step(w, x)
        w = w - 0.1 * g
    before = backend_compilations()
    for _ in range(3):
        _, g = step(w, x)
        w = w - 0.1 * g
    assert traces == 1
    assert backend_compilations() == before


def test_python_decides_on_values_under_a_derivative() -> None:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        h, count = x, 0
        while (h**2).mean() > 0.05:
            h = 0.9 * jnp.tanh(h @ w)
            count += 1
        if int(count) % 2:
            h = -h
        return (h**3).sum() if h.sum() > 0 else (h * 2).sum()

    w, x = jnp.asarray(W), jnp.asarray(X)
    reference = make("remat_eager", fn)
    expected = jax.value_and_grad(reference)(w, x)
    plain = jax.value_and_grad(fn)(w, x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), expected, plain
    )
    pushed = jax.jvp(reference, (w, x), (w, x))
    peak_bytes = reference.runtime.stats().peak_bytes

    def call(budget: int) -> None:
        step = make("remat_eager", fn, budget)
        assert_same_bits(jax.value_and_grad(step)(w, x), expected)
        assert_same_bits(jax.jvp(step, (w, x), (w, x)), pushed)
        assert step.runtime.stats().peak_bytes <= budget
        assert step.runtime.stats().rematerialisations > 0

    assert smallest_feasible(call, peak_bytes // 2, peak_bytes) < 0.8 * peak_bytes
    step = make("remat_eager", fn, "16MiB")
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.vmap(step, (None, 0))(w, x[:, None])


STAGING: dict[str, Fn] = {
    "jit": lambda s, w, x: jax.jit(s)(w, x),
    "jit of grad": lambda s, w, x: jax.jit(jax.grad(s))(w, x),
    "jit of vmap of grad": lambda s, w, x: jax.jit(jax.vmap(jax.grad(s), (None, 0)))(
        w, x[:4, None]
    ),
    "grad of jit": lambda s, w, x: jax.grad(jax.jit(s))(w, x),
    "scan": lambda s, w, x: jax.lax.scan(lambda c, x: (c + s(w, x[None]), None), 0.0, x[:3])[0],
    "while": lambda s, w, x: jax.lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + s(w, x)), (0, 0.0)
    ),
    "cond": lambda s, w, x: jax.lax.cond(x[0, 0] > 0, s, lambda w, x: 2 * s(w, x), w, x),
    "checkpoint": lambda s, w, x: jax.grad(jax.checkpoint(s))(w, x),
}


@pytest.mark.parametrize("name", STAGING)
def test_while_jax_traces_a_program(name: str) -> None:
    """`run` says where to call it, and works afterwards; `remat_eager` is `jax.checkpoint`."""
    staged = STAGING[name]
    w, x = jnp.asarray(W), jnp.asarray(X)
    step = make("run", loss, "16MiB")
    with pytest.raises(RuntimeError, match=r"call it outside of them.*remat_eager"):
        staged(step, w, x)
    assert np.isfinite(float(step(w, x)))
    eager = make("remat_eager", loss, "16MiB")
    assert_same_bits(staged(eager, w, x), staged(jax.checkpoint(loss), w, x))


@pytest.mark.parametrize("trace", [jax.make_jaxpr, lambda f: lambda *a: jax.eval_shape(f, *a)])
def test_abstract_traces(trace: Fn) -> None:
    with pytest.raises(RuntimeError, match="make_jaxpr, eval_shape"):
        trace(make("run", loss))(W, X)
    assert str(trace(make("remat_eager", loss))(W, X)) == str(trace(jax.checkpoint(loss))(W, X))


def test_remat_eager_is_a_checkpoint_under_jit() -> None:
    text = str(jax.make_jaxpr(jax.grad(make("remat_eager", loss)))(W, X))
    assert "checkpoint" in text or "remat" in text


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_derivative_under_jit(front_end: str) -> None:
    """The function that `jax.vjp` gave is not traced with the function: it may meet a jit later."""
    w, x = jnp.asarray(W), jnp.asarray(X)
    _, back = jax.vjp(make(front_end, loss, "16MiB"), w, x)
    if front_end == "run":
        with pytest.raises(RuntimeError, match=r"a derivative of a coop_jax\.run function"):
            jax.jit(back)(1.0)
    else:
        found = jax.jit(back)(1.0)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, back(1.0)
        )
    assert np.isfinite(np.asarray(back(1.0)[0])).all()


@pytest.mark.parametrize("inner", FRONT_ENDS)
def test_inside_a_remat_eager_call_it_is_part_of_that_call(inner: str) -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    expected = make("remat_eager", lambda w, x: jax.value_and_grad(loss)(w, x * 2))(w, x)
    with coop_jax.Runtime("8MiB") as runtime:
        shared = make(inner, loss)
        own = make(inner, loss, "1KiB")
        for step in (shared, own):
            outer = make("remat_eager", lambda w, x, s=step: jax.value_and_grad(s)(w, x * 2))
            assert_same_bits(outer(w, x), expected)
        assert runtime.stats().operations > 100


def test_run_inside_run_says_so_and_remat_eager_inside_run_is_a_checkpoint() -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    inner = make("run", loss)
    with pytest.raises(RuntimeError, match="another function given to run"):
        make("run", lambda w, x: inner(w, x))(w, x)
    eager = make("remat_eager", loss, "1KiB")
    expected = make("run", jax.grad(jax.checkpoint(loss)))(w, x)
    assert_same_bits(make("run", lambda w, x: jax.grad(eager)(w, x))(w, x), expected)


def test_donation_is_ignored_under_transformations() -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    step = coop_jax.run(loss, "16MiB", donate_argnums=(0, 1))
    expected = jax.grad(make("run", loss))(w, x)
    for _ in range(2):
        assert_same_bits(jax.grad(step)(w, x), expected)
    assert not w.is_deleted()
    assert not x.is_deleted()


def test_static_arguments_trees_and_keywords() -> None:
    def fn(params: Any, power: int, *, batch: Any) -> Any:
        y = jnp.tanh(batch["x"] @ params["w"]) ** power
        return {"loss": y.mean(), "rows": y.shape[0], "index": batch["i"] + 1, "none": None}

    step = coop_jax.run(fn, "4MiB", static_argnums=1)
    eager = coop_jax.remat_eager(fn, budget="4MiB")
    batch = {"x": X, "i": np.arange(100)}

    def around(s: Fn, params: Any) -> Any:
        out = s(params, 2, batch=batch)
        return out["loss"], out

    expected = jax.value_and_grad(lambda p: around(fn, p), has_aux=True)({"w": jnp.asarray(W)})
    for front_end in (step, eager):
        found = jax.value_and_grad(lambda p, s=front_end: around(s, p), has_aux=True)(
            {"w": jnp.asarray(W)}
        )
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        np.testing.assert_allclose(found[1]["w"], expected[1]["w"], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(found[0][1]["index"], np.arange(100) + 1)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_custom_rules_keys_and_integers(front_end: str) -> None:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct, -1e-3, 1e-3) * x,))

    def fn(w: jax.Array, key: Any, ids: jax.Array) -> jax.Array:
        keep = jax.random.bernoulli(key, 0.5, X.shape)
        return jnp.where(keep, clipped(X @ w), 0)[ids].sum()

    arguments = jnp.asarray(W), jax.random.key(3), jnp.arange(100)
    expected = jax.grad(fn)(*arguments)
    step = make(front_end, fn, "4MiB")
    np.testing.assert_allclose(jax.grad(step)(*arguments), expected, rtol=1e-4, atol=1e-6)
    found = jax.grad(step, argnums=(0, 2), allow_int=True)(*arguments)
    assert found[1].dtype == jax.dtypes.float0
    keys = jax.random.split(arguments[1], 3)
    each = jax.vmap(jax.grad(step), (None, 0, None))(arguments[0], keys, arguments[2])
    for one, key in zip(each, keys, strict=True):
        alone = jax.grad(fn)(arguments[0], key, arguments[2])
        np.testing.assert_allclose(one, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_named_axes(front_end: str) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.tanh(x - jax.lax.pmean(x, "batch")) * (1 + jax.lax.axis_index("batch"))

    step = make(front_end, fn, "4MiB")
    mapped = lambda f: jax.vmap(f, axis_name="batch")  # noqa: E731
    x = jnp.asarray(X)
    np.testing.assert_allclose(mapped(step)(x), mapped(fn)(x), rtol=1e-5, atol=1e-6)
    found, expected = (jax.grad(lambda x, f=f: (mapped(f)(x) ** 2).sum())(x) for f in (step, fn))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_failure_under_a_derivative_leaves_the_runtime_working(front_end: str) -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    step = make(front_end, loss, 3 * X.nbytes)
    for _ in range(2):
        with pytest.raises(coop_jax.BudgetExceededError):
            jax.grad(step)(w, x)
    gc.collect()
    assert step.runtime.stats().bytes_in_use == 0
    wrong = make(front_end, lambda w, x: loss(w, x) + x, "16MiB")
    with pytest.raises(TypeError, match="scalar"):
        jax.grad(wrong)(w, x)
    gc.collect()
    assert wrong.runtime.stats().bytes_in_use == 0


def test_effects_run_once_where_residuals_fit_and_are_not_repeated_to_save_room() -> None:
    seen: list[float] = []

    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: seen.append(float(v)), w.sum())
        return loss(w, x)

    w, x = jnp.asarray(W), jnp.asarray(X)
    step = make("run", fn)
    jax.grad(step)(w, x)
    jax.effects_barrier()
    assert len(seen) == 1
    tight = make("run", fn, int(0.35 * step.runtime.stats().peak_bytes))
    with pytest.raises(coop_jax.BudgetExceededError):
        jax.grad(tight)(w, x)


def test_a_tracer_that_closes_over_another_transformation() -> None:
    """What a function closes over is an operand."""
    w, x = jnp.asarray(W), jnp.asarray(X)
    runtime = coop_jax.Runtime("16MiB")

    def closed(front_end: str) -> Fn:
        return lambda w: make(front_end, lambda x: loss(w, x), runtime=runtime)(x)

    for front_end in FRONT_ENDS:
        found = jax.grad(closed(front_end))(w)
        assert_same_bits(found, jax.grad(make(front_end, loss))(w, x))


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_references_under_a_transformation_are_refused(front_end: str) -> None:
    ref = jax.new_ref(jnp.zeros((32, 32)))

    def fn(w: jax.Array, ref: Any) -> jax.Array:
        ref[...] = ref[...] + w
        return jnp.sin(w).sum()

    step = make(front_end, fn, "4MiB")
    for around in (jax.grad(step), jax.vmap(step, (0, None))):
        with pytest.raises(NotImplementedError, match=r"pass the contents, ref\[\.\.\.\]"):
            around(jnp.asarray(W), ref)
