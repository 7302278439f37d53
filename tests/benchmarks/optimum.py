"""Plans against the optimum: random programs of up to 13 operations, and chains of layers.

The time of a plan (each operation once, and what is recomputed) to the least of any schedule, which
`tests.testing.optima` finds exactly for memory without addresses, in any order of operations.
Capacities of random programs are drawn between what their largest operation needs and what they
need without recomputation; those in which no schedule fits are left out. All of it is simulated, so
the numbers are the same on every machine.

Run: python -m tests.benchmarks.optimum [--programs=200] [--policies=lookahead,coop]
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

from absl import app, flags

import coop_jax
from tests.testing import optima

_PROGRAMS = flags.DEFINE_integer("programs", 200, "How many random programs.", lower_bound=1)
_POLICIES = flags.DEFINE_list("policies", ["lookahead", "coop", "dte", "dtr"], "Which policies.")
_LAYERS = (8, 16, 32, 64)


def _ratio(graph: optima.Graph, capacity: int, policy: str, least: float) -> float:
    """Infinite where it does not fit."""
    found = coop_jax.simulate(graph.traced(), budget=capacity * optima.UNIT_BYTES, policy=policy)
    seconds = found.compute_seconds + found.recompute_seconds
    return seconds / least if found.feasible else math.inf


def _summary(ratios: Sequence[float]) -> str:
    fitting = sorted(r for r in ratios if r < math.inf)
    if not fitting:
        return "nothing fits"
    at = fitting[math.ceil(0.95 * len(fitting)) - 1]
    return (
        f"mean {statistics.fmean(fitting):.3f}, 95% up to {at:.3f}, largest {fitting[-1]:.3f};"
        f" {len(ratios) - len(fitting)} of {len(ratios)} do not fit"
    )


def _random_programs() -> None:
    cases = []
    seed = 0
    while len(cases) < _PROGRAMS.value:
        graph = optima.random_graph(seed)
        if graph.least() < graph.peak():
            capacity = random.Random(seed).randrange(graph.least(), graph.peak())
            least = optima.least_seconds(graph, capacity)
            if least < math.inf:
                cases.append((graph, capacity, least))
        seed += 1
    print(f"{len(cases)} random programs of up to 13 operations, plan / optimum:")
    for policy in _POLICIES.value:
        found = [_ratio(graph, capacity, policy, least) for graph, capacity, least in cases]
        print(f"  {policy:10} {_summary(found)}", flush=True)


def _chains() -> None:
    print("chains of layers, forward and backward, plan / optimum (optimum / without a budget):")
    for layers in _LAYERS:
        for seed, costs in ((None, "equal costs"), (1, "random costs")):
            graph = optima.chain(layers, seed)
            for capacity in sorted({5, int(2 * math.sqrt(layers)) + 2, layers // 2 + 2}):
                least = optima.least_chain_seconds(graph, capacity)
                ratios = ((p, _ratio(graph, capacity, p, least)) for p in _POLICIES.value)
                print(
                    f"  {layers:2} layers, {costs:12} memory {capacity / graph.peak():4.0%}"
                    f" ({least / graph.seconds:.2f}):  "
                    + "  ".join(f"{p} {'-' if r == math.inf else f'{r:.3f}'}" for p, r in ratios),
                    flush=True,
                )


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    _random_programs()
    _chains()


if __name__ == "__main__":
    app.run(main)
