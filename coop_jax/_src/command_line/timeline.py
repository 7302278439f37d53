"""`coop-jax timeline`: where things lie in memory during a step, simulated or compiled, and when.

Thread rule: functions of their arguments. Cost: tracing, and a plan or two.
"""

from __future__ import annotations

import argparse
from typing import TextIO

from coop_jax._src.command_line import files, options, targets
from coop_jax._src.command_line.failures import FailureError, UsageError
from coop_jax._src.planning import policies
from coop_jax._src.report.api import memory
from coop_jax._src.report.timeline import Timeline, file_ending, timeline
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.simulate.simulator import simulate
from coop_jax._src.simulate.traced_program import TracedProgram
from coop_jax._src.util.options import format_bytes

SUMMARY = "where things lie in memory during a step, and when: a page"
DESCRIPTION = """\
Plans a train step under a budget, as coop_jax.run does, without running it.
Writes a page that shows where everything lies in memory, and when: evictions,
recomputations, what is live at each moment, and the line that made it.
With --compiled: of the program that XLA makes of the step under jax.jit.
"""
EXAMPLES = """\
FILE, by its ending:
  .html        a page, complete in itself
  .png, .svg   a figure (needs matplotlib: pip install "coop-jax[plots]")
  .json        a trace for https://ui.perfetto.dev
  .pickle      a snapshot for https://pytorch.org/memory_viz

examples:
  coop-jax timeline train.py:make_step -o step.html --budget 50%
  coop-jax timeline train.py:make_step -o jit.html --compiled
  coop-jax timeline train:make -o two.html --budget 50% --beside-budget none
  coop-jax timeline program.json -o step.svg --budget 20GiB --policy coop
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    targets.add_arguments(parser, programs=True)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="file to write")
    parser.add_argument(
        "--budget",
        type=options.given_budget,
        metavar="SIZE",
        help=f"{options.BUDGET_HELP} (default)",
    )
    parser.add_argument(
        "--beside-budget",
        type=options.given_budget,
        metavar="SIZE",
        help="a second budget, shown on the same page for comparison",
    )
    parser.add_argument(
        "--policy",
        type=options.policy_name,
        metavar="NAME",
        help="lookahead (default), coop, dtr or dte",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="the program that XLA compiles, without a plan of coop_jax.run",
    )
    parser.set_defaults(command=_run)


def _run(given: argparse.Namespace, out: TextIO) -> int:
    try:
        ending = file_ending(given.output)
    except ValueError as error:
        raise UsageError(f"argument -o/--output: {error}") from None
    if given.beside_budget is not None and ending != ".html":
        raise UsageError("--beside-budget is for a page: let the name of -o end in .html")
    files.check_writable(given.output)
    if given.compiled:
        if (given.budget, given.beside_budget, given.policy) != (None, None, None):
            raise UsageError("--compiled has no plan: leave out --budget, --policy")
        return _compiled(given, out)
    program = targets.load_traced(given.target, given.arguments)
    policy = given.policy or policies.DEFAULT
    shown, said = _planned(program, given.budget or options.given_budget("none"), policy)
    beside = None
    if given.beside_budget is not None:
        beside, more = _planned(program, given.beside_budget, policy)
        said = f"{said}\n{more}"
    shown.save(given.output, beside=beside)
    print(f"{said}\nwritten: {given.output}", file=out)
    return 0


def _compiled(given: argparse.Namespace, out: TextIO) -> int:
    target = targets.load(given.target, given.arguments)
    report = memory(target.fn, *target.args, **target.kwargs)
    timeline(report).save(given.output)
    print(f"peak {format_bytes(report.peak_bytes)}\nwritten: {given.output}", file=out)
    return 0


def _planned(
    program: TracedProgram, budget: options.GivenBudget, policy: str
) -> tuple[Timeline, str]:
    simulation = simulate(program, budget=budget.budget, policy=policy)
    if not simulation.feasible:
        raise FailureError(f"{program.name} {simulation}")
    cap = "no budget" if budget.budget is None else budget.text
    return timeline(simulation, title=f"{program.name}, {policy}, {cap}"), _said(cap, simulation)


def _said(cap: str, simulation: Simulation) -> str:
    size = simulation.budget_bytes
    of = "" if size is None else f" of {format_bytes(size)}"
    return (
        f"{cap}: peak {format_bytes(simulation.peak_bytes)}{of}, {simulation.evictions} evictions,"
        f" {simulation.rematerialisations} recomputed ({simulation.overhead:.1%} overhead)"
    )
