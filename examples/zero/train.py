"""Trains a GPT with ZeRO as one of several processes; each has one device and runs the same.

The budget takes one line, in `Trainer.step` below: `coop_jax.jit` where `jax.jit` would be. The
rest is how one trains over several processes anyway: shardings (see `sharding`), a checkpoint that
each process writes its part of, and printing what happened, which process 0 does.
"""

from __future__ import annotations

import dataclasses
import os
import pydoc_data.topics
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from absl import logging
from flax import nnx
from jax.experimental import multihost_utils

import coop_jax
from examples.zero.model import GPT, Size
from examples.zero.sharding import device_mesh, shardings_of

# Losses with a budget equal those without up to rounding, which training makes larger.
MAX_LOSS_DIFFERENCE = 1e-3
_SHOWN_ROWS = 8

optimizer = optax.adamw(1e-3, weight_decay=0.01)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What to train; see the flags of `__main__`."""

    stage: int
    budget: int | float | str | None
    layers: int
    steps: int
    batch: int
    seed: int
    checkpoint: str
    resume: bool
    verify: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """Which of how many processes this is, and the address at which process 0 listens."""

    index: int
    count: int
    coordinator: str


class State(NamedTuple):
    """What a step replaces."""

    params: Any
    opt_state: Any


class Result(NamedTuple):
    """The state after some steps, and the loss of each."""

    state: State
    losses: list[float]


class FailedError(Exception):
    """What is said without a traceback."""


class Trainer:
    """The train step of a stage, and what it works on."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._text = np.frombuffer("\n".join(pydoc_data.topics.topics.values()).encode(), np.uint8)
        self.size = Size(layers=settings.layers)
        self._model = nnx.graphdef(nnx.eval_shape(self._create_model))
        self._shapes = jax.eval_shape(self._create_state)
        self._shardings = shardings_of(settings.stage, device_mesh(), *self._shapes)
        self._state_shardings = State(self._shardings.params, self._shardings.opt_state)

    def step(self, budget: int | float | str | None) -> Any:
        """The train step under a budget: all that changes in a program that exists."""
        return coop_jax.jit(
            self._train_step,
            budget=budget,
            donate_argnums=0,
            out_shardings=(self._state_shardings, self._shardings.replicated),
        )

    def _train_step(self, state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
        """One step of AdamW on tokens [batch, length + 1]; the loss is the mean over them."""

        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(self._model, params)(tokens[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return jnp.mean(losses)

        loss, gradients = jax.value_and_grad(loss_fn)(state.params)
        gradients = jax.lax.with_sharding_constraint(gradients, self._shardings.gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        return State(optax.apply_updates(state.params, updates), opt_state), loss

    def first_state(self) -> State:
        """Made where it lies: no device has more of it than its part."""
        state: State = jax.jit(self._create_state, out_shardings=self._state_shardings)()
        return state

    def _create_model(self) -> GPT:
        return GPT(self.size, nnx.Rngs(self._settings.seed))

    def _create_state(self) -> State:
        params = nnx.state(self._create_model())
        return State(params, optimizer.init(params))

    def tokens(self, step: int) -> jax.Array:
        """Random pieces of the text, the same whatever the number of processes."""
        batch, length = self._settings.batch, self.size.length + 1
        random = np.random.default_rng((self._settings.seed, step))
        begins = random.integers(len(self._text) - length, size=batch)
        pieces = np.stack([self._text[b : b + length] for b in begins]).astype(np.int32)
        return jax.make_array_from_callback(
            pieces.shape, self._shardings.batch, lambda part: pieces[part]
        )

    def train(self, step: Any, state: State, first: int) -> Result:
        """Some steps; prints a row now and then."""
        say(f"{'step':>6}  {'loss':>9}")
        losses: list[float] = []
        steps = self._settings.steps
        begin = time.perf_counter()
        for number in range(steps):
            state, loss = step(state, self.tokens(first + number))
            losses.append(float(loss))
            if number == 0:  # the first call loads what was compiled
                begin = time.perf_counter()
            if number % -(-steps // _SHOWN_ROWS) == 0 or number == steps - 1:
                say(f"{first + number + 1:>6}  {losses[-1]:>9.5f}")
        tokens = (steps - 1) * self._settings.batch * self.size.length
        say(f"{tokens / max(time.perf_counter() - begin, 1e-9):,.0f} tokens/s")
        return Result(state, losses)

    def save(self, state: State) -> None:
        """Writes the checkpoint, each process its part; replaces the one that is there."""
        with self._checkpoints() as manager:
            for step in manager.all_steps():
                manager.delete(step)
            manager.save(steps_of(state), args=ocp.args.StandardSave(state._asdict()))
        say(f"checkpoint of step {steps_of(state)} in {self._settings.checkpoint}")

    def restore(self) -> State:
        """The state of the checkpoint, as this stage divides it among these processes."""
        with self._checkpoints() as manager:
            step = manager.latest_step()
            if step is None:
                raise FailedError(
                    f"--resume: there is no checkpoint in {self._settings.checkpoint}"
                )
            wanted = jax.tree.map(
                lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
                self._shapes,
                self._state_shardings,
            )
            args = ocp.args.StandardRestore(wanted._asdict())
            return State(**manager.restore(step, args=args))

    def _checkpoints(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(Path(self._settings.checkpoint).absolute())


def steps_of(state: State) -> int:
    """How many steps a state has been through; AdamW counts them."""
    return int(optax.tree_utils.tree_get(state.opt_state, "count"))


def say(text: str, end: str = "\n") -> None:
    """Prints at once, in process 0."""
    if jax.process_index() == 0:
        print(text, end=end, flush=True)


def train(settings: Settings) -> None:
    """Plans, trains, writes the checkpoint and verifies."""
    trainer = Trainer(settings)
    try:
        step = trainer.step(settings.budget)
    except ValueError as error:
        raise FailedError(f"--budget={settings.budget}: {error}") from error
    begin = trainer.restore if settings.resume else trainer.first_state
    state = begin()
    first = steps_of(state)
    count = sum(x.size for x in jax.tree.leaves(state.params))
    plural = "" if jax.process_count() == 1 else "es"
    say(
        f"zero: a GPT of {count:,} parameters, AdamW, ZeRO stage {settings.stage} over"
        f" {jax.process_count()} process{plural}, {settings.batch} x {trainer.size.length} bytes"
    )
    say("planning and compiling ... ", end="")
    started = time.perf_counter()
    try:
        report = step.plan(state, trainer.tokens(first))
    except coop_jax.BudgetExceededError as error:
        raise FailedError(f"--budget={settings.budget}: {error}") from error
    say(f"done in {time.perf_counter() - started:.1f} s")
    check_plans(report, local_bytes(state))
    result = trainer.train(step, state, first)
    if settings.verify:
        say("--verify: the same steps without a budget")
        free = trainer.train(trainer.step(None), begin(), first)
        difference = max(abs(a - b) for a, b in zip(result.losses, free.losses, strict=True))
        say(f"losses differ by at most {difference:.1e}")
        if not difference <= MAX_LOSS_DIFFERENCE:
            raise FailedError(f"losses differ by more than {MAX_LOSS_DIFFERENCE:g}")
    trainer.save(result.state)


def local_bytes(state: State) -> int:
    """What of a state lies on the device of this process."""
    return sum(x.addressable_data(0).nbytes for x in jax.tree.leaves(state))


def check_plans(report: coop_jax.PlanReport, state_bytes: int) -> None:
    """Prints what the processes have planned: the same, within the budget."""
    budget_bytes = report.jit_bytes if report.budget_bytes is None else report.budget_bytes
    mine = np.array([state_bytes, report.jit_bytes, budget_bytes, report.needed_bytes], np.int64)
    # Without jax_enable_x64 JAX would make int32 of them, which ends at 2 GiB.
    halves = multihost_utils.process_allgather(mine.view(np.uint32), tiled=True)
    plans = np.asarray(halves).view(np.int64).reshape(-1, len(mine))
    say("")
    say(row("bytes of a device", "state", "jax.jit", "budget", "needed"))
    for process, (state, jit, budget, needed) in enumerate(plans):
        allowed = "none" if report.budget_bytes is None else f"{budget:,}"
        say(row(f"process {process}", f"{state:,}", f"{jit:,}", allowed, f"{needed:,}"))
    say(
        f"{report.recomputations} operations run again, {report.recompute_share:.1%} of the time"
        " (estimated)"
    )
    say("")
    if (plans != plans[0]).any() or report.needed_bytes > budget_bytes:
        raise FailedError("the plans of the processes differ, or exceed the budget")


def row(name: str, *cells: str) -> str:
    """A line of the table."""
    return f"{name:<17}" + "".join(f"{cell:>13}" for cell in cells)


def run(settings: Settings, process: Process) -> None:
    """One process, from joining the others to its end.

    An error ends it at once: by itself Python would wait at its end for the others, which wait for
    this process.
    """
    logging.set_verbosity(logging.WARNING)  # not how Orbax writes
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(process.coordinator, process.count, process.index)
        multihost_utils.sync_global_devices("start")  # connects all; Gloo says so
        train(settings)
    except FailedError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    else:
        jax.distributed.shutdown()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
