"""Seconds until the first step of the digits example is done: coop_jax beside jax.jit.

Each contender runs in a process of its own: imports and the first state come before the clock
starts, then one train step is traced, planned, compiled and run. "second process" finds what the
first left in JAX's persistent cache, which is otherwise empty. Rounds are interleaved (A B C A B
C ...); printed are medians, and the ratio to `jax.jit` in a first process, the median over rounds.

Run: python -m tests.benchmarks.first_step [--repeats=3] [--share=0.5]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed rounds.", lower_bound=1)
_SHARE = flags.DEFINE_float("share", 0.5, "Of what a step needs without a budget.")
_CHILD = flags.DEFINE_enum("child", None, ["jit", "coop", "run"], "For the processes started.")

# The target is for what users get, which is the default policy.
KINDS = {"jit": "jax.jit", "coop": "run, coop", "run": "run"}
_TARGETS = {"run": "<= 2.00 / jit", "run, second process": "<= 3 s"}


def first_step(kind: str, budget: float) -> float:
    """Seconds of the first step in this process."""
    import coop_jax  # isort: skip  # first: it sets how the CPU backend starts
    import jax

    from examples.digits import train

    digits = train.load_digits(0)
    params, state = jax.block_until_ready(train.create_state(0))
    images, labels = train.batches_of(digits.train_images, digits.train_labels, 128, 0)[0]
    started = time.perf_counter()
    if kind == "jit":
        step = jax.jit(train.train_step, donate_argnums=(0, 1))
    else:
        policy = {"policy": "coop"} if kind == "coop" else {}
        step = coop_jax.run(train.train_step, budget, donate_argnums=(0, 1), **policy)
    jax.block_until_ready(step(params, state, images, labels))
    return time.perf_counter() - started


def _in_a_process(kind: str, cache: str) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.first_step", f"--child={kind}"]
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": cache,
        # As JAX's manual advises for short compilations; coop_jax keeps all of its own anyway.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    arguments = [f"--share={_SHARE.value}"]
    done = subprocess.run(
        [*command, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def _rounds(repeats: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        for kind, name in KINDS.items():
            with tempfile.TemporaryDirectory() as cache:
                for process in (name, f"{name}, second process"):
                    seconds.setdefault(process, []).append(_in_a_process(kind, cache))
    return seconds


def main(_: list[str]) -> None:
    if _CHILD.value is not None:
        print(first_step(_CHILD.value, _SHARE.value))
        return
    seconds = _rounds(_REPEATS.value)
    from tests.benchmarks import machine

    print(machine.heading(_REPEATS.value, 0))
    print(f"\n{'first step of digits':32}{'s':>7}{'/ jit':>8}")
    base = seconds[KINDS["jit"]]
    for name, times in seconds.items():
        ratio = statistics.median(t / b for t, b in zip(times, base, strict=True))
        print(f"{name:32}{statistics.median(times):7.2f}{ratio:8.2f}  {_TARGETS.get(name, '')}")


if __name__ == "__main__":
    app.run(main)
