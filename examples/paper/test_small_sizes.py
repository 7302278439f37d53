"""The small sizes of the eight networks train under a budget and with checkpoints.

Their compiled operations take minutes without a cache: they run with the slow tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import coop_jax
from examples.paper.networks import NETWORKS, Network

pytestmark = pytest.mark.slow
names = pytest.mark.parametrize("name", NETWORKS)


def on_host(tree: Any) -> Any:
    """The same tree of NumPy arrays."""
    return jax.tree.map(np.array, tree)


def assert_same_bits(found: Any, expected: Any) -> None:
    """Fails, naming the first leaf that differs."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, a), b in pairs:
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes(), f"{jax.tree_util.keystr(path)}: bits differ"


def small_step(network: Network, budget: int | None) -> Any:
    """The small size's train step under a budget."""
    if network.dynamic:
        return coop_jax.remat_eager(network.eager_step("small"), budget=budget)
    step = network.make_step("small")
    return coop_jax.run(step.fn, budget=budget, donate_argnums=step.donate_argnums)


def train(step: Any, state: Any, batches: Iterator[Any]) -> tuple[Any, list[float]]:
    """The last state (NumPy) and the losses."""
    losses = []
    for batch in batches:
        state, loss = step(state, batch)
        losses.append(float(loss))
    return on_host(state), losses


def smallest_feasible(call: Callable[[int], Any], wanted_bytes: int, most_bytes: int) -> int:
    """The least budget found from `wanted_bytes` up at which it works.

    What an error says would do is tried next, a twentieth more where it does not say.
    """
    budget_bytes = wanted_bytes
    while budget_bytes < most_bytes:
        try:
            call(budget_bytes)
        except coop_jax.BudgetExceededError as error:
            named = error.report.smallest_budget_bytes
            assert named is None or named > budget_bytes
            budget_bytes = named or budget_bytes + most_bytes // 20
            continue
        return budget_bytes
    raise AssertionError("no budget below that of an unbudgeted run works")


@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
@names
def test_the_small_size_trains_in_part_of_its_memory_with_the_same_bits(name: str) -> None:
    network = NETWORKS[name]
    init = on_host(network.init("small"))
    step = small_step(network, None)
    wanted, losses = train(step, init, itertools.islice(network.batches("small"), 2))
    peak = step.runtime.stats().peak_bytes
    # What one operation needs for itself, most of the memory for SPOS's convolutions, never goes.
    workspace = step.runtime.stats().workspace_bytes
    enough = workspace + int(0.8 * (peak - workspace))

    def two_steps(budget_bytes: int) -> None:
        nonlocal step
        step = small_step(network, budget_bytes)
        found, found_losses = train(step, init, itertools.islice(network.batches("small"), 2))
        assert_same_bits(found, wanted)
        assert found_losses == losses

    budget_bytes = smallest_feasible(two_steps, int(0.6 * peak), peak)
    assert budget_bytes < enough
    # Later steps find the pool cut otherwise, and an eager one may need a little more then.
    budget_bytes = enough
    step = small_step(network, budget_bytes)
    _, losses = train(step, init, itertools.islice(network.batches("small"), 16))
    assert np.mean(losses[-4:]) < 0.97 * np.mean(losses[:4]), losses
    stats = step.runtime.stats()
    assert stats.peak_bytes <= budget_bytes
    assert stats.evictions > 0


@pytest.mark.unless_fused("checkpoints change what is fused, and so the last bits")
@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
@names
def test_checkpoints_change_memory_and_no_results(name: str) -> None:
    network = NETWORKS[name]
    state = on_host(network.init("small"))
    batch = network.setting("small").task.sample(0)
    wanted: Any = None
    for remat in network.remat:
        step = coop_jax.run(network.make_step("small", remat).fn, budget=None, donate_argnums=0)
        found = on_host(step(state, batch))
        peak = step.runtime.stats().peak_bytes
        if wanted is None:
            wanted, most = found, peak
        if name == "bilstm":
            # Its weights are shared by all steps: their gradients are summed segment by segment.
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        else:
            assert_same_bits(found, wanted)
        assert remat == "none" or peak < most
