"""Memory that loops need without a budget: `run` and `remat_eager` beside `jax.jit`.

For each program of `tests.testing.loops`: what it needs under `jax.jit` (arguments, results that
are no arguments, temporary memory, as XLA counts them), the peaks of the front ends as a share of
that, and seconds: to trace the program, to make operations of it (scans are unrolled), to plan them
where nothing has to go. Shares depend on the versions of JAX and on the sizes alone, seconds are of
one run, tracing included where operations are made.

    python -m tests.benchmarks.loop_peaks [--steps 48] [--width 128] [--loops "lstm,gru"]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import coop_jax
from tests.testing import loops

_ROW = "{:24} {:>9} {:>6} {:>12} {:>7} {:>11} {:>7}"


def _peak(fn: Callable[..., Any], args: Any) -> int:
    """Of a first call."""
    fn(*jax.tree.map(jnp.array, args))
    peak: int = fn.runtime.stats().peak_bytes  # type: ignore[attr-defined]
    return peak


def _row(name: str, loop: loops.Loop) -> str:
    begin = time.perf_counter()
    traced = jax.jit(loop.fn, donate_argnums=loop.donate).trace(*loop.args)
    trace_seconds = time.perf_counter() - begin
    needed = loops.compiled_bytes(traced.lower().compile())
    begin = time.perf_counter()
    program = coop_jax.trace_program(loop.fn, *loop.args, donate_argnums=loop.donate)
    program_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    coop_jax.simulate(program, budget=None)
    plan_seconds = time.perf_counter() - begin
    run = _peak(coop_jax.run(loop.fn, donate_argnums=loop.donate), loop.args)
    eager = _peak(coop_jax.remat_eager(loop.fn), loop.args)
    return _ROW.format(
        name,
        f"{needed / 1e6:.2f} MB",
        f"{run / needed:.2f}",
        f"{eager / needed:.2f}",
        f"{trace_seconds:.2f} s",
        f"{program_seconds:.2f} s",
        f"{plan_seconds:.3f} s",
    )


def main(argv: Sequence[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--loops", default="")
    options = parser.parse_args(argv)
    known = loops.loops(options.steps, options.width)
    names = options.loops.split(",") if options.loops else list(known)
    print(f"JAX {jax.__version__}, {jax.devices()[0]}")
    print(_ROW.format("", "jit", "run", "remat_eager", "trace", "operations", "plan"))
    for name in names:
        print(_row(name, known[name]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
