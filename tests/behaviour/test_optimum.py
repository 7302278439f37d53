"""Plans against the least that any schedule recomputes. No plan may be below it; lookahead's are
close. The bounds themselves are tested against each other: they come of three methods.
"""

from __future__ import annotations

import functools
import math
import random
import statistics

import pytest

import coop_jax
from tests.testing import bounds, optima

pytestmark = [
    pytest.mark.no_recomputation("nothing runs: what is compared are plans"),
    pytest.mark.usefixtures("full_search"),
]


def seconds(graph: optima.Graph, capacity: int, policy: str) -> float:
    simulation = coop_jax.simulate(
        traced(graph), budget=capacity * optima.UNIT_BYTES, policy=policy
    )
    if not simulation.feasible:
        return math.inf
    assert simulation.peak_bytes <= capacity * optima.UNIT_BYTES
    return simulation.compute_seconds + simulation.recompute_seconds


@functools.cache
def traced(graph: optima.Graph) -> coop_jax.TracedProgram:
    return graph.traced()


def small(seed: int) -> tuple[optima.Graph, int] | None:
    """A graph and a capacity in which it fits only with recomputation."""
    graph = optima.random_graph(seed)
    if graph.least() >= graph.peak():
        return None
    capacity = random.Random(seed).randrange(graph.least(), graph.peak())
    return graph, capacity


def test_with_room_for_all_the_least_is_every_job_once() -> None:
    for seed in range(20):
        graph = optima.random_graph(seed)
        assert optima.least_seconds(graph, graph.peak()) <= graph.seconds
        assert optima.checkmate_seconds(graph, graph.peak()) == pytest.approx(graph.seconds)
        assert optima.least_seconds(graph, graph.least() - 1) == math.inf
    for layers in (1, 9):
        chain = optima.chain(layers, 0)
        assert optima.least_chain_seconds(chain, chain.peak()) == pytest.approx(chain.seconds)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_two_ways_to_find_the_least_of_a_chain_agree(seed: int | None) -> None:
    for layers in (1, 2, 5):
        graph = optima.chain(layers, seed)
        found = [
            (optima.least_chain_seconds(graph, c), optima.least_seconds(graph, c))
            for c in range(graph.least() - 1, graph.peak() + 1)
        ]
        assert found[0] == (math.inf, math.inf)
        for a, b in found[1:]:
            assert a == pytest.approx(b)
            assert a < math.inf


def test_the_mixed_integer_program_is_never_below_the_shortest_path() -> None:
    compared = equal = 0
    for seed in range(40):
        case = small(seed)
        if case is None or len(case[0].jobs) > 8:
            continue
        graph, capacity = case
        least, kept_order = optima.least_seconds(graph, capacity), optima.checkmate_seconds(*case)
        assert kept_order >= least - 1e-6
        compared += 1
        equal += kept_order == pytest.approx(least)
    assert compared >= 5
    assert equal >= compared * 0.7


@pytest.mark.parametrize("policy", ["coop", "dte", "dtr", "lookahead"])
def test_no_plan_is_better_than_the_optimum(policy: str) -> None:
    recomputed = 0
    for seed in range(0 if policy == "lookahead" else 100, 130, 2):
        case = small(seed)
        if case is None:
            continue
        found, least = seconds(*case, policy), optima.least_seconds(*case)
        assert found >= least - 1e-9
        recomputed += case[0].seconds < found < math.inf
    assert recomputed > 0


def test_lookahead_is_close_to_the_optimum_of_small_programs() -> None:
    ratios, unfit = [], 0
    for seed in range(200, 230):
        case = small(seed)
        if case is None or (least := optima.least_seconds(*case)) == math.inf:
            continue
        found = seconds(*case, "lookahead")
        unfit += found == math.inf
        if found < math.inf:
            ratios.append(found / least)
    assert len(ratios) >= 15
    assert statistics.fmean(ratios) <= 1.10
    assert unfit <= 0.2 * len(ratios)


