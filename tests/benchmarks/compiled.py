"""`coop_jax.run` beside compiled code: time and memory of a train step under `jax.jit`.

Each round takes one step of every contender in turn (A B C A B C ...), so that whatever else the
machine does falls on all of them alike; a ratio is the median over the rounds of one round's two
times. Memory is what XLA says the jitted step needs (arguments, results, temporaries; what is
donated once), and what a `run` had at its peak, everything counted.

Contenders: `jax.jit`; `run` with fusion and without, no budget; `jax.jit` with a `jax.checkpoint`
around each layer, and around each of √n segments, where the network has them; `run` with fusion at
50% and 30% of what the jitted step needs, and at what the one with checkpoints needs. On CPU a step
with checkpoints needs as much memory as without, unless its layers are in a scan: "deep" is also
timed like that.

A `run` is timed as a long training sees it: its operations run in segments from the sixth call on,
which otherwise waits until launching took as long as compiling (COOP_JAX_SEGMENTS is set to 1 here,
unless it is set; 0 shows single operations).

Run: python -m tests.benchmarks.compiled [--programs=gpt,unet] [--repeats=9] [--warmups=8]
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from examples.paper.networks import NETWORKS
from tests.benchmarks import machine, plain_jax

_KNOWN = ("cnn", "gpt", "unet", "bilstm", "bert", "gpt3", "deep", "swin", "resnet50")
_DEEP_LAYERS = 12
_PROGRAMS = flags.DEFINE_list("programs", list(_KNOWN[:7]), f"Which of {', '.join(_KNOWN)}.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Timed rounds.", lower_bound=1)
_WARMUPS = flags.DEFINE_integer("warmups", 8, "Rounds before, which compile.", lower_bound=1)

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Program:
    """A train step, its first state and its batch; the same with static checkpoints."""

    step: Callable[..., Any]
    state: Any
    batch: Any
    checkpointed: dict[str, Program] = dataclasses.field(default_factory=dict)


def _plain(program: plain_jax.TrainingProgram) -> Program:
    return Program(program.step, program.state, program.batches[0])


def _program(name: str) -> Program:
    if name == "cnn":
        return _plain(plain_jax.cnn())
    if name in ("gpt", "deep"):
        layers = _DEEP_LAYERS if name == "deep" else 4
        variants = {"per-layer": _plain(plain_jax.gpt(remat=True, layers=layers))}
        if name == "deep":
            variants["in a scan"] = _plain(plain_jax.gpt(remat=True, layers=layers, scan=True))
        plain = _plain(plain_jax.gpt(layers=layers))
        return dataclasses.replace(plain, checkpointed=variants)
    network = NETWORKS[name]
    state, batch = network.init("small", 0), next(iter(network.batches("small", 0)))
    return Program(
        network.make_step("small", "none").fn,
        state,
        batch,
        {
            remat: Program(network.make_step("small", remat).fn, state, batch)
            for remat in network.remat
            if remat in ("per-layer", "sqrt")
        },
    )


class Contender:
    """One way to take a step."""

    def __init__(self, name: str, step: Callable[..., Any], program: Program, need: int | None):
        self.name = name
        self._step = step
        self._state = jax.tree.map(jnp.array, program.state)
        self._batch = jax.tree.map(jnp.array, program.batch)
        self._need = need
        self.seconds: list[float] = []
        self.failed = ""
        self.first = 0.0

    def take(self, timed: bool) -> None:
        """Takes a step."""
        if self.failed:
            return
        begin = time.perf_counter()
        try:
            self._state, loss = self._step(self._state, self._batch)
        except coop_jax.BudgetExceededError as error:
            self.failed = f"does not fit into {error.report.budget_bytes / MIB:.1f} MiB"
            return
        jax.block_until_ready((self._state, loss))
        elapsed = time.perf_counter() - begin
        self.first = self.first or elapsed
        if timed:
            self.seconds.append(elapsed)

    def row(self, jit: Contender) -> str:
        """A line of the table."""
        if self.failed:
            return f"{self.name:30}{self.failed}"
        ratio = statistics.median(a / b for a, b in zip(self.seconds, jit.seconds, strict=True))
        text = f"{self.name:30}{statistics.median(self.seconds) * 1e3:9.1f}{ratio:9.2f}"
        nbytes, recompute = self._need, ""
        if nbytes is None:
            stats = self._step.runtime.stats()  # type: ignore[attr-defined]
            nbytes = stats.peak_bytes
            recompute = f"{stats.rematerialisations / max(1, stats.operations):10.1%}"
        assert jit._need is not None
        return f"{text}{nbytes / MIB:9.1f}{nbytes / jit._need:9.2f}{self.first:9.1f}{recompute}"


def _jitted(name: str, program: Program) -> Contender:
    compiled = jax.jit(program.step, donate_argnums=0)
    memory = compiled.lower(program.state, program.batch).compile().memory_analysis()
    need = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    return Contender(name, compiled, program, need)


def _contenders(program: Program) -> list[Contender]:
    jit = _jitted("jax.jit", program)
    assert jit._need is not None

    def budgeted(name: str, budget: int | None, *, fusion: bool = True) -> Contender:
        step = coop_jax.run(program.step, budget, "lookahead", donate_argnums=0, fusion=fusion)
        return Contender(name, step, program, None)

    found = [jit, budgeted("run", None), budgeted("run, fusion=False", None, fusion=False)]
    for share in (0.5, 0.3):
        found.append(budgeted(f"run at {share:.0%} of jit", int(share * jit._need)))
    for remat, variant in program.checkpointed.items():
        rival = _jitted(f"jax.jit, checkpoints {remat}", variant)
        found += [rival, budgeted(f"run in as much as {remat}", rival._need)]
    return found


def _print_program(name: str) -> None:
    contenders = _contenders(_program(name))
    for number in range(-_WARMUPS.value, _REPEATS.value):
        for contender in contenders:
            contender.take(timed=number >= 0)
    print(f"\n{name}")
    print(
        f"{'':30}{'ms':>9}{'/ jit':>9}{'MiB':>9}{'/ jit':>9}{'first s':>9}{'recompute':>10}",
        flush=True,
    )
    for contender in contenders:
        print(contender.row(contenders[0]), flush=True)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if unknown := set(_PROGRAMS.value) - set(_KNOWN):
        raise app.UsageError(f"unknown programs: {sorted(unknown)}")
    os.environ.setdefault("COOP_JAX_SEGMENTS", "1")
    print(machine.heading(_REPEATS.value, _WARMUPS.value))
    for name in _PROGRAMS.value:
        _print_program(name)


if __name__ == "__main__":
    app.run(main)
