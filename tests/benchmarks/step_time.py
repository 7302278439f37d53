"""Seconds of a train step: coop_jax beside jax.jit and plain eager JAX, interleaved in one run.

Each round times one step of every way to run the program (A B C A B C ...), so that whatever else
the machine does falls on all of them alike. Printed are the median and the minimum over the rounds,
and their ratios to plain eager JAX: the undecorated step called with concrete arrays, `jax.grad`
inside. Plain JAX is timed twice: in this process, where coop_jax has turned asynchronous dispatch
off, and "own process" without coop_jax. The targets stand against the first of them; the second is
what a user had before. `remat_eager`, too, is timed in a process of its own: as a user has it.

"us / op" is our own time for each operation of `remat_eager` (see `own_time`), the median and the
least of some steps after the others.

"overhead" is recompute seconds / compute seconds of the timed rounds, as the runtime measured them.
With `policy="lookahead"` `remat_eager` learns: it needs some rounds (--warmups) for each kind of
batch until it follows plans.

What the numbers do not mean: the steps are small, so that Python's time per operation shows; on
larger ones all ways but jit come closer together. Compilation is not in them (see --warmups).

Run: python -m tests.benchmarks.step_time [--programs=cnn,gpt,bilstm] [--repeats=12] [--warmups=4]
    [--share=0.5]
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import contextlib
import dataclasses
import functools
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import jax
from absl import app, flags

from tests.benchmarks import machine, own_time, plain_jax

_PROGRAMS = flags.DEFINE_list("programs", ["cnn", "gpt", "bilstm"], "Which train steps to time.")
_REPEATS = flags.DEFINE_integer("repeats", 12, "Timed rounds.", lower_bound=1)
_WARMUPS = flags.DEFINE_integer("warmups", 4, "Rounds before, which compile.", lower_bound=1)
_SHARE = flags.DEFINE_float("share", 0.5, "Of its memory, for those with a budget.", 0.01, 1.0)

_EAGER, _OURS = "eager JAX", "remat_eager"
_OWN_STEPS = 8
_TARGETS = {_OURS: "<= 1.00", "run": "< 1.00"}


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to run the step.

    Attributes:
      name: what the table calls it.
      step: runs one step and returns its seconds.
      runtime: after the first step, where it runs; None for plain JAX and in another process.
      own: seconds of our own for each operation of a step; None where that is not measured.
    """

    name: str
    step: Callable[[], float]
    runtime: Callable[[], coop_jax.Runtime] | None = None
    own: Callable[[], float] | None = None