@pytest.mark.parametrize("layers", [8, 24, 64])
def test_lookahead_is_close_to_the_optimum_of_a_chain(layers: int) -> None:
    graph = optima.chain(layers, 0)
    for capacity in (graph.least() + 1, int(2 * math.sqrt(layers)) + 2, layers // 2):
        least = optima.least_chain_seconds(graph, capacity)
        assert least * (1 - 1e-9) <= seconds(graph, capacity, "lookahead") <= 1.15 * least


def test_what_is_dear_to_make_is_held_for_what_is_made_from_it() -> None:
    """Of each layer a dear value and two made from it; the backward pass reads those alone.

    To keep them instead takes twice the memory. A plan that only knows what is read when drops the
    dear one when its readers have run, and has nothing cheap to evict.
    """
    layers, jobs, x, made = 12, [], 0, 1
    saved = []
    for _ in range(layers):
        jobs.append(optima.Job((x,), (made,), 10.0))
        jobs += [optima.Job((made,), (made + k,), 0.1) for k in (1, 2)]
        jobs.append(optima.Job((made + 1, made + 2), (made + 3,), 0.1))
        saved.append((made + 1, made + 2))
        x, made = made + 3, made + 4
    for pair in reversed(saved):
        jobs.append(optima.Job((x, *pair), (made,), 1.0))
        x, made = made, made + 1
    graph = optima.Graph((1,) * made, 1, tuple(jobs), (x,))
    plain = coop_jax.Policy("lookahead", search_effort=0)
    for capacity in (22, 19):
        least = bound(graph, capacity)
        found = coop_jax.simulate(traced(graph), budget=capacity * optima.UNIT_BYTES, policy=plain)
        assert least * (1 - 1e-9) <= found.recompute_seconds <= 1.5 * least, capacity
        assert seconds(graph, capacity, "coop") - graph.seconds > 3 * least


def bound(graph: optima.Graph, capacity: int) -> float:
    return bounds.least_recompute_seconds(traced(graph), capacity * optima.UNIT_BYTES)


def test_the_linear_bound_of_a_program_known_by_hand() -> None:
    """Three values are read again behind a large one: the cheapest for their bytes have to go.

    Unless nothing has read them before: then what makes them can wait.
    """
    costs, sizes = (4.0, 1.0, 2.0), (2, 1, 2)
    makes = [optima.Job((0,), (n + 1,), cost) for n, cost in enumerate(costs)]
    large = optima.Job((0,), (4,), 1.0)
    last = optima.Job((1, 2, 3, 4), (5,), 1.0)
    graph = optima.Graph((1, *sizes, 3, 1), 1, (*makes, large, last), (5,))
    # While the last one runs there must be 1 + 5 + 3 + 1 in any case, so nothing is left to save
    # there; with a result that takes the place of the large value the others are what matters.
    assert graph.least() == graph.peak() == 10
    assert bound(graph, 10) == 0.0
    assert bound(graph, 9) == math.inf
    split = (
        optima.Job((4,), (5,), 1.0),
        optima.Job((1,), (6,), 1.0),
        optima.Job((2,), (7,), 1.0),
        optima.Job((3,), (8,), 1.0),
    )
    graph = optima.Graph((1, *sizes, 9, 1, 1, 1, 1), 1, (*makes, large, *split), (5, 6, 7, 8))
    assert graph.peak() == 16  # the large one, what is made of it, the three, the input
    assert bound(graph, 12) == pytest.approx(0.0)
    used = optima.Job((1, 2, 3), (9,), 1.0)
    large = optima.Job((9,), (4,), 1.0)
    jobs = (*makes, used, large, *split)
    graph = optima.Graph((1, *sizes, 9, 1, 1, 1, 1, 1), 1, jobs, (5, 6, 7, 8))
    assert graph.peak() == 16
    assert bound(graph, 16) == pytest.approx(0.0)
    assert bound(graph, 15) == pytest.approx(1.0)  # the second, at 1 for a byte; or half the third
    assert bound(graph, 13) == pytest.approx(3.0)  # both
    assert bound(graph, 12) == pytest.approx(5.0)  # and half of the first


def test_the_linear_bound_counts_what_a_repeated_operation_reads() -> None:
    """The first value is read by the second job alone, which has to run again for the last."""
    jobs = (
        optima.Job((0,), (1,), 5.0),
        optima.Job((1,), (2,), 1.0),
        optima.Job((2,), (6,), 1.0),
        optima.Job((6,), (3,), 1.0),
        optima.Job((3,), (4,), 1.0),
        optima.Job((2,), (5,), 1.0),
    )
    graph = optima.Graph((1, 4, 2, 9, 1, 1, 1), 1, jobs, (4, 5))
    assert graph.peak() == 13
    assert bound(graph, 11) == pytest.approx(6.0)


def test_no_plan_is_below_the_linear_bound() -> None:
    positive = tight = compared = 0
    for seed in range(60):
        case = small(seed)
        if case is None:
            continue
        graph, capacity = case
        least = bound(graph, capacity)
        for policy in ("lookahead", "coop", "dtr"):
            assert seconds(graph, capacity, policy) >= graph.seconds + least - 1e-6, seed
        if len(graph.jobs) <= 8:
            kept_order = optima.checkmate_seconds(graph, capacity) - graph.seconds
            assert kept_order >= least - 1e-6, seed
            compared += 1
            tight += 0 < least == pytest.approx(kept_order)
        positive += least > 0
    assert compared >= 10
    assert tight >= 2
    assert positive >= 20


@pytest.mark.parametrize("seed", [56, 58, 65, 75, 77, 102])
def test_where_all_fits_addresses_are_found_and_nothing_is_recomputed(seed: int) -> None:
    """Programs for which a plan that places as it goes finds the pool in pieces."""
    graph = optima.random_graph(seed, 60)
    assert seconds(graph, graph.peak(), "lookahead") == pytest.approx(graph.seconds)
    assert seconds(graph, graph.peak(), "coop") > graph.seconds
