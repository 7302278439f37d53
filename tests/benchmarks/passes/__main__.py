"""What each pass of `lowering` saves: time, memory and launches of a train step without it.

For each network and budget one `coop_jax.run` has all passes, and one each lacks a pass. Each round
takes one step of every contender in turn; a ratio is the median over the rounds of a step's time
without the pass divided by that with all, beside it the quartiles. Memory is the peak of a `run`,
everything counted. A pass that leaves a network's program as it is, is not timed: it saves nothing
there ("same program"). Budgets are shares of what the step needs under `jax.jit`.

The summary has, for each pass, geometric means over all networks (1 where the program is the same),
and on how many networks it saves at least 1%: of time if the lower quartile is above 1, too; of
memory where that is compared without a budget. A pass without which a step does not fit into the
budget is named there.

Operations run in segments from the sixth call on, as in `tests.benchmarks.compiled`; with
COOP_JAX_SEGMENTS=0 by themselves.

Run (needs the extra `benchmarks`): python -m tests.benchmarks.passes [--networks=bert,vit]
    [--passes=cse] [--shares=0,0.6] [--repeats=21] [--warmups=8]; a share of 0 is no budget.
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import collections
import dataclasses
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any
from unittest import mock

from absl import app, flags

from coop_jax._src.lowering.pass_options import pass_names
from tests.benchmarks import machine
from tests.benchmarks.budgeted import Budgeted
from tests.benchmarks.contenders import MIB, Program, count_libraries, jitted
from tests.benchmarks.passes.networks import NETWORKS

_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), f"Which of {', '.join(NETWORKS)}.")
_PASSES = flags.DEFINE_list("passes", list(pass_names()), f"Of {', '.join(pass_names())}.")
_SHARES = flags.DEFINE_list("shares", ["0", "0.6"], "Budgets, as shares of jit's memory.")
_REPEATS = flags.DEFINE_integer("repeats", 21, "Timed rounds.", lower_bound=3)
_WARMUPS = flags.DEFINE_integer("warmups", 8, "Rounds before, which compile.", lower_bound=1)

_COUNTS = 1.01  # a pass that saves less than this saves nothing


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """What a step needs without a pass, divided by what it needs with it.

    Attributes:
      time: the median over the rounds.
      quartiles: the lower and the upper one.
      memory: of the peaks.
      launches: more without the pass.
      failed: why there is no step without the pass.
    """

    time: float = 1.0
    quartiles: tuple[float, float] = (1.0, 1.0)
    memory: float = 1.0
    launches: int = 0
    failed: str = ""


def _disabling(name: str) -> Any:
    return mock.patch.dict(os.environ, COOP_JAX_DISABLE_PASSES=name)


def _program_key(program: Program, disabled: str) -> Any:
    """What is to run, to compare; None if it is not known ahead."""
    with _disabling(disabled):
        try:
            traced = coop_jax.trace_program(
                program.step, program.state, program.batch, donate_argnums=0
            ).program
        except ValueError:  # it branches on values
            return None
    # Values that no operation has any more leave gaps in the numbers.
    numbers: dict[int, int] = {}

    def renumbered(values: Sequence[int]) -> list[tuple[int, int, bool]]:
        storages = [traced.values[v].storage for v in values]
        found = [numbers.setdefault(s, len(numbers)) for s in storages]
        return [
            (n, traced.values[v].at_bytes, traced.storages[s].outside)
            for n, v, s in zip(found, values, storages, strict=True)
        ]

    ends = renumbered(traced.inputs), renumbered(traced.outputs)
    operations = [
        (op.kernel.key, renumbered(op.operands), renumbered(op.results), op.in_place)
        for op in traced.operations
    ]
    return ends, operations


def _contender(program: Program, disabled: str, budget: int | None) -> Budgeted:
    with _disabling(disabled):
        return Budgeted(disabled or "all passes", program, budget, policy="lookahead")


def _launches(contender: Budgeted) -> int | None:
    """None where branches on values are interpreted, which has no plan."""
    (signature,) = contender.step._signatures.values()
    return None if signature.program is None else contender.figures().launches


def _saving(contender: Budgeted, complete: Budgeted) -> Saving:
    if contender.failed:
        return Saving(failed=contender.failed)
    ratios = [a / b for a, b in zip(contender.seconds, complete.seconds, strict=True)]
    lower, median, upper = statistics.quantiles(ratios, n=4)
    peaks = [c.step.runtime.stats().peak_bytes for c in (contender, complete)]
    launches = [_launches(c) or 0 for c in (contender, complete)]
    return Saving(median, (lower, upper), peaks[0] / peaks[1], launches[0] - launches[1])


def _measured(program: Program, changing: Sequence[str], budget: int | None) -> dict[str, Saving]:
    """Takes the steps; prints a line for all passes and for each that changes the program."""
    complete = _contender(program, "", budget)
    contenders = [complete, *(_contender(program, name, budget) for name in changing)]
    for number in range(-_WARMUPS.value, _REPEATS.value):
        for contender in contenders:
            contender.take(number >= 0, 1)
    if complete.failed:
        print(f"  all passes: {complete.failed}", flush=True)
        fitting = [c.name for c in contenders if not c.failed]
        print(f"  fits without: {', '.join(fitting) or 'none of them'}", flush=True)
        return {}
    peak = complete.step.runtime.stats().peak_bytes / MIB
    milliseconds = statistics.median(complete.seconds) * 1e3
    print(
        f"  {'all passes':24}{milliseconds:9.1f} ms{peak:9.2f} MiB{_launches(complete):9} launches"
    )
    found: dict[str, Saving] = {}
    for contender in contenders[1:]:
        found[contender.name] = saving = _saving(contender, complete)
        lower, upper = saving.quartiles
        print(
            f"  {contender.name:24}{saving.failed}"
            if saving.failed
            else f"  {contender.name:24}{saving.time:9.3f} ({lower:.3f} to {upper:.3f})"
            f"{saving.memory:9.3f}{saving.launches:+9}",
            flush=True,
        )
    return found


def _print_network(name: str) -> dict[str, dict[str, Saving]]:
    """What each pass saves there, by share and pass."""
    program = NETWORKS[name]()
    complete = _program_key(program, "")
    changing = [p for p in _PASSES.value if _program_key(program, p) != complete]
    need = count_libraries(jitted("jit", program)).need
    print(f"\n{name}: jit needs {need / MIB:.1f} MiB")
    print(f"  {'without':24}{'time / with (quartiles)':>25}{'memory':>11}{'launches':>9}")
    same = ", ".join(p for p in _PASSES.value if p not in changing)
    print(f"  same program: {same or 'none'}", flush=True)
    found: dict[str, Saving] = {}
    for share in _SHARES.value:
        budget = int(float(share) * need) or None
        print(f" {'no budget' if budget is None else f'{budget / MIB:.1f} MiB'}", flush=True)
        if measured := _measured(program, changing, budget):
            unchanged = dict.fromkeys(set(_PASSES.value).difference(changing), Saving())
            found[share] = {**measured, **unchanged}
    return found


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else math.nan


def _print_summary(share: str, by_network: dict[str, dict[str, Saving]]) -> None:
    title = "no budget" if not float(share) else f"{float(share):.0%} of jit's memory"
    print(f"\n{title}, {len(by_network)} networks: mean ratios, networks with 1% or more")
    print(f"{'without':24}{'time':>9}{'networks':>9}{'memory':>9}{'networks':>9}  does not fit")
    for name in _PASSES.value:
        savings = {network: found[name] for network, found in by_network.items()}
        known = [s for s in savings.values() if not s.failed]
        faster = sum(s.time >= _COUNTS and s.quartiles[0] > 1 for s in known)
        smaller = sum(s.memory >= _COUNTS for s in known)
        unfit = ", ".join(network for network, s in savings.items() if s.failed)
        print(
            f"{name:24}{_mean([s.time for s in known]):9.3f}{faster:9}"
            f"{_mean([s.memory for s in known]):9.3f}{smaller:9}  {unfit}"
        )


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if unknown := set(_NETWORKS.value) - set(NETWORKS):
        raise app.UsageError(f"unknown networks: {sorted(unknown)}")
    if unknown := set(_PASSES.value) - set(pass_names()):
        raise app.UsageError(f"unknown passes: {sorted(unknown)}")
    os.environ.setdefault("COOP_JAX_SEGMENTS", "1")
    print(machine.heading(_REPEATS.value, _WARMUPS.value))
    by_share: dict[str, dict[str, dict[str, Saving]]] = collections.defaultdict(dict)
    for name in _NETWORKS.value:
        for share, found in _print_network(name).items():
            by_share[share][name] = found
    for share, found in by_share.items():
        _print_summary(share, found)


if __name__ == "__main__":
    app.run(main)
