"""What a process keeps of ever new shapes: resident memory after so many of them.

A train step of two layers is called once with each of many numbers of rows; what is printed is by
how much resident memory (Linux: VmRSS) has grown since the tenth shape, live executables of XLA
beside it. The front ends run in processes of their own, one after the other.

    python -m tests.benchmarks.many_shapes [--shapes 2000] [--front-ends "run,remat_eager,jit"]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

_BEGIN = 10  # shapes before the count begins: JAX and the runtime are set up then
_ROW = "{:12} {:>7} {:>12} {:>12}"


def _resident_bytes() -> int:
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS: needs Linux")


def _step_of(front_end: str) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    import coop_jax

    def loss(w: Any, x: Any) -> Any:
        return (jnp.tanh(jnp.tanh(x @ w) @ w) ** 2).mean()

    if front_end == "jit":
        return jax.jit(jax.value_and_grad(loss))
    make = coop_jax.run if front_end == "run" else coop_jax.remat_eager
    return make(jax.value_and_grad(loss), budget="16MiB")


def _measure(front_end: str, shapes: int) -> None:
    import jax
    import numpy as np

    step = _step_of(front_end)
    w = np.eye(32, dtype=np.float32)
    begin = 0
    for n in range(1, shapes + 1):
        jax.block_until_ready(step(w, np.ones((n, 32), np.float32)))
        if n == _BEGIN:
            gc.collect()
            begin = _resident_bytes()
        if n in (shapes // 4, shapes // 2, shapes):
            gc.collect()
            grown = f"{(_resident_bytes() - begin) / 2**20:.0f} MiB"
            live = len(jax.devices()[0].client.live_executables())  # type: ignore[attr-defined]
            print(_ROW.format(front_end, n, grown, live), flush=True)


def main(argv: Sequence[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=2000)
    parser.add_argument("--front-ends", default="run,remat_eager,jit")
    options = parser.parse_args(argv)
    print(_ROW.format("", "shapes", "grown by", "executables"))
    spawn = multiprocessing.get_context("spawn")
    for front_end in options.front_ends.split(","):
        process = spawn.Process(target=_measure, args=(front_end, options.shapes))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{front_end} ended with {process.exitcode}")


if __name__ == "__main__":
    main(sys.argv[1:])
