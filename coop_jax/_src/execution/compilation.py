"""Compiling the operations of a plan: in parallel, each form once, with progress; or beside calls.

Model: operations are lowered one after the other by the caller, as JAX's settings for a thread hold
there; XLA compiles them on other threads meanwhile. Operations of equal structure share a kernel,
so that equal layers are compiled once. JAX's persistent cache, where the user turned it on, keeps
all of them.

Beside calls next to nothing is queued: a process that ends waits for what XLA is at.

Thread rule: one caller at a time (the runtime's lock). Cost: what XLA takes, over the cores; beside
calls, over half of them.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread  # at once: it cannot be imported while the interpreter ends
import functools
import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import jax

from coop_jax._src.execution import constants, executable_cache
from coop_jax._src.execution.executables import Executable
from coop_jax._src.ir.kernels import Kernel, KernelCache
from coop_jax._src.util.incremental_work import Pieces
from coop_jax._src.util.interrupts import check_interrupts
from coop_jax._src.util.progress import progress_bar

Wanted = tuple[Kernel, tuple[int, ...], str]  # a kernel, its output modes, its source line

T = TypeVar("T")


def compile_together(wanted: Iterable[Wanted], device: jax.Device, cache: KernelCache) -> None:
    """Compiles what is not compiled yet, all at once.

    Args:
      wanted: kernels, their output modes, and where they are in the user's code.
      device: for which device.
      cache: where kernels live.

    Raises:
      Whatever compiling one of them raises, with a note that names it.
      KeyboardInterrupt: one arrived; what XLA is at is waited for.
    """
    missing = _missing(wanted, device)
    if not missing:
        return
    begin = time.perf_counter()
    tuned = constants.TUNED
    most = min(os.cpu_count() or 1, tuned.compile_max_threads)
    workers = most if len(missing) > tuned.compile_few else 1
    with (
        concurrent.futures.ThreadPoolExecutor(workers, "coop_jax-compile") as pool,
        progress_bar(2 * len(missing), "compiling operations") as bar,
    ):
        running: dict[concurrent.futures.Future[None], tuple[Kernel, Executable, str]] = {}
        try:
            for kernel, modes, source in missing:
                check_interrupts()
                try:
                    executable = executable_cache.lowered(kernel, modes, device)
                except Exception as error:
                    error.add_note(f"coop_jax: the operation is at {source}")
                    raise
                running[_begun(pool, executable.compile)] = kernel, executable, source
                bar.update()
            for future in concurrent.futures.as_completed(running):
                kernel, executable, source = running[future]
                try:
                    future.result()
                except Exception as error:
                    error.add_note(f"coop_jax: the operation is at {source}")
                    raise
                executable_cache.keep(kernel, executable, device, cache)
                bar.update()
                check_interrupts()
        finally:
            for future in running:
                future.cancel()
            with cache.lock:
                cache.compile_seconds += time.perf_counter() - begin


def compile_gradually(
    wanted: Iterable[Wanted], device: jax.Device, cache: KernelCache
) -> Pieces[None]:
    """Compiles what is not compiled yet, piece by piece, while calls go on.

    Args:
      wanted: as for `compile_together`.
      device: for which device.
      cache: where kernels live.

    Raises:
      Whatever compiling one of them raises.
    """
    running: dict[concurrent.futures.Future[None], tuple[Kernel, Executable]] = {}

    def keep_compiled() -> None:
        for future in [f for f in running if f.done()]:
            kernel, executable = running.pop(future)
            future.result()
            executable_cache.keep(kernel, executable, device, cache)

    for kernel, modes, _ in _missing(wanted, device):
        executable = executable_cache.lowered(kernel, modes, device)
        yield ()
        while len(running) >= _workers_beside_calls():
            yield list(running)
            keep_compiled()
        running[_begun(_pool_beside_calls(), executable.compile)] = kernel, executable
    while running:
        yield list(running)
        keep_compiled()


def beside_calls(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Does something where operations are compiled beside calls; the process waits for its end."""
    return _begun(_pool_beside_calls(), work)


def _begun(
    pool: concurrent.futures.ThreadPoolExecutor, work: Callable[[], T]
) -> concurrent.futures.Future[T]:
    """Work on a thread of the pool; done here where the main thread has ended."""
    try:
        return pool.submit(work)
    except RuntimeError:  # no pool begins anything any more
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future


def _missing(wanted: Iterable[Wanted], device: jax.Device) -> list[Wanted]:
    """What is not compiled yet, each once."""
    found = {
        (id(kernel), modes): (kernel, modes, source)
        for kernel, modes, source in wanted
        if executable_cache.known_executable(kernel, modes, device) is None
    }
    return list(found.values())


def _workers_beside_calls() -> int:
    return min(max(1, (os.cpu_count() or 1) // 2), 8)


@functools.cache
def _pool_beside_calls() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(
        _workers_beside_calls(), "coop_jax-compile-beside-calls"
    )
