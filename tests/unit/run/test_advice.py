"""What an error advises fits the call that raises it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.util.errors import BudgetReport

PARAMS = {"first": jnp.eye(64) * 0.5, "second": jnp.eye(64) * 0.25}
X = jnp.ones((512, 64))


def _step(params: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        h = x
        for _ in range(4):
            h = jnp.tanh(h @ params["first"]) @ params["second"]
        return (h**2).mean()

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _error(step: Any, *args: Any) -> coop_jax.BudgetExceededError:
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        step(*args)
    return caught.value


def test_donation_is_advised_where_it_could_help() -> None:
    step = coop_jax.run(_step, budget="64KiB")
    assert "donate_argnums=" in str(_error(step, PARAMS, X))
    for args in ({"donate_argnums": 0}, {"donate_argnames": ("params", "x")}):
        error = _error(coop_jax.run(_step, budget="64KiB", **args), PARAMS, X)  # type: ignore[arg-type]
        assert not error.report.donatable
        assert "donate_argnums" not in str(error)
    total = coop_jax.run(lambda x: jnp.sort(x @ x.T).sum(), budget="64KiB")
    # Nothing that it returns is like what it is given.
    assert "donate_argnums" not in str(_error(total, X))


def test_donation_is_not_advised_where_there_is_none() -> None:
    error = _error(coop_jax.remat_eager(_step, budget="64KiB"), PARAMS, X)
    assert "donate_argnums" not in str(error)


@pytest.mark.parametrize("donate", [None, 0])
def test_programs_that_depend_on_values(donate: int | None) -> None:
    def branches(x: jax.Array) -> jax.Array:
        y = jax.lax.cond(x.sum() > 0, lambda x: jnp.sort(x) * 2, lambda x: x, x)
        return jnp.cumsum(jnp.sin(y), axis=1) @ (y.T @ y)

    error = _error(coop_jax.run(branches, budget="160KiB", donate_argnums=donate), X)
    assert error.report.donatable == (donate is None)
    assert ("donate_argnums" in str(error)) == (donate is None)


def test_shares_and_what_is_pinned() -> None:
    step = coop_jax.run(_step, budget="192KiB")
    report = _error(step, PARAMS, X).report
    peak = step.simulate(PARAMS, X).unbudgeted_peak_bytes
    assert report.unbudgeted_peak_bytes == peak
    text = str(_error(step, PARAMS, X))
    assert f"({peak} bytes), of which the budget is {196608 / peak:.0%}" in text
    pinned = {storage.what: storage for storage in report.pinned}
    assert pinned["argument x"].nbytes == X.nbytes
    assert (pinned["argument x"].shape, pinned["argument x"].dtype) == (X.shape, "float32")
    assert f"({X.nbytes} bytes): argument x float32[512,64]; the caller keeps it" in text
    sizes = [storage.nbytes for storage in report.held]
    assert sizes == sorted(sizes, reverse=True)
    kept = coop_jax.run(lambda p: (X.sum() + p["second"], jnp.sort(p["first"])), budget="16KiB")
    report = _error(kept, PARAMS).report
    names = {storage.what for storage in (*report.held, *report.requested)}
    assert {"argument p['first']", "array that the function closes over"} <= names


def test_numbers_do_not_contradict_each_other() -> None:
    report = BudgetReport(100, 1000, 900, 900, 10, 10, "operation 'sin'", "", 800, donatable=True)
    text = str(coop_jax.BudgetExceededError(report))
    assert "at least that" not in text
    assert "not known with what lies in the pool now" in text
    for smallest in (None, 1200):
        error = coop_jax.BudgetExceededError(
            BudgetReport(100, 1000, 900, 900, 10, 10, "operation 'sin'", "", smallest)
        )
        assert ("at least that" in str(error)) == (smallest is not None)
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert str(again) == str(error)


def _branch(x: jax.Array) -> Any:
    return x * 2 if x.sum() > 0 else x


def _number(x: jax.Array) -> Any:
    return x * int(x.sum())


def _mask(x: jax.Array) -> Any:
    return x[x > 0].sum()


@pytest.mark.parametrize("fn", [_branch, _number, _mask])
def test_functions_that_ask_for_values(fn: Any) -> None:
    for call in (
        coop_jax.run(fn),
        lambda x: coop_jax.simulate(fn, x),
        lambda x: jax.grad(lambda x: coop_jax.run(fn)(x).sum())(x),
    ):
        with pytest.raises((jax.errors.ConcretizationTypeError, IndexError)) as caught:
            call(X)
        (note,) = [n for n in caught.value.__notes__ if "coop_jax" in n]
        assert "coop_jax.remat_eager" in note
    assert coop_jax.remat_eager(fn)(X) is not None
