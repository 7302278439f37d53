"""What a recording costs: steps of training with `record_timeline` and without, in turn.

Run: python -m tests.benchmarks.recorded_steps prints, for each program and front end, the fastest
step of both kinds and what recording adds.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import jax

import coop_jax
from tests import models
from tests.benchmarks import machine

_ROUNDS, _WARMUPS = 40, 8


def measured(program: models.TrainingProgram, front_end: str) -> tuple[float, float, int]:
    """Seconds of the fastest step, without and with recording, and how many launches it has."""
    make: Any = coop_jax.run if front_end == "run" else coop_jax.remat_eager
    step = make(program.step, budget=None)
    state = jax.tree.map(jax.numpy.asarray, program.init)
    batch = program.batch(0)
    for _ in range(_WARMUPS):
        state, _ = step(state, batch)
    least, launches = [math.inf, math.inf], 0
    for number in range(2 * _ROUNDS):
        record = number % 2
        with contextlib.ExitStack() as stack:
            recording = None
            if record:
                recording = stack.enter_context(coop_jax.record_timeline(step.runtime))
            begin = time.perf_counter()
            state, _ = jax.block_until_ready(step(state, batch))
            least[record] = min(least[record], time.perf_counter() - begin)
        if recording is not None and not launches:
            launches = recording.timeline().moments
    return least[0], least[1], launches


def main() -> None:
    """Prints the table."""
    print(f"# {machine.heading(_ROUNDS, _WARMUPS)}")
    print("program      front end    launches  plain [ms]  recorded [ms]  more")
    for make in (models.mlp, models.cnn, models.gpt):
        program = make()
        for front_end in ("run", "remat_eager"):
            plain, recorded, launches = measured(program, front_end)
            print(
                f"{program.name:12} {front_end:12} {launches:8} {plain * 1e3:11.2f}"
                f" {recorded * 1e3:14.2f} {recorded / plain - 1:6.1%}"
            )


if __name__ == "__main__":
    main()
