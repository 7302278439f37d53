"""What plans become with other tuned constants (`coop_jax/_src/planning/constants.py`), simulated.

For each train step of `tests/testing/models.py`, with fusion and without: recompute overhead of
`policy="lookahead"` at shares of the unbudgeted peak, with the constants as they are and as they
are set here, and the seconds that all these plans took. Overheads are by the cost model, so they
are the same on every machine; "-" where nothing fits. A step has some hundred operations: a
constant that changes nothing here may matter in others.

Run: python -m tests.benchmarks.planning_constants most_plans=128 [patience=64 ...]
    [--programs=cnn,mlp,gpt] [--shares=0.9,0.6,0.45,0.3]
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import argparse
import ast
import dataclasses
import time
from collections.abc import Sequence

from coop_jax._src.planning import constants
from tests.testing import models


def traced(name: str, *, fusion: bool) -> coop_jax.TracedProgram:
    """The train step of a program, its state donated."""
    program: models.TrainingProgram = getattr(models, name)()
    return coop_jax.trace_program(
        program.step, program.init, program.batch(0), donate_argnums=0, fusion=fusion
    )


def overheads(
    programs: Sequence[coop_jax.TracedProgram], shares: Sequence[float]
) -> tuple[list[str], float]:
    """Of each program and share, as percent; seconds that it took."""
    began = time.perf_counter()
    found = [
        simulation
        for program in programs
        for simulation in coop_jax.sweep(program, budget=shares, policy="lookahead", progress=False)
    ]
    seconds = time.perf_counter() - began
    return [f"{100 * x.overhead:.2f}%" if x.feasible else "-" for x in found], seconds


def replaced(assignments: Sequence[str]) -> constants.Constants:
    """The constants with those that `name=value` sets; values are Python literals."""
    pairs = (assignment.partition("=") for assignment in assignments)
    return dataclasses.replace(
        constants.TUNED, **{name: ast.literal_eval(value) for name, _, value in pairs}
    )


def main() -> None:
    """Prints a line for each program and budget, and the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("constants", nargs="+", metavar="name=value")
    parser.add_argument("--programs", default="cnn,mlp,gpt")
    parser.add_argument("--shares", default="0.9,0.6,0.45,0.3")
    flags = parser.parse_args()
    tuned = replaced(flags.constants)
    shares = [float(x) for x in flags.shares.split(",")]
    kinds = [(name, fusion) for name in flags.programs.split(",") for fusion in (True, False)]
    programs = [traced(name, fusion=fusion) for name, fusion in kinds]
    before, seconds_before = overheads(programs, shares)
    constants.TUNED = tuned
    after, seconds_after = overheads(programs, shares)
    rows = ((name, fusion, share) for name, fusion in kinds for share in shares)
    for (name, fusion, share), old, new in zip(rows, before, after, strict=True):
        mark = "" if old == new else "  <-"
        print(f"{name:>4}{', fused' if fusion else '':<7} {share:>4.0%} {old:>8} {new:>8}{mark}")
    print(f"planning took {seconds_before:.1f} s, then {seconds_after:.1f} s")


if __name__ == "__main__":
    main()
