"""Seconds until the first step of a program is done: coop_jax beside jax.jit.

Each contender runs in a process of its own: imports and the first state come before the clock
starts, then one train step is traced, planned, compiled and run. "second process" finds what the
first left in JAX's persistent cache, which is otherwise empty. Rounds are interleaved (A B C A B
C ...); printed are medians, and ratios to `jax.jit` in a first and in a second process, the medians
over rounds. CPU seconds, of all threads, say more than the others where something else runs.

Run: python -m tests.benchmarks.first_step [--programs=digits,gpt,bert] [--kinds=jit,coop_jit,run]
    [--repeats=3] [--share=0.5]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import app, flags

# The target is for what users get, which is the default policy.
KINDS = {"jit": "jax.jit", "coop_jit": "coop_jax.jit", "coop": "run, coop", "run": "run"}
_DIGITS = "digits"

_PROGRAMS = flags.DEFINE_list(
    "programs", [_DIGITS], f"{_DIGITS}, or programs of tests.benchmarks.contenders."
)
_KINDS = flags.DEFINE_list("kinds", list(KINDS), f"Which of {', '.join(KINDS)}, jit among them.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed rounds.", lower_bound=1)
_SHARE = flags.DEFINE_float("share", 0.5, "Of what a step needs without a budget.")
_CHILD = flags.DEFINE_enum("child", None, list(KINDS), "For the processes started.")

_SECOND = ", second process"
_TARGETS = {
    "run": "<= 2.00 / jit",
    f"run{_SECOND}": "<= 3 s",
    "coop_jax.jit": "<= 2.00 / jit",
    f"coop_jax.jit{_SECOND}": "<= 1.10 / jit there",
}


def _program_of(name: str) -> tuple[Any, Any, tuple[int, ...]]:
    """A train step, its arguments, which of them are donated."""
    if name != _DIGITS:
        from tests.benchmarks import contenders

        program = contenders.program_of(name)
        return program.step, (program.state, program.batch), (0,)
    from examples.digits import train

    digits = train.load_digits(0)
    params, state = train.create_state(0)
    batch = train.batches_of(digits.train_images, digits.train_labels, 128, 0)[0]
    return train.train_step, (params, state, *batch), (0, 1)


def first_step(kind: str, program: str, budget: float) -> tuple[float, float]:
    """Seconds, and CPU seconds, of the first step in this process."""
    import coop_jax  # isort: skip  # first: it sets how the CPU backend starts
    import jax

    fn, args, donated = _program_of(program)
    args = jax.block_until_ready(args)
    started, used = time.perf_counter(), time.process_time()
    options: dict[str, Any] = {"donate_argnums": donated}
    if kind == "jit":
        step = jax.jit(fn, **options)
    elif kind == "coop_jit":
        step = coop_jax.jit(fn, budget=budget, **options)
    else:
        policy = {"policy": "coop"} if kind == "coop" else {}
        step = coop_jax.run(fn, budget, **options, **policy)
    jax.block_until_ready(step(*args))
    return time.perf_counter() - started, time.process_time() - used


def _in_a_process(kind: str, program: str, cache: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "tests.benchmarks.first_step", f"--child={kind}"]
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": cache,
        # As JAX's manual advises for short compilations; coop_jax keeps all of its own anyway.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    arguments = [f"--share={_SHARE.value}", f"--programs={program}"]
    done = subprocess.run(
        [*command, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    seconds, used = done.stdout.split()[-2:]
    return float(seconds), float(used)


def _rounds(program: str) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(_REPEATS.value):
        for kind in _KINDS.value:
            with tempfile.TemporaryDirectory() as cache:
                for process in (KINDS[kind], f"{KINDS[kind]}{_SECOND}"):
                    found.setdefault(process, []).append(_in_a_process(kind, program, cache))
    return found


def _print(program: str, rounds: dict[str, list[tuple[float, float]]]) -> None:
    columns = f"{'s':>7}{'/ jit':>8}{'/ jit there':>13}{'CPU s':>9}{'/ jit':>8}{'/ jit there':>13}"
    print(f"\n{'first step of ' + program:32}{columns}")
    first = KINDS["jit"]
    for name, times in rounds.items():
        there = first + (_SECOND if name.endswith(_SECOND) else "")
        row = ""
        for which in (0, 1):  # seconds, CPU seconds
            row += f"{statistics.median(t[which] for t in times):{9 if which else 7}.2f}"
            for base, width in ((first, 8), (there, 13)):
                pairs = zip(times, rounds[base], strict=True)
                row += f"{statistics.median(t[which] / b[which] for t, b in pairs):{width}.2f}"
        print(f"{name:32}{row}  {_TARGETS.get(name, '')}", flush=True)


def main(_: list[str]) -> None:
    if unknown := set(_KINDS.value) - set(KINDS) or ({"jit"} - set(_KINDS.value)):
        raise app.UsageError(f"--kinds: {', '.join(sorted(unknown))} unknown or missing")
    if _CHILD.value is not None:
        print(*first_step(_CHILD.value, _PROGRAMS.value[0], _SHARE.value))
        return
    from tests.benchmarks import machine

    print(machine.heading(_REPEATS.value, 0))
    for program in _PROGRAMS.value:
        _print(program, _rounds(program))


if __name__ == "__main__":
    app.run(main)
