"""Train steps of the benchmarks, and a way to take them: under `jax.jit`.

`coop_jax` is not imported here, so that a process can do without it (see `apart`).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from examples.paper.networks import NETWORKS
from examples.paper.networks.base import Remat, Size
from tests.benchmarks import more_networks, plain_jax

KNOWN = (
    *("cnn", "gpt", "unet", "bilstm", "bert", "gpt3", "deep"),
    *("swin", "resnet50", "gpt2", "inception", "spos"),
    *more_networks.NETWORKS,
)

_DEEP_LAYERS = 12
_CHECKPOINTS: tuple[Remat, ...] = ("per-layer", "sqrt")

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


def program_of(name: str, size: Size = "small") -> Program:
    """A train step by name, one of `KNOWN`; those of the paper's networks also in their own size.

    Raises:
      ValueError: the program has one size only.
    """
    if size != "small" and name not in NETWORKS:
        raise ValueError(f"{name} is small only; of the paper's size are {', '.join(NETWORKS)}")
    if name == "cnn":
        return _plain(plain_jax.cnn())
    if name in ("gpt", "deep"):
        layers = _DEEP_LAYERS if name == "deep" else 4
        variants = {"per-layer": _plain(plain_jax.gpt(remat=True, layers=layers))}
        if name == "deep":
            variants["in a scan"] = _plain(plain_jax.gpt(remat=True, layers=layers, scan=True))
        plain = _plain(plain_jax.gpt(layers=layers))
        return dataclasses.replace(plain, checkpointed=variants)
    if name in more_networks.NETWORKS:
        make = more_networks.NETWORKS[name]
        variants = {remat: _plain(make(remat)) for remat in _CHECKPOINTS}
        return dataclasses.replace(_plain(make("none")), checkpointed=variants)
    network = NETWORKS[name]
    state, batch = network.init(size, 0), next(iter(network.batches(size, 0)))
    return Program(
        network.make_step(size, "none").fn,
        state,
        batch,
        {
            remat: Program(network.make_step(size, remat).fn, state, batch)
            for remat in _CHECKPOINTS
            if remat in network.remat
        },
    )


@dataclasses.dataclass(frozen=True)
class Figures:
    """What is known of a contender beside the time of a step.

    Attributes:
      nbytes: what it needs, or had at its peak.
      recompute: seconds of recomputation for each of computation; None under `jax.jit`.
      launches: operations or segments a step; None under `jax.jit`.
    """

    nbytes: int
    recompute: float | None = None
    launches: int | None = None


class Contender:
    """One way to take a step. `first` is the time of the first one, `loss` its loss."""

    def __init__(self, name: str, step: Callable[..., Any], program: Program, need: int = 0):
        self.name = name
        self.need = need  # bytes, under `jax.jit`
        self.module = b""  # what XLA made of it there, optimised
        self.seconds: list[float] = []
        self.failed = ""
        self.first = 0.0
        self.loss: float | None = None
        self._step = step
        self._state = jax.tree.map(jnp.array, program.state)
        self._batch = jax.tree.map(jnp.array, program.batch)

    def take(self, timed: bool, steps: int) -> None:
        """Takes so many steps; their mean counts."""
        elapsed = 0.0
        for _ in range(steps):
            if self.failed:
                return
            step = self._elapsed()
            self.first = self.first or step
            elapsed += step
        if timed and not self.failed:
            self.seconds.append(elapsed / steps)

    def _elapsed(self) -> float:
        begin = time.perf_counter()
        self._state, loss = self._step(self._state, self._batch)
        jax.block_until_ready((self._state, loss))
        elapsed = time.perf_counter() - begin
        if self.loss is None:
            self.loss = float(loss)
        return elapsed

    def ratio(self, other: Contender) -> float:
        """Of the times of a step: the median over the rounds."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))

    def figures(self) -> Figures:
        """After the last step."""
        return Figures(self.need)

    def row(self, jit: Contender) -> str:
        """A line of the table."""
        if self.failed:
            return f"{self.name:30}{self.failed}"
        text = f"{self.name:30}{statistics.median(self.seconds) * 1e3:9.1f}{self.ratio(jit):9.2f}"
        figures = self.figures()
        text += f"{figures.nbytes / MIB:9.1f}{figures.nbytes / jit.need:9.2f}{self.first:9.1f}"
        if figures.recompute is None:
            return text
        return f"{text}{figures.recompute:10.1%}{figures.launches:9}"


# XLA's CPU compiler drops the barriers that keep what a checkpoint computes again apart from what
# it computed first, and then finds that both are the same: nothing is computed again, no memory is
# saved. Without this pass it does what it does on other devices.
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


def needed_bytes(compiled: jax.stages.Compiled) -> int:
    """What XLA says: arguments, results that are not written over them, temporaries."""
    memory = compiled.memory_analysis()
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )


def jitted(name: str, program: Program, options: dict[str, Any] | None = None) -> Contender:
    """The step under `jax.jit`, with the bytes that XLA says it needs; see `count_libraries`."""
    if jax.default_backend() != "cpu":
        options = None
    step = jax.jit(program.step, donate_argnums=0, compiler_options=options)
    compiled = step.lower(program.state, program.batch).compile()
    contender = Contender(name, step, program, needed_bytes(compiled))
    # As `compat.hlo.serialized`, which is not imported here: jit may run in a process without us.
    (module,) = compiled.runtime_executable().hlo_modules()
    contender.module = module.as_serialized_hlo_module_proto()
    return contender


def count_libraries(contender: Contender) -> Contender:
    """Adds what XLA's CPU libraries take, which XLA does not tell of and a budget counts.

    As if they worked one by one: how much they take beside each other only a bound is known of, too
    high for a whole program.
    """
    from coop_jax._src.compat.library_memory import unreported_bytes  # not where jit runs alone

    if jax.default_backend() == "cpu":
        contender.need += unreported_bytes(contender.module, one_by_one=True)
    return contender