class OwnProcess:
    """A process that answers requests with seconds, one at a time.

    Args:
      server: the module that it runs.
      program: the train step, by name.
    """

    def __init__(self, server: ModuleType, program: str):
        self._process = subprocess.Popen(
            [sys.executable, "-m", server.__name__, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: str) -> float:
        """Seconds of what is requested, a word that the server knows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(request, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def _eager_contender(
    name: str,
    program: plain_jax.TrainingProgram,
    budget_bytes: int | None,
    policy: str = "coop",
) -> Contender:
    step = coop_jax.remat_eager(program.step, budget=budget_bytes, policy=policy)
    trainer = plain_jax.Trainer(step, program)
    own = functools.partial(own_time.own_seconds, trainer, lambda: step.runtime)
    return Contender(name, trainer, lambda: step.runtime, own if budget_bytes is None else None)


def _run_contender(
    name: str, program: plain_jax.TrainingProgram, budget: float | None
) -> Contender:
    step = coop_jax.run(program.step, budget=budget, donate_argnums=0)
    return Contender(name, plain_jax.Trainer(step, program), lambda: step.runtime)


def _contenders(
    program: plain_jax.TrainingProgram, rival: OwnProcess, ours: OwnProcess
) -> list[Contender]:
    jitted = jax.jit(program.step, donate_argnums=0)
    eager = _eager_contender(_OURS, program, None)
    # The first one reads its state from outside the pool, the others from inside; each has had its
    # batches equally often when they are timed.
    for _ in range(max(2, len(program.batches))):
        eager.step()
    assert eager.runtime is not None
    part_bytes = int(_SHARE.value * eager.runtime().stats().peak_bytes)
    part = f"{_SHARE.value:.0%}"
    return [
        Contender("jax.jit", plain_jax.Trainer(jitted, program)),
        Contender("jax.jit, own process", lambda: rival.ask("jit")),
        Contender(_EAGER, plain_jax.Trainer(program.step, program)),
        Contender(_EAGER + ", own process", lambda: rival.ask("eager")),
        eager,
        Contender(_OURS + ", own process", lambda: ours.ask("step"), own=lambda: ours.ask("own")),
        _run_contender("run", program, None),
        _eager_contender(f"remat_eager, {part}", program, part_bytes),
        _eager_contender("the same, lookahead", program, part_bytes, "lookahead"),
        _run_contender(f"run, {part}", program, _SHARE.value),
    ]


def _recomputed(contender: Contender) -> tuple[float, float]:
    """Seconds of recomputation and of computation so far."""
    if contender.runtime is None:
        return 0.0, 0.0
    stats = contender.runtime().stats()
    return stats.recompute_seconds, stats.compute_seconds


def _measure(
    contenders: Sequence[Contender], warmups: int, repeats: int
) -> tuple[dict[str, list[float] | str], dict[str, float]]:
    """Seconds of every round by contender, or why it cannot run; and its overhead."""
    before: dict[str, tuple[float, float]] = {}
    seconds: dict[str, list[float] | str] = {c.name: [] for c in contenders}
    for number in range(-warmups, repeats):
        if number == 0:
            before = {c.name: _recomputed(c) for c in contenders if seconds[c.name] == []}
        for contender in contenders:
            times = seconds[contender.name]
            if isinstance(times, str):
                continue
            try:
                elapsed = contender.step()
            except coop_jax.BudgetExceededError as error:
                budget, known = error.report.budget_bytes, error.report.smallest_budget_bytes
                least = f", needs {known:,}" if known else ""
                seconds[contender.name] = f"does not fit into {budget:,} bytes{least}"
                continue
            if number >= 0:
                times.append(elapsed)
    overheads = {}
    for contender in contenders:
        if contender.name in before:
            again, first = (
                b - a for a, b in zip(before[contender.name], _recomputed(contender), strict=True)
            )
            overheads[contender.name] = again / max(first, 1e-9)
    return seconds, overheads


def _row(
    contender: Contender,
    times: list[float] | str,
    eager: Sequence[float],
    overhead: float,
) -> str:
    if isinstance(times, str):
        return f"{contender.name:24}{times}"
    median, least = statistics.median(times), min(times)
    row = (
        f"{contender.name:24}{median:9.4f}{least:9.4f}"
        f"{median / statistics.median(eager):9.2f}{least / min(eager):9.2f}"
        f"  {_TARGETS.get(contender.name, ''):8}"
    )
    if contender.runtime is None:
        row += " " * 28
    else:
        runtime = contender.runtime()
        stats, budget = runtime.stats(), runtime.budget_bytes
        limit = "none" if budget is None else f"{budget / 2**20:.1f}"
        row += f"{stats.peak_bytes / 2**20:9.1f}{limit:>9}{overhead:10.3f}"
    if contender.own is not None:
        own = [contender.own() * 1e6 for _ in range(_OWN_STEPS)]
        row += f"{statistics.median(own):9.1f}{min(own):7.1f}"
    return row.rstrip()


def _print_program(name: str, warmups: int, repeats: int) -> None:
    program = plain_jax.PROGRAMS[name]()
    with (
        contextlib.closing(OwnProcess(plain_jax, name)) as rival,
        contextlib.closing(OwnProcess(own_time, name)) as ours,
    ):
        contenders = _contenders(program, rival, ours)
        seconds, overheads = _measure(contenders, warmups, repeats)
        eager = seconds[_EAGER]
        assert not isinstance(eager, str)
        print(f"\n{name}: {(plain_jax.PROGRAMS[name].__doc__ or '').rstrip('.')}")
        print(
            f"{'seconds a step':24}{'median':>9}{'min':>9}{'/ eager':>9}{'/ eager':>9}"
            f"  {'target':8}{'MiB':>9}{'budget':>9}{'overhead':>10}{'us / op':>9}{'min':>7}"
        )
        for contender in contenders:
            overhead = overheads.get(contender.name, 0.0)
            print(_row(contender, seconds[contender.name], eager, overhead), flush=True)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    unknown = set(_PROGRAMS.value) - set(plain_jax.PROGRAMS)
    if unknown:
        raise app.UsageError(f"unknown programs: {sorted(unknown)}")
    print(machine.heading(_REPEATS.value, _WARMUPS.value))
    for name in _PROGRAMS.value:
        _print_program(name, _WARMUPS.value, _REPEATS.value)


if __name__ == "__main__":
    app.run(main)
