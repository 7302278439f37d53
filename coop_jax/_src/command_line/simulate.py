"""`coop-jax simulate`: what budgets cost under several policies, as a table.

Model: fractions are of the first policy's peak without a budget, so that all policies have the same
budgets. Policies are as the runtime has them, with variants where their own plan does not fit.

Thread rule: functions of their arguments. Cost: a plan for each policy and budget, on all cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any, TextIO

from coop_jax._src.command_line import options, targets, text
from coop_jax._src.planning import policies
from coop_jax._src.run.budget_queries import sweep
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.simulate.simulator import simulate
from coop_jax._src.simulate.traced_program import TracedProgram
from coop_jax._src.util.options import format_bytes, format_seconds

SUMMARY = "what budgets cost under several policies, as a table"
DESCRIPTION = """\
Plans a train step under each budget and policy, as coop_jax.run does, without
running it: whether it fits, what is recomputed, and what that costs.

The columns: peak memory; overhead, seconds of recomputation per second of
computation by the cost model; operations recomputed; fragmentation, the mean
free share of the pool when a request found no block; time spent choosing what
to evict. A fraction is one of the first policy's peak without a budget.
"""
EXAMPLES = """\
examples:
  coop-jax simulate program.json --budget 50% --policy coop,dtr,lookahead
  coop-jax simulate train.py:make_step --budget none,75%,50%,20GiB
  coop-jax simulate program.json --budget 50% --json | jq .simulations
"""
_HEAD = "policy budget size fits peak overhead recomp. frag. search".split()
_LEFT = 2  # columns
_NOT_SHOWN = ("policy", "plan", "basis")


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    targets.add_arguments(parser, programs=True)
    parser.add_argument(
        "--budget",
        type=options.given_budgets,
        metavar="SIZE,...",
        required=True,
        help=options.BUDGET_HELP,
    )
    parser.add_argument(
        "--policy",
        type=options.policy_names,
        metavar="NAME,...",
        default=policies.DEFAULT,
        help="of lookahead (default), coop, dtr, dte",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(command=_run)


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """A simulation and how its policy and budget were written."""

    policy: str
    budget: str
    simulation: Simulation


def _run(given: argparse.Namespace, out: TextIO) -> int:
    program = targets.load_traced(given.target, given.arguments)
    peak = simulate(program, policy=given.policy[0]).peak_bytes
    sizes = [budget.resolved(peak) for budget in given.budget]
    found = sweep(program, budget=sizes, policy=given.policy)
    named = ((p, b.text) for p in given.policy for b in given.budget)
    rows = [_Row(p, b, s) for (p, b), s in zip(named, found, strict=True)]
    print(_json(program, peak, rows) if given.json else _text(program, peak, rows), file=out)
    return 0


def _json(program: TracedProgram, peak: int, rows: list[_Row]) -> str:
    fields = [f.name for f in dataclasses.fields(Simulation) if f.name not in _NOT_SHOWN]
    listed: list[dict[str, Any]] = [
        {"policy": row.policy, "budget": row.budget}
        | {name: getattr(row.simulation, name) for name in fields}
        for row in rows
    ]
    head = {"name": program.name, "unbudgeted_peak_bytes": peak}
    return json.dumps({**head, "simulations": listed}, indent=1)


def _text(program: TracedProgram, peak: int, rows: list[_Row]) -> str:
    operations = len(program.program.operations)
    lines = [f"{program.name}: {operations} operations, {format_bytes(peak)} without a budget", ""]
    lines.append(text.table([_HEAD, *map(_cells, rows)], left=_LEFT))
    least = _least_budgets(program, rows)
    if least:
        lines += ["", *least]
    return "\n".join(lines)


def _cells(row: _Row) -> list[str]:
    s = row.simulation
    size = "-" if s.budget_bytes is None else _short(s.budget_bytes)
    cells = [row.policy, row.budget, size]
    if not s.feasible:
        return [*cells, "no", *("-" * (len(_HEAD) - len(cells) - 1))]
    return [
        *cells,
        "yes",
        _short(s.peak_bytes),
        f"{s.overhead:.1%}",
        str(s.rematerialisations),
        f"{s.fragmentation:.1%}",
        format_seconds(s.search_seconds),
    ]


def _short(count: int) -> str:
    """Bytes with a digit less, so that a row fits into 80 columns."""
    number, unit = format_bytes(count).split()
    return f"{number if unit == 'B' else format(float(number), '.1f')} {unit}"


def _least_budgets(program: TracedProgram, rows: list[_Row]) -> list[str]:
    """For each policy that did not fit somewhere, a budget that works."""
    refused: dict[str, int | None] = {}
    for row in rows:
        if not row.simulation.feasible:
            refused.setdefault(row.policy, row.simulation.budget_bytes)
    lines = []
    for policy, budget_bytes in refused.items():
        smallest = simulate(program, budget=budget_bytes, policy=policy).smallest_budget_bytes
        said = "none was found" if smallest is None else f"{format_bytes(smallest)} fits"
        lines.append(f"smallest budget for {policy}: {said}")
    return lines
