"""Compiling the operations of a plan: in parallel, each form once, with progress.

Model: operations are lowered one after the other by the caller, as JAX's settings for a thread hold
there; XLA compiles them on other threads meanwhile. Operations of equal structure share a kernel,
so that equal layers are compiled once. JAX's persistent cache, where the user turned it on, keeps
all of them.

Thread rule: one caller at a time (the runtime's lock). Cost: what XLA takes, over the cores.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Iterable

import jax

from coop_jax._src.executables import Executable
from coop_jax._src.kernels import Kernel, KernelCache
from coop_jax._src.progress import progress_bar

Wanted = tuple[Kernel, tuple[int, ...], str]  # a kernel, its output modes, its source line

_FEW = 4  # so many are not worth threads


def compile_together(wanted: Iterable[Wanted], device: jax.Device, cache: KernelCache) -> None:
    """Compiles what is not compiled yet, all at once.

    Args:
      wanted: kernels, their output modes, and where they are in the user's code.
      device: for which device.
      cache: where kernels live.

    Raises:
      Whatever compiling one of them raises, with a note that names it.
    """
    missing = {
        (id(kernel), modes): (kernel, modes, source)
        for kernel, modes, source in wanted
        if kernel.known_executable(modes, device) is None
    }
    if not missing:
        return
    workers = min(os.cpu_count() or 1, 8) if len(missing) > _FEW else 1
    with (
        concurrent.futures.ThreadPoolExecutor(workers, "coop_jax-compile") as pool,
        progress_bar(2 * len(missing), "compiling operations") as bar,
    ):
        running: dict[concurrent.futures.Future[None], tuple[Kernel, Executable, str]] = {}
        try:
            for kernel, modes, source in missing.values():
                try:
                    executable = kernel.lowered(modes, device)
                except Exception as error:
                    error.add_note(f"coop_jax: the operation is at {source}")
                    raise
                running[pool.submit(executable.compile)] = kernel, executable, source
                bar.update()
            for future in concurrent.futures.as_completed(running):
                kernel, executable, source = running[future]
                try:
                    future.result()
                except Exception as error:
                    error.add_note(f"coop_jax: the operation is at {source}")
                    raise
                kernel.keep(executable, device, cache)
                bar.update()
        finally:
            for future in running:
                future.cancel()
