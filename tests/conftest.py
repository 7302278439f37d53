"""What all tests share: one compilation cache, counted compilations, comparison of bits.

`coop_jax` is imported before anything starts JAX's CPU backend, as it asks its users to do.
Warnings are errors (see pyproject.toml). Compiled operations are kept on disk, in
JAX_COMPILATION_CACHE_DIR or for this session only, so that subprocesses and further budgets do not
compile them again.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="coop-jax-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import coop_jax  # noqa: I001 - before the backend starts
import jax
import numpy as np
import pytest
from faults import Operations

_backend_compilations = 0


def _count(event: str, duration_secs: float, **_: Any) -> None:
    global _backend_compilations
    if event == "/jax/core/compile/backend_compile_duration":
        _backend_compilations += 1


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.fixture
def backend_compilations() -> Callable[[], int]:
    """How many programs XLA has compiled (or loaded from the cache) in this process so far."""
    return lambda: _backend_compilations


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Operations:
    """Counts operations as they run; may make one of them fail."""
    return Operations(monkeypatch)


@pytest.fixture(autouse=True)
def no_runtime_left_entered() -> Iterator[None]:
    """A test that leaves a runtime entered would change what the next ones measure."""
    yield
    from coop_jax._src.runtime import current_runtime

    assert current_runtime() is None


def bits_of(tree: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of every leaf: equal only if all bits are, NaNs included."""
    leaves = []
    for leaf in jax.tree_util.tree_leaves(tree):
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        leaf = np.asarray(leaf)
        leaves.append((str(leaf.dtype), leaf.shape, leaf.tobytes()))
    return leaves


def assert_same_bits(found: Any, expected: Any) -> None:
    """Fails, naming the first leaf that differs."""
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    for number, (a, b) in enumerate(zip(bits_of(found), bits_of(expected), strict=True)):
        assert a[:2] == b[:2], f"leaf {number}: dtype and shape {a[:2]}, expected {b[:2]}"
        assert a[2] == b[2], f"leaf {number} of {a[:2]}: bits differ"


def smallest_feasible(call: Callable[[int], Any], wanted_bytes: int, most_bytes: int) -> int:
    """The least budget found from `wanted_bytes` up at which `call` succeeds.

    `BudgetExceededError` names the smallest budget where the program is known ahead; elsewhere this
    goes up in steps of 2.5% of `most_bytes`.
    """
    budget_bytes = wanted_bytes
    while True:
        try:
            call(budget_bytes)
        except coop_jax.BudgetExceededError as error:
            assert budget_bytes < 2 * most_bytes, "twice the unbudgeted peak does not suffice"
            known = error.report.smallest_budget_bytes
            budget_bytes = max(known or 0, budget_bytes + most_bytes // 40)
        else:
            return budget_bytes
