"""Our own time for each operation of `remat_eager`; as a program, in a process of its own.

Our own time is what a session takes, from the operands that a trace hands it to the results that
it hands back, less the launches (which include the import of slots and letting go of JAX's donated
arrays). Most of it is waiting for what large operations, and whatever else runs in the process or
on the machine, drove out of the caches.

Run: python -m tests.benchmarks.own_time cnn, and "step" or "own" a line on standard input.
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from coop_jax._src.eager import session
from tests.benchmarks import plain_jax


def own_seconds(step: Callable[[], object], runtime: Callable[[], coop_jax.Runtime]) -> float:
    """Seconds of our own for each operation, on average over a step; clocks take time, too.

    Args:
      step: takes a step.
      runtime: where it runs.
    """
    inside = [0.0]

    def timed(method: Any) -> Any:
        def call(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args)
            finally:
                inside[0] += time.perf_counter() - begin

        return call

    before = runtime().stats()
    # What an operation runs inside another's is in that one's time.
    with mock.patch.object(session.Session, "apply", timed(session.Session.apply)):
        step()
    after = runtime().stats()
    launches = after.compute_seconds - before.compute_seconds
    launches += after.recompute_seconds - before.recompute_seconds
    return (inside[0] - launches) / (after.operations - before.operations)


def _serve(name: str) -> None:
    """Answers "step" with the seconds of a step, "own" with our own for each operation."""
    program = plain_jax.PROGRAMS[name]()
    step = coop_jax.remat_eager(program.step)
    trainer = plain_jax.Trainer(step, program)
    for line in sys.stdin:
        own = line.strip() == "own"
        print(own_seconds(trainer, lambda: step.runtime) if own else trainer(), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
