"""What `remat_eager` needs where memory is tight, beside the simulated planner.

    python -m tests.benchmarks.little_memory [networks, separated by commas]

For each network: the least budget as a share of the peak without one, and at shares of that peak
how many operations run again for each that runs (`again`), and the time as a multiple of that of a
call without a budget (the median of rounds in which the two take turns). Beside it the same of
`simulate` with the program unfused, which knows it ahead. Recomputations are the same on every
machine; times are not.
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from tests.benchmarks.little_networks import NETWORKS, Network
from tests.benchmarks.machine import heading

SHARES = (1.0, 0.7, 0.5, 0.4, 0.3)
ROUNDS = 5
# Least budgets are known to this share of the peak.
RESOLUTION = 0.01


def seconds(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Of one call, until its results are there."""
    begin = time.perf_counter()
    jax.block_until_ready(call(*args))
    return time.perf_counter() - begin


def again(stats: coop_jax.Stats) -> float:
    """Recomputed operations for each that is no recomputation."""
    return stats.rematerialisations / max(1, stats.operations)


def at_budget(network: Network, full: Any, budget: int) -> str:
    """Recomputation and time of calls in so many bytes."""
    function, args = network
    step = coop_jax.remat_eager(function, budget=budget)
    ratios = []
    try:
        seconds(step, args)
        for _ in range(ROUNDS):
            ratios.append(seconds(step, args) / seconds(full, args))
    except coop_jax.BudgetExceededError:
        return "refused"
    return f"{again(step.runtime.stats()):.2f} {statistics.median(ratios):.2f}x"


def least(fits: Callable[[int], bool], peak: int) -> int | None:
    """The least budget that fits, by bisection; None if the peak does not."""
    low, high = 0, int(1.02 * peak)
    if not fits(high):
        return None
    while high - low > RESOLUTION * peak:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def fits_eager(network: Network) -> Callable[[int], bool]:
    """Whether a call completes in so many bytes."""
    function, args = network

    def fits(budget: int) -> bool:
        try:
            coop_jax.remat_eager(function, budget=budget)(*args)
        except coop_jax.BudgetExceededError:
            return False
        return True

    return fits


def rows(name: str, network: Network) -> None:
    """Prints what there is to say of one network."""
    function, args = network
    full = coop_jax.remat_eager(function)
    seconds(full, args)
    seconds(full, args)
    stats = full.runtime.stats()
    peak, workspace = stats.peak_bytes, stats.workspace_bytes
    eager = least(fits_eager(network), peak)
    simulated = coop_jax.min_budget(function, *args, policy="coop", workspace=workspace)
    found = "-" if eager is None else f"{eager / peak:.2f}"
    print(
        f"{name}: peak {peak / 2**20:.1f} MiB, {stats.operations // 2} operations; least budget"
        f" {found} of the peak, simulated {simulated / peak:.2f}"
    )
    for share in SHARES:
        budget = int(share * peak)
        simulation = coop_jax.simulate(
            function, *args, budget=budget, policy="coop", workspace=workspace
        )
        planned = (
            f"{simulation.rematerialisations / simulation.operations:.2f}"
            if simulation.feasible
            else "refused"
        )
        print(f"  {share:.0%}: {at_budget(network, full, budget)}; simulated {planned}", flush=True)


def main() -> None:
    """Prints the table."""
    os.environ["COOP_JAX_FUSION"] = "0"  # the simulated program is that of single operations
    print(heading(ROUNDS, 1))
    wanted = sys.argv[1].split(",") if len(sys.argv) > 1 else list(NETWORKS)
    for name in wanted:
        rows(name, NETWORKS[name]())


if __name__ == "__main__":
    main()
