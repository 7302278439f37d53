"""`coop_jax.jit`: budgets are met as XLA measures, results are `jax.jit`'s, calls are as its."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import coop_jax

LAYERS, WIDTH, ROWS = 8, 64, 1024


def loss(params: Any, x: Any) -> Any:
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def step(params: Any, x: Any) -> tuple[Any, Any]:
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def params() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), LAYERS)
    return [0.1 * jax.random.normal(k, (WIDTH, WIDTH)) for k in keys]


def batch(rows: int = ROWS) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (rows, WIDTH))


def needed(fn: Callable[..., Any], *args: Any, **options: Any) -> int:
    memory = jax.jit(fn, **options).lower(*args).compile().memory_analysis()
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )


def assert_close(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [0.9, 0.75, 0.6])
@pytest.mark.parametrize("donated", [(), (0,)])
def test_memory_is_within_the_budget_and_results_are_those_of_jit(
    share: float, donated: tuple[int, ...]
) -> None:
    planned = coop_jax.jit(step, budget=share, donate_argnums=donated)
    report = planned.plan(params(), batch())
    jit_bytes = needed(step, params(), batch(), donate_argnums=donated)
    assert report.jit_bytes == jit_bytes
    assert report.budget_bytes == int(jit_bytes * share)
    compiled = planned.lower(params(), batch()).compile().memory_analysis()
    total = compiled.argument_size_in_bytes + compiled.output_size_in_bytes
    total += compiled.temp_size_in_bytes - compiled.alias_size_in_bytes
    assert report.needed_bytes == total <= report.budget_bytes
    assert report.attempts[-1].needed_bytes == total
    assert report.recomputations > 0
    assert_close(planned(params(), batch()), jax.jit(step)(params(), batch()))


def test_less_budget_needs_no_more_memory_and_computes_no_less_again() -> None:
    reports = [
        coop_jax.jit(step, budget=share).plan(params(), batch()) for share in (1.0, 0.85, 0.7, 0.6)
    ]
    assert [r.needed_bytes for r in reports] == sorted(r.needed_bytes for r in reports)[::-1]
    assert [r.recompute_share for r in reports] == sorted(r.recompute_share for r in reports)


@pytest.mark.parametrize("budget", [None, 1.0, "1GiB"])
def test_where_the_budget_suffices_it_is_the_program_of_jit(budget: Any) -> None:
    planned = coop_jax.jit(step, budget=budget, donate_argnums=0)
    plain = jax.jit(step, donate_argnums=0)
    args = (params(), batch())
    assert planned.lower(*args).as_text() == plain.lower(*args).as_text()
    report = planned.plan(*args)
    assert report.needed_bytes == report.jit_bytes
    assert not report.attempts
    assert str(report).endswith("the program of jax.jit")


def test_the_program_of_jit_is_compiled_if_it_may_fit_or_is_asked_for(
    backend_compilations: Callable[[], int],
) -> None:
    args = params(), batch()
    jit_bytes = needed(step, *args)

    def compilations(what: Callable[[], Any]) -> int:
        before = backend_compilations()
        what()
        return backend_compilations() - before

    tight = coop_jax.jit(step, budget=int(0.55 * jit_bytes))
    compiled = compilations(lambda: tight(*args))
    asked = compilations(lambda: tight.plan(*args))
    assert (compiled, asked) == (len(tight.plan(*args).attempts), 1)
    assert compilations(lambda: tight.plan(*args)) == 0
    assert tight.plan(*args).jit_bytes == jit_bytes
    wide = coop_jax.jit(step, budget=int(0.97 * jit_bytes))
    assert compilations(lambda: wide(*args)) == len(wide.plan(*args).attempts) + 1
    assert compilations(lambda: wide.plan(*args)) == 0


def test_an_argument_that_is_returned_is_passed_on_as_under_jit() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x, y + 1, x

    planned = coop_jax.jit(fn, budget="1MiB")
    assert planned.lower(1.0, batch()).as_text() == jax.jit(fn).lower(1.0, batch()).as_text()
    x = batch()
    assert_close(planned(x, 2.0), fn(x, jnp.float32(2.0)))


def test_what_the_report_says() -> None:
    report = coop_jax.jit(step, budget=0.6).plan(params(), batch())
    lines = {line.source.rpartition(":")[0]: line for line in report.lines if line.recomputed_bytes}
    assert set(lines) == {__file__}
    text = str(report)
    assert "operations recomputed" in text
    assert "test_jit.py" in text
    assert report.predicted_bytes is not None
    assert 0 < report.predicted_bytes <= report.attempts[-1].planned_bytes


def test_a_refusal_names_a_budget_that_does_and_runs_nothing() -> None:
    args = (params(), batch())
    refused = coop_jax.jit(step, budget=0.05, donate_argnums=0)
    with pytest.raises(coop_jax.BudgetExceededError, match="smallest budget that would do") as info:
        refused(*args)
    assert not any(x.is_deleted() for x in jax.tree.leaves(args))
    report = info.value.report
    assert isinstance(report, coop_jax.CompiledBudgetReport)
    assert report.budget_bytes < report.smallest_budget_bytes < report.jit_bytes
    enough = coop_jax.jit(step, budget=report.smallest_budget_bytes, donate_argnums=0)
    assert enough.plan(*args).needed_bytes <= report.smallest_budget_bytes
    with pytest.raises(coop_jax.BudgetExceededError):
        coop_jax.jit(step, budget=report.smallest_budget_bytes // 2, donate_argnums=0)(*args)


@pytest.mark.parametrize("donated", [(), (0,)])
def test_a_refusal_advises_donation_only_where_it_helps(donated: tuple[int, ...]) -> None:
    with pytest.raises(coop_jax.BudgetExceededError) as info:
        coop_jax.jit(step, budget=0.05, donate_argnums=donated)(params(), batch())
    assert ("donate" in str(info.value).split("budget:")[0]) == (not donated)


def test_donated_arguments_are_gone_and_others_are_not() -> None:
    planned = coop_jax.jit(step, budget=0.6, donate_argnums=0)
    state, x = params(), batch()
    planned(state, x)
    assert all(w.is_deleted() for w in state)
    assert not x.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):  # as `jax.jit` has it
        planned(state, x)


def test_calls_are_dispatched_by_jax_and_traced_once_a_signature() -> None:
    traces = 0

    def counted(p: Any, x: Any) -> Any:
        nonlocal traces
        traces += 1
        return step(p, x)

    planned = coop_jax.jit(counted, budget=0.6)
    for _ in range(3):
        for rows in (ROWS, 512):
            assert_close(planned(params(), batch(rows)), jax.jit(step)(params(), batch(rows)))
    assert traces == 2
    planned.clear_cache()
    planned(params(), batch())
    assert traces == 3


def test_another_configuration_is_another_program() -> None:
    planned = coop_jax.jit(step, budget=0.7)
    planned(params(), batch())
    with jax.default_matmul_precision("highest"):
        text = planned.lower(params(), batch()).as_text()
    assert "HIGHEST" in text
    assert "HIGHEST" not in planned.lower(params(), batch()).as_text()
    with jax.enable_x64(True):
        wide = [w.astype(jnp.float64) for w in params()]
        found = planned(wide, batch().astype(jnp.float64))
        expected = jax.jit(step)(wide, batch().astype(jnp.float64))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.float64
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_static_arguments_keywords_and_host_values() -> None:
    def fn(p: Any, x: Any, power: int, *, scale: Any = 1.0) -> Any:
        return jax.grad(lambda p: (loss(p, x) ** power) * scale)(p)

    options: dict[str, Any] = {"static_argnames": "power"}
    planned = coop_jax.jit(fn, budget=0.6, **options)
    plain = jax.jit(fn, **options)
    x = np.asarray(batch())
    for power in (2, 3):
        assert_close(planned(params(), x, power), plain(params(), x, power))
        assert_close(
            planned(params(), x, power=power, scale=2), plain(params(), x, power=power, scale=2)
        )
    with pytest.raises(ValueError, match="hash"):
        planned(params(), x, [2])


def test_inside_other_transformations_it_is_the_function() -> None:
    planned = coop_jax.jit(loss, budget="300KiB")
    p, x = params(), batch(64)
    assert_close(jax.grad(planned)(p, x), jax.grad(loss)(p, x))
    assert_close(jax.jit(planned)(p, x), loss(p, x))
    found = jax.vmap(planned, (None, 0))(p, jnp.stack([x, x]))
    np.testing.assert_allclose(found, jax.vmap(loss, (None, 0))(p, jnp.stack([x, x])), rtol=1e-6)
    assert planned.eval_shape(p, x).shape == ()


def test_random_numbers_are_those_of_jit() -> None:
    def dropped(p: Any, x: Any, key: Any) -> Any:
        def of(p: Any) -> Any:
            h, masks = x, []
            for n, w in enumerate(p):
                mask = jax.random.bernoulli(jax.random.fold_in(key, n), 0.8, h.shape)
                masks.append(mask.sum(axis=0))
                h = jnp.where(mask, jnp.tanh(h @ w), 0)
            return (h**2).mean(), masks

        (_, masks), grads = jax.value_and_grad(of, has_aux=True)(p)
        zero = [g == 0 for g in grads]
        return masks, zero, jax.random.split(key)

    planned = coop_jax.jit(dropped, budget=0.6)
    args = (params(), batch(), jax.random.key(3))
    assert planned.plan(*args).recomputations > 0
    masks, zero, keys = planned(*args)
    right = jax.jit(dropped)(*args)
    jax.tree.map(np.testing.assert_array_equal, (masks, zero), right[:2])
    assert keys.dtype == right[2].dtype
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(right[2]))


def test_effects_run_once() -> None:
    seen: list[int] = []

    def noisy(p: Any, x: Any) -> Any:
        def of(p: Any) -> Any:
            h = x
            for n, w in enumerate(p):
                h = jnp.tanh(h @ w)
                jax.debug.callback(lambda _, n=n: seen.append(n), h[0, 0], ordered=True)
            return (h**2).mean()

        return jax.grad(of)(p)

    planned = coop_jax.jit(noisy, budget=0.6)
    assert planned.plan(params(), batch()).recomputations > 0
    assert_close(planned(params(), batch()), jax.jit(jax.grad(loss))(params(), batch()))
    jax.effects_barrier()
    assert seen == list(range(LAYERS))


def test_checkpoints_are_respected_unless_told() -> None:
    def checkpointed(p: Any, x: Any) -> Any:
        def of(p: Any) -> Any:
            h = x
            for w in p:
                h = jax.checkpoint(lambda h, w: jnp.tanh(jnp.tanh(h @ w) @ w))(h, w)
            return (h**2).mean()

        return jax.grad(of)(p)

    expected = jax.jit(checkpointed)(params(), batch())
    for respected in (True, False):
        planned = coop_jax.jit(checkpointed, budget=0.8, respect_checkpoints=respected)
        assert_close(planned(params(), batch()), expected)
        text = str(planned.trace(params(), batch()).jaxpr)
        assert ("checkpoint" in text or "remat" in text) == respected


def test_functions_that_are_jitted_already_are_looked_into() -> None:
    inner = jax.jit(loss)
    planned = coop_jax.jit(jax.jit(lambda p, x: jax.grad(inner)(p, x)), budget=0.6)
    assert planned.plan(params(), batch()).recomputations > 0
    assert_close(planned(params(), batch()), jax.grad(loss)(params(), batch()))


def test_control_flow_stays_as_it_is() -> None:
    def fn(p: Any, x: Any, n: Any) -> Any:
        def of(p: Any) -> Any:
            h = x
            for w in p:
                h = jax.lax.cond(n > 2, jnp.tanh, lambda h: 0.5 * h, h @ w)
            return (h**2).mean()

        grads = jax.grad(of)(p)
        return grads, jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, x))

    planned = coop_jax.jit(fn, budget=0.85)
    for n in (1, 5):
        assert_close(planned(params(), batch(), n), jax.jit(fn)(params(), batch(), n))


def test_kernels_of_pallas_are_operations() -> None:
    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    def doubled(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(double, out_shape=shape, interpret=True)(x)

    def fn(p: Any, x: Any) -> Any:
        return jax.grad(lambda p: loss(p, jax.lax.stop_gradient(doubled(x))))(p)

    planned = coop_jax.jit(fn, budget=0.7)
    assert planned.plan(params(), batch()).attempts
    assert_close(planned(params(), batch()), jax.jit(fn)(params(), batch()))


def test_results_of_every_kind() -> None:
    def fn(x: Any, key: Any) -> dict[str, Any]:
        h = x
        for _ in range(6):
            h = jnp.sin(h) @ jnp.ones((WIDTH, WIDTH))
        return {
            "argument": x,
            "twice": (h, h),
            "weak": jnp.asarray(2.0) * 1,
            "literal": 3,
            "constant": np.arange(4),
            "key": jax.random.fold_in(key, 1),
            "empty": jnp.zeros((0, 3)),
            "small": h.astype(jnp.bfloat16).sum(),
            "none": None,
        }

    args = (batch(), jax.random.key(0))
    jit_bytes = needed(fn, *args)
    planned = coop_jax.jit(fn, budget=jit_bytes - 1)
    expected = jax.jit(fn)(*args)
    try:
        found = planned(*args)
    except coop_jax.BudgetExceededError:
        pytest.skip("nothing can be computed again here to need less")
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.aval == b.aval


class Model:
    def __init__(self) -> None:
        self.params = params()

    @functools.partial(coop_jax.jit, budget=0.6, static_argnums=0)
    def grads(self, x: Any) -> Any:
        return jax.grad(loss)(self.params, x)


def test_methods() -> None:
    model = Model()
    assert_close(model.grads(batch()), jax.grad(loss)(model.params, batch()))


def test_threads_share_a_function() -> None:
    planned = coop_jax.jit(step, budget=0.6)
    expected = jax.jit(step)(params(), batch())
    found: list[Any] = []

    def call() -> None:
        found.append(planned(params(), batch()))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for each in found:
        assert_close(each, expected)


def test_shapes_alone_are_planned() -> None:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params(), batch()))
    planned = coop_jax.jit(step, budget=0.6)
    assert planned.plan(*shapes).recomputations > 0
    assert_close(planned(params(), batch()), jax.jit(step)(params(), batch()))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"budget": 0}, ValueError, "positive"),
        ({"budget": 1.5}, ValueError, "fraction"),
        ({"budget": "12 apples"}, ValueError, "apples"),
        ({"budget": 0.5, "policy": "lru"}, ValueError, "lru"),
        ({"budget": 0.5, "respect_checkpoints": "no"}, TypeError, "respect_checkpoints"),
        ({"budget": 0.5, "donate_argnums": 7}, ValueError, "donate_argnums"),
        ({"budget": 0.5, "no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_arguments_that_make_no_sense(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        coop_jax.jit(step, **options)


def test_what_is_no_array_is_refused_as_by_jit() -> None:
    planned = coop_jax.jit(step, budget=0.5)
    with pytest.raises(TypeError, match=r"not_an_array|path"):
        planned(params(), "not_an_array")
    with pytest.raises(TypeError, match="fn must be a function"):
        coop_jax.jit(3, budget=0.5)  # type: ignore[arg-type]


def test_errors_of_the_function_are_the_users_own() -> None:
    def broken(x: Any) -> Any:
        return x @ jnp.ones((3, 5))

    with pytest.raises(TypeError, match="dot_general") as ours:
        coop_jax.jit(broken, budget=0.5)(batch())
    assert "Refused" not in str(ours.value)
    assert ours.value.__cause__ is None or "guard" not in str(ours.value.__cause__)


def test_references_run_where_the_program_of_jit_fits() -> None:
    def counted(ref: Any, p: Any, x: Any) -> Any:
        ref[...] += 1
        return step(p, x)

    count = jax.new_ref(jnp.int32(0))
    planned = coop_jax.jit(counted, budget="1GiB")
    for _ in range(2):
        assert_close(planned(count, params(), batch()), jax.jit(step)(params(), batch()))
    assert count[...] == 2
    refused = coop_jax.jit(counted, budget=0.6)
    closed = coop_jax.jit(lambda p, x: counted(count, p, x), budget=0.6)
    with pytest.raises(NotImplementedError, match="mutable references"):
        refused(count, params(), batch())
    with pytest.raises(NotImplementedError, match="mutable references"):
        closed(params(), batch())
    assert count[...] == 2


def test_nans_are_found_as_under_jit() -> None:
    planned = coop_jax.jit(lambda x: jnp.log(-x), budget="1GiB")
    with jax.debug_nans(True):
        for _ in range(2):
            with pytest.raises(FloatingPointError, match="nan"):
                planned(jnp.ones(3))


def test_where_jit_is_disabled_it_is_the_function() -> None:
    planned = coop_jax.jit(loss, budget=100)
    with jax.disable_jit():
        np.testing.assert_allclose(planned(params(), batch()), loss(params(), batch()), rtol=1e-5)


@pytest.mark.parametrize("budget", [0.6, "1GiB"])
def test_what_was_traced_can_be_used_outside_of_calls(budget: Any) -> None:
    planned = coop_jax.jit(step, budget=budget)
    args = (params(), batch())
    traced = planned.trace(*args)
    leaves = jax.tree.leaves(args)
    found = jax.core.eval_jaxpr(traced.jaxpr.jaxpr, traced.jaxpr.consts, *leaves)
    expected = jax.jit(step)(*args)
    assert_close(found, jax.tree.leaves(expected))
    assert traced.lower(lowering_platforms=("tpu",)) is not None
    assert_close(jax.export.export(planned)(*args).call(*args), expected)


def test_it_is_copied_as_functions_are() -> None:
    planned = coop_jax.jit(step, budget=0.6)
    assert copy.copy(planned) is planned
    assert copy.deepcopy(planned) is planned
