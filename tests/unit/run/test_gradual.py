"""Work in pieces: how much of a call it takes, what it waits for, how it ends."""

from __future__ import annotations

import concurrent.futures
import math
import textwrap
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.run import specialization, tiering
from coop_jax._src.run.specialization import Tier
from coop_jax._src.util import incremental_work
from coop_jax._src.util.incremental_work import GradualWork, Pieces
from tests.testing import models
from tests.testing.comparison import assert_same_bits
from tests.testing.processes import output_of
from tests.testing.segmented import launches, signature_of, trained


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time go by, for what measures it."""
    now = [0.0]
    monkeypatch.setattr(incremental_work, "perf_counter", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    return spend


def test_work_takes_its_share_and_makes_up_for_more(spend: Callable[[float], None]) -> None:
    done: list[int] = []

    def pieces() -> Pieces[str]:
        for k, seconds in enumerate((0.25, 0.25, 3.0, 0.25)):
            spend(seconds)
            done.append(k)
            yield ()
        return "all"

    work = GradualWork(pieces())
    seen = []
    for _ in range(9):
        work.go_on(0.5)
        seen.append(len(done))
    # The third piece takes six shares; so five more calls get none.
    assert seen == [2, 3, 3, 3, 3, 3, 3, 4, 4]
    assert work.done
    assert work.result == "all"
    work.go_on(0.5)
    work.finish()


def test_what_is_not_used_is_not_saved(spend: Callable[[float], None]) -> None:
    waited: Future[None] = Future()
    count = 0

    def pieces() -> Pieces[None]:
        nonlocal count
        yield [waited]
        for _ in range(100):
            spend(1.0)
            count += 1
            yield ()

    work = GradualWork(pieces())
    for _ in range(50):
        work.go_on(2.0)
    assert count == 0
    waited.set_result(None)
    work.go_on(2.0)
    assert count == 2


def test_work_waits_for_one_of_several() -> None:
    futures: list[Future[int]] = [Future(), Future()]

    def pieces() -> Pieces[int]:
        yield futures
        return next(f.result() for f in futures if f.done())

    work = GradualWork(pieces())
    for _ in range(3):
        work.go_on(1.0)
    assert not work.done
    futures[1].set_result(7)
    work.go_on(1.0)
    assert work.result == 7


def test_work_can_be_finished_at_once() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def pieces() -> Pieces[int]:
            total = 0
            for k in range(3):
                future = pool.submit(lambda k=k: k)
                yield [future]
                total += future.result()
            return total

        work = GradualWork(pieces())
        work.go_on(0.0)
        assert not work.done
        work.finish()
        assert work.result == 3


@pytest.mark.parametrize("finish", [False, True])
def test_an_error_ends_the_work(finish: bool) -> None:
    def pieces() -> Pieces[None]:
        yield ()
        raise KeyboardInterrupt

    work = GradualWork(pieces())
    with pytest.raises(KeyboardInterrupt):
        work.finish() if finish else work.go_on(1.0)
    assert work.done
    assert work.result is None


on_cpu = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="segments are for XLA's CPU compiler"
)
not_forced = pytest.mark.unless_forced("nothing is segmented then")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are made from the sixth call on, beside calls: each does three pieces."""

    def go_on(work: GradualWork[Any], seconds: float) -> None:
        assert 0 < seconds < math.inf
        for _ in range(3):
            if not work.done and work._may_go_on():
                work._next()

    monkeypatch.delenv("COOP_JAX_VERIFY", raising=False)
    monkeypatch.delenv("COOP_JAX_SEGMENTS", raising=False)
    monkeypatch.setattr(tiering, "_is_time", lambda tier, launches: tier.calls >= 5)
    monkeypatch.setattr(GradualWork, "go_on", go_on)


class Steps:
    """A training that goes on until something is so."""

    def __init__(self, program: models.TrainingProgram, **kwargs: Any):
        self._program = program
        self.step = coop_jax.run(program.step, donate_argnums=0, fusion=True, **kwargs)
        self.state: Any = jax.tree.map(jnp.array, program.init)
        self.losses: list[Any] = []

    @property
    def tier(self) -> Tier:
        return signature_of(self.step).tier

    def until(self, so: Callable[[], bool]) -> None:
        for _ in range(20_000):
            batch = self._program.batch(len(self.losses))
            self.state, loss = self.step(self.state, batch)
            self.losses.append(loss)
            if so():
                return
        raise AssertionError("it never was so")


@on_cpu
@not_forced
@pytest.mark.parametrize("budget", [None, 0.6])
def test_segments_are_made_while_calls_go_on(
    budget: float | None, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = models.gpt()
    steps = Steps(program, budget=budget)
    steps.until(lambda: steps.tier.preparing is not None)
    begun = len(steps.losses)
    assert begun == 6
    steps.until(lambda: steps.tier.settled)
    assert steps.tier.preparing is None
    assert len(steps.losses) > begun + 1  # nobody waited for it
    assert steps.tier.segmented is not None
    made = len(steps.losses)
    steps.until(lambda: len(steps.losses) == made + 3)
    now, before = launches(steps.step)
    assert now < before
    stats = steps.step.runtime.stats()
    assert stats.budget_bytes is None or stats.peak_bytes <= stats.budget_bytes

    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")
    expected, _ = trained(program, len(steps.losses))
    assert_same_bits((steps.state, steps.losses), expected)


@on_cpu
@not_forced
def test_it_can_be_stopped_and_hurried(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(models.gpt())
    steps.until(lambda: steps.tier.preparing is not None)
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")

    def refused(work: GradualWork[Any], seconds: float) -> None:
        raise AssertionError("it goes on")

    monkeypatch.setattr(GradualWork, "go_on", refused)
    begun = len(steps.losses)
    steps.until(lambda: len(steps.losses) == begun + 20)
    assert steps.tier.preparing is not None
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "1")
    steps.until(lambda: len(steps.losses) == begun + 21)
    assert steps.tier.settled
    assert steps.tier.segmented is not None


@on_cpu
@not_forced
def test_what_cannot_be_compiled_beside_calls_goes_on_alone(
    soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(models.mlp())
    steps.until(lambda: len(steps.losses) == 5)

    def fails(*args: Any) -> Pieces[None]:
        yield ()
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory while compiling")

    monkeypatch.setattr(specialization, "compile_gradually", fails)
    steps.until(lambda: steps.tier.settled)
    assert steps.tier.segmented is None
    steps.until(lambda: len(steps.losses) > 20)


@on_cpu
@not_forced
def test_a_process_may_end_while_segments_are_made() -> None:
    code = """
        import os
        os.environ.pop("COOP_JAX_SEGMENTS", None)
        os.environ.pop("COOP_JAX_VERIFY", None)
        import threading, time
        import coop_jax
        from tests.testing import models
        from coop_jax._src.run import tiering
        from coop_jax._src.execution.executables import Executable
        tiering._is_time = lambda tier, launches: tier.calls >= 5
        program = models.gpt()
        step = coop_jax.run(program.step, budget=0.6, donate_argnums=0, fusion=True)
        state, _ = step(program.init, program.batch(0))
        begun, compiled = threading.Event(), Executable.compile
        def slowly(self):
            begun.set()
            time.sleep(0.5)
            compiled(self)
        Executable.compile = slowly
        while not begun.is_set():
            state, loss = step(state, program.batch(0))
        (signature,) = step._signatures.values()
        print("ends", signature.tier.preparing is not None)
    """
    assert output_of(textwrap.dedent(code)) == "ends True\n"
