"""Comparison of `run` with `jax.jit`, without a budget and under the smallest that will do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import coop_jax
from tests.testing.comparison import assert_same_bits

X = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32) / 6


def describe(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: (x.shape, str(x.dtype), bool(getattr(x, "weak_type", False))), tree
    )


def plain(tree: Any) -> Any:
    """As NumPy, keys as their data."""

    def one(x: Any) -> Any:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return np.asarray(jax.random.key_data(x))
        return np.asarray(x)

    return jax.tree.map(one, tree)


def check(fn: Callable[..., Any], *args: Any, exact: bool = False, **options: Any) -> Any:
    """Runs `fn` both ways; returns what `run` returned."""
    static = options.get("static_argnums", ())
    expected = jax.jit(fn, static_argnums=static)(*args)
    step = coop_jax.run(fn, **options)
    found = [step(*args) for _ in range(2)]
    assert describe(found[0]) == describe(expected)
    assert jax.tree.structure(found[0]) == jax.tree.structure(expected)

    def compare(a: np.ndarray, b: np.ndarray) -> None:
        if exact or a.dtype.kind not in "fcV":
            np.testing.assert_array_equal(a, b)
        else:
            tolerance = 2e-2 if a.dtype.itemsize == 2 else 1e-4
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance
            )

    jax.tree.map(compare, plain(found[0]), plain(expected))
    reference = plain(found[0])
    assert_same_bits(plain(found[1]), reference)
    budget = 1
    for _ in range(8):
        tight = coop_jax.run(fn, budget=budget, **options)
        try:
            again = [plain(tight(*args)) for _ in range(2)]
            break
        except coop_jax.BudgetExceededError as error:
            known = error.report.smallest_budget_bytes
            budget = max(known or 0, budget + budget // 8)
    else:
        # Not known ahead (control flow on values): what it took without a budget is enough.
        tight = coop_jax.run(fn, budget=2 * step.runtime.stats().peak_bytes, **options)
        again = [plain(tight(*args)) for _ in range(2)]
    for one in again:
        assert_same_bits(one, reference)
    assert tight.runtime.stats().peak_bytes <= tight.runtime.budget_bytes
    del again
    return found[0]
