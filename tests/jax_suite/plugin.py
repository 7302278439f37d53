"""A pytest plugin: runs the body of every unittest test method inside `coop_jax.remat_eager`.

Model: `unittest` calls a test's method through `TestCase._callTestMethod`. With --coop=eager that
call happens inside an eager call whose runtime evicts everything it may before each operation, so
that whatever a test reads was computed again; values of any size live in the pool (small ones
otherwise stay outside, and JAX's tests have few others). `setUp` and `tearDown` run outside. With
--coop=plain the tests run as they are, which is what the other outcomes are compared with.
A test that exceeds the budget is run again with a larger one; one that takes too long (recomputing
everything for each operation is quadratic) without eviction after every operation.

What was run, with which outcome, and how many operations, evictions and rematerialisations there
were is written to the file that --coop-results names.
"""

from __future__ import annotations

import json
import pathlib
import signal
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

import coop_jax  # before anything starts JAX's CPU backend
from coop_jax._src.eager import operation_cache
from coop_jax._src.eager.trace import tracers

BUDGETS = ("64MiB", "1GiB", "6GiB")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("coop")
    group.addoption("--coop", choices=("plain", "eager"), default="plain")
    group.addoption("--coop-results", type=pathlib.Path, help="JSON file to write")
    group.addoption("--coop-policy", default="coop")
    group.addoption("--coop-seconds", type=float, default=120.0, help="for one test")
    group.addoption("--coop-shard", default="0/1", help="i/n: every n-th test from the i-th on")


def pytest_configure(config: pytest.Config) -> None:
    jax.jit(lambda: 0)()  # opens the compilation cache, which JAX's tests watch
    # Helpers of JAX's tests that its wheel does not have.
    jax._src.__path__.append(str(config.rootpath / "jax" / "_src"))  # type: ignore[attr-defined]
    config.pluginmanager.register(Suite(config), "coop-jax-suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, count = map(int, config.getoption("--coop-shard").split("/"))
    kept = items[number::count]
    config.hook.pytest_deselected(items=[x for i, x in enumerate(items) if i % count != number])
    items[:] = kept


class _TooLongError(BaseException):  # no `except Exception` of a test may catch it
    pass


class Suite:
    """Outcomes and counts of one run."""

    def __init__(self, config: pytest.Config):
        self._eager = config.getoption("--coop") == "eager"
        self._path: pathlib.Path | None = config.getoption("--coop-results")
        self._seconds: float = config.getoption("--coop-seconds")
        self._policy: str = config.getoption("--coop-policy")
        self._runtimes: dict[tuple[str, bool], coop_jax.Runtime] = {}
        self._tests: dict[str, dict[str, Any]] = {}
        self._current: dict[str, Any] = {}
        self._totals = {"operations": 0, "evictions": 0, "rematerialisations": 0}
        if self._eager:
            operation_cache._is_small = lambda nbytes: nbytes == 0
        unittest.TestCase._callTestMethod = self._method()  # type: ignore[attr-defined]
        _ask_contents_for_their_class()

    def _method(self) -> Callable[..., None]:
        suite = self

        def call(_: unittest.TestCase, method: Callable[[], None]) -> None:
            if not suite._eager:
                with _alarm(suite._seconds):
                    method()
                return
            try:
                with _alarm(suite._seconds):
                    suite._run(method, forced=True)
            except _TooLongError:
                suite._current["forced"] = False
                with _alarm(suite._seconds):
                    suite._run(method, forced=False)

        return call

    def _run(self, method: Callable[[], None], *, forced: bool) -> None:
        for budget in BUDGETS:
            runtime = self._runtimes.get((budget, forced))
            if runtime is None:
                policy = coop_jax.Policy(self._policy, evict_always=forced)
                runtime = self._runtimes[budget, forced] = coop_jax.Runtime(budget, policy)
            before = runtime.stats()
            try:
                coop_jax.remat_eager(method, runtime=runtime)()
            except coop_jax.BudgetExceededError:
                if budget == BUDGETS[-1]:
                    raise
            else:
                return
            finally:
                stats = runtime.stats()
                self._current["budget"] = budget
                for name in self._totals:
                    more = getattr(stats, name) - getattr(before, name)
                    self._totals[name] += more
                    self._current[name] = more

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._current = self._tests[item.nodeid.rsplit("/", 1)[-1]] = {"outcome": "none"}
        begin = time.perf_counter()
        result = yield
        self._current["seconds"] = round(time.perf_counter() - begin, 3)
        return result  # type: ignore[return-value]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._current["outcome"] = report.outcome
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                text = str(crash.message) if crash is not None else str(report.longrepr)
                self._current["error"] = text[:2000]

    def pytest_sessionfinish(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"totals": self._totals, "tests": self._tests}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._eager:
            terminalreporter.line(", ".join(f"{n} {name}" for name, n in self._totals.items()))


def _ask_contents_for_their_class() -> None:
    """An eager value is not an `ArrayImpl` or `PRNGKeyArray`, the array behind it is one."""
    assert_is_instance = unittest.TestCase.assertIsInstance

    def assert_contents(self: unittest.TestCase, value: Any, kind: Any, msg: Any = None) -> None:
        if isinstance(value, tracers.EagerTracer) and not isinstance(value, kind):
            value = value.concrete()
        assert_is_instance(self, value, kind, msg)

    unittest.TestCase.assertIsInstance = assert_contents  # type: ignore[method-assign]


class _alarm:  # noqa: N801 - a context manager that reads as a function
    """Ends the test of this thread after so many seconds."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._usable = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._usable:
            signal.signal(signal.SIGALRM, self._expired)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._usable:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _expired(self, *_: object) -> None:
        raise _TooLongError(f"a test took more than {self._seconds} seconds")
