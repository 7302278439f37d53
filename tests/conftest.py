"""What all tests share: one compilation cache, counted compilations, switches of a run.

`coop_jax` is imported before anything starts JAX's CPU backend, as it asks its users to do.
Warnings are errors (see pyproject.toml). Compiled operations are kept on disk, in
JAX_COMPILATION_CACHE_DIR or for this session only, so that subprocesses and further budgets do not
compile them again.

`--force-eviction` runs the tests with everything evicted before each operation. A test in which
something was evicted must then see recomputation, or it proves nothing there: it fails unless it is
marked `no_recomputation(reason)`. (Where nothing was, there was nothing that may be: arguments,
results, small values.) What cannot hold in that mode (no evictions in a large budget, exact counts)
is marked `unless_forced(reason)` and skipped. `--verify` compares every recomputed value with its
first value.

Operations are not fused where a test does not say so, since small programs then have several to
evict. With `--fusion` they are, and what cannot hold then is marked `unless_fused(reason)`. All
three set environment variables, so subprocesses follow. Markers are declared in pyproject.toml, as
tests of the examples have them, too.

Operations run in segments only where a test says so: when they come of themselves depends on time.

Searches for better plans end after a few rounds, the examples' tests included. Tests of what a
search finds ask for `full_search`. What lives when a test begins is not looked at by Python's
garbage collector any more: JAX, Flax and pytest keep so much that a quarter of the time went there.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="coop-jax-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("COOP_JAX_SEGMENTS", "0")
os.environ.setdefault("COOP_JAX_STORED_PLANS", "0")  # what plans is what is tested
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest

from coop_jax._src.execution import runtime as runtimes
from coop_jax._src.execution.stats import CallCounts
from coop_jax._src.execution.verification import eviction_is_forced
from coop_jax._src.ir import kernels
from coop_jax._src.planning import constants
from coop_jax._src.run import tiering

pytest.register_assert_rewrite("tests.testing")

from tests.testing.faults import Operations  # noqa: E402 - its assertions are rewritten

_TUNED = constants.TUNED
constants.TUNED = dataclasses.replace(_TUNED, most_plans=8 * _TUNED.round_plans)

_backend_compilations = 0
_FORCED, _VERIFY = "COOP_JAX_FORCE_EVICTION", "COOP_JAX_VERIFY"
_FUSION = "COOP_JAX_FUSION"
_forced = pytest.StashKey[bool]()
_ran = {"evictions": 0, "rematerialisations": 0}  # in all runtimes of this process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--force-eviction", action="store_true", help="evict before each operation")
    parser.addoption("--verify", action="store_true", help="compare recomputed values")
    parser.addoption("--fusion", action="store_true", help="fuse operations wherever run is used")
    parser.addoption("--programs", type=int, default=12, help="random programs to try")
    parser.addoption("--first-seed", type=int, default=0, help="the seed of the first of them")


def pytest_configure(config: pytest.Config) -> None:
    for option, name in (("--force-eviction", _FORCED), ("--verify", _VERIFY)):
        if config.getoption(option):
            os.environ[name] = "1"
    os.environ[_FUSION] = "1" if config.getoption("--fusion") else "0"
    config.stash[_forced] = eviction_is_forced()
    count = runtimes.Runtime.count

    def counted(runtime: runtimes.Runtime, call: CallCounts) -> None:
        for name in _ran:
            _ran[name] += getattr(call, name)
        count(runtime, call)

    runtimes.Runtime.count = counted  # type: ignore[method-assign]
    config.pluginmanager.register(_Freezing())


class _Freezing:
    """As a plugin, for the tests of the examples, too."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        gc.collect()
        gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--first-seed")
        count = metafunc.config.getoption("--programs")
        metafunc.parametrize("program_seed", range(first, first + count))
    if "loop_seed" in metafunc.fixturenames:  # each takes as long as three programs
        first = metafunc.config.getoption("--first-seed")
        count = -(-metafunc.config.getoption("--programs") // 3)
        metafunc.parametrize("loop_seed", range(first, first + count))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Not when a test is set up: that hook is not called for those of the examples.
    for item in items:
        marker = item.get_closest_marker("unless_forced")
        if marker is not None and item.config.stash[_forced]:
            item.add_marker(pytest.mark.skip(f"eviction is forced: {marker.args[0]}"))
        marker = item.get_closest_marker("unless_fused")
        if marker is not None and item.config.getoption("--fusion"):
            item.add_marker(pytest.mark.skip(f"operations are fused: {marker.args[0]}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = dict(_ran)
    yield
    if not item.config.stash[_forced] or item.get_closest_marker("no_recomputation") is not None:
        return
    evicted, recomputed = (_ran[name] - before[name] for name in _ran)
    assert not evicted or recomputed, f"{evicted} values were evicted, and none came back"


def _count(event: str, duration_secs: float, **_: Any) -> None:
    global _backend_compilations
    if event == "/jax/core/compile/backend_compile_duration":
        _backend_compilations += 1


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.fixture
def by_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are chosen by estimates alone: neither by what calls took nor by what tests before
    made known of operations. Who verifies looks at each operation, and has none.
    """
    monkeypatch.delenv(_VERIFY, raising=False)
    monkeypatch.setattr(kernels, "_caches", {})
    monkeypatch.setattr(tiering, "_scale", lambda *_: 1.0)


@pytest.fixture
def full_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for plans take as long as they do for users."""
    monkeypatch.setattr(constants, "TUNED", _TUNED)


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
    from coop_jax._src.execution.runtime import current_runtime

    assert current_runtime() is None
