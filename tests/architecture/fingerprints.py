"""Plans, bits and statistics of ten programs at three budgets, to compare two commits.

A change that is meant to change no behaviour leaves every line as it is. A line holds the number
and a hash of a simulated plan's actions, a hash of the results of four steps, and the statistics
that do not depend on the clock; of eager functions there is no simulated plan.

Run with each of the two commits, and compare:
    COOP_JAX_SEGMENTS=0 python -m tests.architecture.fingerprints > after.txt
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.testing import models

_SHARES = (None, 0.7, 0.5)
_STEPS = 4
_COUNTED = ("peak_bytes", "bytes_in_use", "operations", "evictions", "rematerialisations")


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def _bits(tree: Any) -> bytes:
    return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))


def _plain(action: coop_jax.Run | coop_jax.Evict | coop_jax.Drop) -> tuple[Any, ...]:
    """An action as numbers: its hash does not depend on names."""
    if isinstance(action, coop_jax.Run):
        placed = ((p.storage, p.offset, p.in_place_input) for p in action.placements)
        return 1, action.operation, action.recompute, tuple(placed)
    return 0 if isinstance(action, coop_jax.Evict) else 2, action.storage


def _trained(
    step: Any, program: models.TrainingProgram, batch: Callable[[int], Any]
) -> tuple[str, str]:
    state: Any = jax.tree.map(jax.numpy.array, program.init)
    losses = []
    for number in range(_STEPS):
        state, loss = step(state, batch(number))
        losses.append(loss)
    stats = step.runtime.stats()
    counted = " ".join(f"{name}={getattr(stats, name)}" for name in _COUNTED)
    return _hash(_bits(state), _bits(losses)), counted


def _lines_of(name: str, **options: Any) -> list[str]:
    program: models.TrainingProgram = getattr(models, name)()
    lines = []
    for share in _SHARES:
        step = coop_jax.run(program.step, budget=share, donate_argnums=0, policy="coop", **options)
        simulation = step.simulate(program.init, program.batch(0))
        actions = [_plain(action) for action in simulation.actions]
        plan = f"{len(actions)}:{_hash(repr(actions).encode())}"
        try:
            bits, counted = _trained(step, program, program.batch)
        except coop_jax.BudgetExceededError as error:
            bits, counted = "-", str(error).splitlines()[0]
        lines.append(f"run {name} {options} {share}: plan {plan} bits {bits} {counted}")
    return lines


def _eager_lines_of(name: str) -> list[str]:
    program: models.TrainingProgram = getattr(models, name)()
    lines = []
    peak = 0
    for share in _SHARES:
        budget = None if share is None else int(peak * share)
        step = coop_jax.remat_eager(program.step, budget=budget)
        try:
            bits, counted = _trained(step, program, program.batch)
        except coop_jax.BudgetExceededError as error:
            bits, counted = "-", str(error).splitlines()[0]
        if share is None:
            peak = step.runtime.stats().peak_bytes
        lines.append(f"remat_eager {name} {share}: bits {bits} {counted}")
    return lines


def main() -> None:
    """Prints a line for each program and budget."""
    for name in ("cnn", "mlp", "gpt"):
        for line in (*_lines_of(name), *_lines_of(name, fusion=False), *_eager_lines_of(name)):
            print(line, flush=True)
    for line in _eager_lines_of("data_dependent"):
        print(line, flush=True)


if __name__ == "__main__":
    main()
