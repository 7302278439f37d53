"""The least budget that works, and the most at which anything is evicted.

The least is searched between budgets of which one is known to work and one not to: two between them
are tried at once, one on each core, until they are closer than the resolution. As in
`coop_jax.min_budget`, feasibility is taken to get better with the budget. It does not quite: a plan
may fail a little above one that works. The answer is always a budget that was simulated and works,
at whose lower neighbour, no further away than the resolution, one was simulated that does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import coop_jax
from examples.paper.evaluation.methods import METHODS
from examples.paper.evaluation.overheads import simulations
from examples.paper.evaluation.tables import Budgets, Overhead
from examples.paper.networks import Network

RESOLUTION = 0.005  # of the unbudgeted peak


def thresholds(
    network: Network,
    program: coop_jax.TracedProgram,
    method: str,
    profile: str,
    peak_bytes: int,
    known: Sequence[Overhead] = (),
) -> Budgets:
    """The row of a method; `known` are rows of it that were simulated already."""
    return Budgets(
        network=network.name,
        title=network.title,
        method=method,
        cutoff_bytes=coop_jax.cutoff_budget(
            program, policy=METHODS[method], device_profile=profile, resolution=RESOLUTION
        ),
        min_bytes=least_budget(program, method, profile, peak_bytes, known),
        unbudgeted_peak_bytes=peak_bytes,
    )


def least_budget(
    program: coop_jax.TracedProgram,
    method: str,
    profile: str,
    peak_bytes: int,
    known: Sequence[Overhead] = (),
) -> int:
    """The least budget that works, to the resolution.

    Raises:
      ValueError: even several times the peak is too little.
    """
    works = [row.budget_bytes for row in known if row.feasible]
    high = min(works, default=0)
    if not high:
        high = _something_that_works(program, method, profile, peak_bytes)
    fails = [r.budget_bytes for r in known if not r.feasible and r.budget_bytes < high]
    low = max(fails, default=0)
    while high - low > max(2, int(peak_bytes * RESOLUTION)):
        tried = [low + (high - low) // 3, low + 2 * (high - low) // 3]
        first, second = (s.feasible for s in simulations(program, method, tried, profile))
        if first:
            high = tried[0]
        elif second:
            low, high = tried
        else:
            low = tried[1]
    return high


def _something_that_works(
    program: coop_jax.TracedProgram, method: str, profile: str, peak_bytes: int
) -> int:
    """Copies on write may need more than the peak."""
    for eighths in range(8, 33, 2):
        budget = peak_bytes * eighths // 8
        if simulations(program, method, [budget], profile)[0].feasible:
            return budget
    raise ValueError(f"{program.name} does not fit four times its peak under {method}")
