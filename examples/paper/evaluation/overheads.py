"""Every method at every budget: overhead, fragmentation, search latency.

Budgets are shares of what a step needs under Coop without a budget, the same bytes for all methods.
The engine itself decides; costs are the device profile's. Search times are of this machine, with
as many plans made at once as it has cores: compare them only with each other.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

import coop_jax
from coop_jax._src.ir.cost_model import PROFILES  # rates of the named devices
from examples.paper.evaluation.methods import GIVE_UP, METHODS, NEARBY_FACTORS
from examples.paper.evaluation.tables import Nearby, Overhead
from examples.paper.networks import Network


def unbudgeted(program: coop_jax.TracedProgram, profile: str) -> coop_jax.Simulation:
    """A step without a budget, as Coop does it."""
    return coop_jax.simulate(program, device_profile=profile, alternatives=False)


def simulations(
    program: coop_jax.TracedProgram, method: str, budgets: Sequence[int], profile: str
) -> list[coop_jax.Simulation]:
    """A method at some budgets, on all cores."""
    return coop_jax.sweep(
        program,
        budget=budgets,
        policy=METHODS[method],
        device_profile=profile,
        alternatives=False,
        give_up=GIVE_UP,
        progress=False,
    )


def overheads(
    network: Network,
    program: coop_jax.TracedProgram,
    method: str,
    ratios: Sequence[float],
    profile: str,
    peak_bytes: int,
) -> list[Overhead]:
    """The rows of a method, one for each ratio of `peak_bytes`."""
    budgets = [int(peak_bytes * ratio) for ratio in ratios]
    seconds = program.cost_seconds(PROFILES[profile])
    return [
        _row(network, method, ratio, peak_bytes, simulation, _repeated(simulation, seconds))
        for ratio, simulation in zip(
            ratios, simulations(program, method, budgets, profile), strict=True
        )
    ]


def nearby(
    network: Network,
    program: coop_jax.TracedProgram,
    method: str,
    ratios: Sequence[float],
    profile: str,
    peak_bytes: int,
) -> list[Nearby]:
    """A method's overheads at budgets around each ratio of `peak_bytes`."""
    wanted = [
        (ratio, int(peak_bytes * ratio * near)) for ratio in ratios for near in NEARBY_FACTORS
    ]
    found = simulations(program, method, [budget for _, budget in wanted], profile)
    return [
        Nearby(
            network=network.name,
            title=network.title,
            method=method,
            ratio=ratio,
            budget_bytes=budget,
            overhead=simulation.overhead if simulation.feasible else math.inf,
        )
        for (ratio, budget), simulation in zip(wanted, found, strict=True)
    ]


def _repeated(simulation: coop_jax.Simulation, seconds: Sequence[float]) -> float:
    """Time in operations that had been recomputed before, in a plan."""
    runs = (action for action in simulation.actions if isinstance(action, coop_jax.Run))
    times = collections.Counter(run.operation for run in runs if run.recompute)
    return sum(seconds[number] * (count - 1) for number, count in times.items())


def _row(
    network: Network,
    method: str,
    ratio: float,
    peak_bytes: int,
    simulation: coop_jax.Simulation,
    repeated_seconds: float,
) -> Overhead:
    assert simulation.budget_bytes is not None
    return Overhead(
        network=network.name,
        title=network.title,
        method=method,
        ratio=ratio,
        budget_bytes=simulation.budget_bytes,
        unbudgeted_peak_bytes=peak_bytes,
        feasible=simulation.feasible,
        peak_bytes=simulation.peak_bytes,
        overhead=simulation.overhead,
        compute_seconds=simulation.compute_seconds,
        recompute_seconds=simulation.recompute_seconds,
        repeated_seconds=repeated_seconds,
        operations=simulation.operations,
        evictions=simulation.evictions,
        rematerialisations=simulation.rematerialisations,
        fragmentation=simulation.fragmentation,
        max_fragmentation=simulation.max_fragmentation,
        searches=simulation.searches,
        mean_search_seconds=simulation.mean_search_seconds,
        p99_search_seconds=simulation.p99_search_seconds,
        max_search_seconds=simulation.max_search_seconds,
    )
