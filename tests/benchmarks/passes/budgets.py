"""What each pass of `lowering` saves at budgets, simulated: exact, the same on every machine.

For each network, without each pass that changes its program: the peak without a budget and the
smallest budget, as multiples of those with all passes; and the seconds of a step at shares of the
unbudgeted peak that it has with all passes, recomputations included, as a multiple likewise.
Seconds and sizes are of the cost model (`ir/cost_model.py`): XLA's temporary memory is left out,
and launches cost what the CPU profile says. `tests.benchmarks.passes` measures.

Run (needs the extra `benchmarks`): python -m tests.benchmarks.passes.budgets [--networks=bert,vit]
    [--passes=cse] [--shares=0.7,0.5]
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import collections
import math
import os
import statistics
from collections.abc import Sequence
from unittest import mock

from absl import app, flags

from coop_jax._src.lowering.pass_options import pass_names
from tests.benchmarks.contenders import MIB, Program
from tests.benchmarks.passes.networks import NETWORKS

_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), f"Which of {', '.join(NETWORKS)}.")
_PASSES = flags.DEFINE_list("passes", list(pass_names()), f"Of {', '.join(pass_names())}.")
_SHARES = flags.DEFINE_list("shares", ["0.7", "0.5"], "Budgets, as shares of the unbudgeted peak.")

_REFUSED = math.nan


def _traced(program: Program, disabled: str) -> coop_jax.TracedProgram | None:
    """None where it branches on values: there is no plan to simulate."""
    with mock.patch.dict(os.environ, COOP_JAX_DISABLE_PASSES=disabled):
        try:
            return coop_jax.trace_program(
                program.step, program.state, program.batch, donate_argnums=0, fusion=True
            )
        except ValueError:
            return None


def _figures(traced: coop_jax.TracedProgram, budgets: Sequence[int]) -> list[float]:
    """Unbudgeted peak, smallest budget, seconds without a budget and in each; nan if refused."""
    free = coop_jax.simulate(traced, budget=None)
    least = coop_jax.min_budget(traced)
    found = [float(free.peak_bytes), float(least), free.compute_seconds]
    for budget in budgets:
        bounded = coop_jax.simulate(traced, budget=budget, policy="lookahead")
        seconds = bounded.compute_seconds * (1 + bounded.overhead)
        found.append(seconds if bounded.feasible else _REFUSED)
    return found


def _line(name: str, values: Sequence[float]) -> str:
    return f"  {name:24}" + "".join(
        f"{'refused':>10}" if math.isnan(v) else f"{v:10.3f}" for v in values
    )


def _network(name: str) -> dict[str, list[float]]:
    """For each pass that matters there, its figures over those with all passes."""
    program = NETWORKS[name]()
    complete = _traced(program, "")
    if complete is None:
        print(f"\n{name}: branches on values", flush=True)
        return {}
    peak = coop_jax.simulate(complete, budget=None).peak_bytes
    budgets = [int(float(s) * peak) for s in _SHARES.value]
    base = _figures(complete, budgets)
    print(
        f"\n{name}: peak {base[0] / MIB:.2f} MiB, smallest budget {base[1] / MIB:.2f} MiB;"
        f" {', '.join(f'{s:.5f}' for s in base[2:])} s",
        flush=True,
    )
    found: dict[str, list[float]] = {}
    for disabled in _PASSES.value:
        traced = _traced(program, disabled)
        if traced is None:
            print(f"  {disabled:24} branches on values without it")
            continue
        figures = _figures(traced, budgets)
        if figures != base:
            found[disabled] = [a / b for a, b in zip(figures, base, strict=True)]
            print(_line(disabled, found[disabled]), flush=True)
    return found


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    for flag, known in ((_NETWORKS, set(NETWORKS)), (_PASSES, set(pass_names()))):
        if unknown := set(flag.value) - known:
            raise app.UsageError(f"unknown: {sorted(unknown)}")
    columns = ["peak", "smallest", "time", *(f"at {float(s):.0%}" for s in _SHARES.value)]
    header = f"  {'without':24}" + "".join(f"{c:>10}" for c in columns)
    print(header)
    by_pass: dict[str, list[list[float]]] = collections.defaultdict(list)
    for name in _NETWORKS.value:
        for disabled, figures in _network(name).items():
            by_pass[disabled].append(figures)
    count = len(_NETWORKS.value)
    print(f"\nmeans over {count} networks, 1 where a pass changes nothing; refusals left out")
    print(header)
    for disabled in _PASSES.value:
        rows = by_pass[disabled]
        means = []
        for k in range(len(columns)):
            known = [r[k] for r in rows if not math.isnan(r[k])] + [1.0] * (count - len(rows))
            means.append(statistics.geometric_mean(known) if known else _REFUSED)
        print(_line(disabled, means))


if __name__ == "__main__":
    app.run(main)
