"""Threads that outlive the main thread, work at exit, tasks, forks, runtimes that were closed."""

from __future__ import annotations

import asyncio
import sys
import threading

import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.execution.runtime import current_runtime
from tests.testing.processes import output_of

STEP = """
import atexit, os, sys, threading, jax, jax.numpy as jnp, coop_jax
def update(w, x):
    return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
def train(front_end, steps=12):
    w = jnp.ones((32, 32))
    step = getattr(coop_jax, front_end)(update, budget="1MiB")
    for _ in range(steps):
        w = step(w, jnp.ones((8, 32)))
    print("done", float(w.sum()) > 0, flush=True)
"""


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_a_thread_that_outlives_the_main_thread(front_end: str) -> None:
    script = f"threading.Thread(target=train, args=({front_end!r},)).start()"
    assert output_of(STEP + script) == "done True\n"


def test_a_thread_that_begins_once_the_main_thread_has_ended() -> None:
    script = (
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    train('run')\n"
        "    train('remat_eager')\n"
        "threading.Thread(target=late).start()"
    )
    assert output_of(STEP + script) == "done True\ndone True\n"


def test_work_at_exit() -> None:
    script = "atexit.register(train, 'run')\natexit.register(train, 'remat_eager')"
    assert output_of(STEP + script) == "done True\ndone True\n"


def test_a_runtime_is_current_in_its_own_task() -> None:
    first, second = coop_jax.Runtime("1MiB"), coop_jax.Runtime("2MiB")
    seen: list[coop_jax.Runtime | None] = []

    async def enter(runtime: coop_jax.Runtime, both: asyncio.Barrier) -> None:
        with runtime:
            await both.wait()
            seen.append(current_runtime())
            step = coop_jax.run(lambda x: x @ x)
            step(jnp.ones((4, 4)))
            assert step.runtime is runtime
            await both.wait()
        assert current_runtime() is None

    async def main() -> None:
        both = asyncio.Barrier(2)
        await asyncio.gather(enter(first, both), enter(second, both))

    asyncio.run(main())
    assert set(seen) == {first, second}
    assert current_runtime() is None


def test_a_task_that_begins_inside_has_it_and_a_thread_has_not() -> None:
    seen: list[coop_jax.Runtime | None] = []

    async def look() -> None:
        seen.append(current_runtime())

    async def main(runtime: coop_jax.Runtime) -> None:
        with runtime:
            task = asyncio.create_task(look())
        await task

    runtime = coop_jax.Runtime("1MiB")
    asyncio.run(main(runtime))
    assert seen == [runtime]
    with runtime:
        thread = threading.Thread(target=lambda: seen.append(current_runtime()))
        thread.start()
        thread.join()
    assert seen[1] is None or sys.version_info >= (3, 14)  # which may hand on the context


def test_the_innermost_is_current_whatever_the_order_of_ends() -> None:
    first, second = coop_jax.Runtime("1MiB"), coop_jax.Runtime("1MiB")
    assert first.__enter__() is first
    second.__enter__()
    first.__exit__(None, None, None)
    assert current_runtime() is second
    second.__exit__(None, None, None)
    assert current_runtime() is None


def test_a_runtime_may_be_closed_twice_and_says_that_it_was() -> None:
    runtime = coop_jax.Runtime("1MiB")
    step = coop_jax.run(lambda x: x + 1, runtime=runtime)
    kept = step(jnp.ones(1000))
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeError, match="was closed"):
        step(kept)
    assert float(kept[0]) == 2.0


def test_a_forked_process_does_not_wait_for_a_thread_that_it_has_not() -> None:
    script = """
import warnings; warnings.simplefilter("ignore")
from coop_jax import _core
exclusive, begun, end = _core.Exclusive(), threading.Event(), threading.Event()
def hold():
    begun.set()
    end.wait()
thread = threading.Thread(target=lambda: _core.guarded(exclusive, None, None, hold))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    _core.guarded(exclusive, None, None, print, "child")
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
end.set()
thread.join()
"""
    assert output_of(STEP + script) == "child\n"
