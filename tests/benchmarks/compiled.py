"""`coop_jax.run` beside compiled code: time and memory of a train step under `jax.jit`.

Each round takes one step of every contender in turn (A B C A B C ...), so that whatever else the
machine does falls on all of them alike; a ratio is the median over the rounds of one round's two
times. Memory is what XLA says the jitted step needs (arguments, results, temporaries; what is
donated once) and on CPU the most that one call of XLA's libraries takes beside that
(`compat.library_memory`), and what a `run` had at its peak, everything counted. "recompute" is its
seconds of recomputation for each second of computation, in all steps so far; "launches" is what a
step is in the end.

Contenders: `jax.jit`; `run` with fusion and without, no budget; `jax.jit` with a `jax.checkpoint`
around each layer, and around each of √n segments, where the network has them, as XLA compiles it
for CPU, which as a rule needs as much memory as without, and with its barriers kept, which saves
what it does on other devices (see `contenders`); `run` with fusion at 50% and 30% of what the
jitted step needs, and at what each of those with checkpoints needs.

A `run` is timed as a long training sees it: its operations run in segments from the sixth call on,
which otherwise waits until launching took as long as compiling (COOP_JAX_SEGMENTS is set to 1 here,
unless it is set; 0 shows single operations).

What ran before leaves its traces: caches, pages that malloc keeps. With --beside=per-layer (or
another way of placing checkpoints) three contenders are alone: `jax.jit`, the one with those
checkpoints, barriers kept, and the `run` in as much memory. With --apart each contender has a
process of its own, plain JAX's without `coop_jax`; `fusion=False` and checkpoints as XLA compiles
them for CPU are left out. A step after those of others finds the processor's caches full of what
they left; with --in_a_row=20 each takes 20 steps before the next does, as in a training.

On a GPU, where a pool without a budget is most of the device, the first `run` has what the jitted
step needs, and barriers are kept anyhow. There --size=paper is of interest: the small sizes
measure launches.

Run: python -m tests.benchmarks.compiled [--programs=gpt,unet] [--repeats=9] [--warmups=8]
    [--beside=per-layer] [--apart] [--in_a_row=20] [--size=paper]
"""

from __future__ import annotations

import coop_jax  # noqa: F401  # first: it sets how the CPU backend starts  # isort: skip

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import app, flags

from tests.benchmarks import machine
from tests.benchmarks.apart import Apart, made
from tests.benchmarks.contenders import KNOWN, Contender, Program, count_libraries, program_of

_PROGRAMS = flags.DEFINE_list("programs", list(KNOWN[:7]), f"Which of {', '.join(KNOWN)}.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Timed rounds.", lower_bound=1)
_WARMUPS = flags.DEFINE_integer("warmups", 8, "Rounds before, which compile.", lower_bound=1)
_IN_A_ROW = flags.DEFINE_integer("in_a_row", 1, "Steps in a round.", lower_bound=1)
_APART = flags.DEFINE_bool("apart", False, "Each in a process of its own.")
_SIZE = flags.DEFINE_enum("size", "small", ["small", "paper"], "Of the paper's networks.")
_BESIDE = flags.DEFINE_string("beside", "", "Only beside checkpoints placed so.")


def _here(program: Program, name: str, **options: Any) -> Contender:
    contender = made(program, **options)
    contender.name = name
    return contender


def _contenders(program: Program, make: Callable[..., Contender]) -> list[Contender]:
    jit = make("jax.jit")
    on_cpu = jax.default_backend() == "cpu"

    def budgeted(name: str, budget: int | None, *, fusion: bool = True) -> Contender:
        return make(name, budget=budget, policy="lookahead", fusion=fusion)

    only = _BESIDE.value
    if only and only not in program.checkpointed:
        known = ", ".join(program.checkpointed) or "none"
        raise SystemExit(f"--beside={only}: checkpoints that are known here: {known}")
    found = [jit]
    if not only:
        if on_cpu:
            found.append(budgeted("run", None))
        else:
            found.append(budgeted("run in as much", jit.need))
        if on_cpu and not _APART.value:
            found.append(budgeted("run, fusion=False", None, fusion=False))
        for share in (0.5, 0.3):
            found.append(budgeted(f"run at {share:.0%} of jit", int(share * jit.need)))
    for remat in program.checkpointed:
        if only not in ("", remat):
            continue
        if on_cpu and not only and not _APART.value:
            rival = make(f"jax.jit, checkpoints {remat}", remat=remat)
            found += [rival, budgeted(f"run in as much as {remat}", rival.need)]
        rival = make(f"checkpoints {remat}, barriers kept", remat=remat, barriers=True)
        found += [rival, budgeted("run in as much as that", rival.need)]
    return found


def _print_program(name: str) -> None:
    program = program_of(name, _SIZE.value)
    with contextlib.ExitStack() as stack:

        def apart(title: str, **options: Any) -> Contender:
            apart = Apart(title, name, size=_SIZE.value, **options)
            return stack.enter_context(contextlib.closing(apart))

        plain = apart if _APART.value else functools.partial(_here, program)

        def make(title: str, **options: Any) -> Contender:
            made = plain(title, **options)
            return made if "budget" in options else count_libraries(made)

        contenders = _contenders(program, make)
        for number in range(-_WARMUPS.value, _REPEATS.value):
            for contender in contenders:
                contender.take(number >= 0, _IN_A_ROW.value)
        print(f"\n{name}")
        print(
            f"{'':30}{'ms':>9}{'/ jit':>9}{'MiB':>9}{'/ jit':>9}{'first s':>9}{'recompute':>10}"
            f"{'launches':>9}",
            flush=True,
        )
        for contender in contenders:
            print(contender.row(contenders[0]), flush=True)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if unknown := set(_PROGRAMS.value) - set(KNOWN):
        raise app.UsageError(f"unknown programs: {sorted(unknown)}")
    os.environ.setdefault("COOP_JAX_SEGMENTS", "1")
    print(machine.heading(_REPEATS.value, _WARMUPS.value))
    for name in _PROGRAMS.value:
        _print_program(name)


if __name__ == "__main__":
    app.run(main)
