"""Workspace: reserved for the whole call, or blocks of the pool while an operation runs."""

from __future__ import annotations

import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax
from coop_jax._src.execution.instructions import CompiledPlan, Run
from coop_jax._src.planning.workspace import Provision, malloc_seconds, provisions, refill_seconds
from tests.testing.comparison import assert_same_bits
from tests.testing.processes import output_of

MEBI = 1 << 20


@pytest.fixture(autouse=True)
def one_primitive_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program below needs, and when, depends on what is fused."""
    monkeypatch.setenv("COOP_JAX_FUSION", "0")


def test_without_much_need_there_is_one_way() -> None:
    (way,) = provisions([0, 100, 200], 0, 64 * MEBI)
    assert way.reserved_bytes == 200
    assert not way.own_bytes
    (way,) = provisions([100], 5 * MEBI, 64 * MEBI)
    assert way.reserved_bytes == 5 * MEBI
    (way,) = provisions([], 7, MEBI)
    assert way.reserved_bytes == 7


def test_what_is_needed_is_there_in_every_way() -> None:
    needed = [0, 100, 3 * MEBI, 9 * MEBI, MEBI, 9 * MEBI]
    ways = provisions(needed, 0, 64 * MEBI)
    assert len(ways) > 2
    assert ways[0].reserved_bytes == 9 * MEBI
    for way in ways:
        for number, nbytes in enumerate(needed):
            assert way.suffices(number, nbytes)
            blocks = way.blocks(number)
            # Whole pages can be given back: the rests of a block's ends do not count.
            whole = sum(b - 2 * 4096 for b in blocks)
            assert max(way.reserved_bytes, whole) >= nbytes
            assert all(b <= 64 * MEBI / 32 + 2 * 4096 + 1 for b in blocks)
    assert ways[1].reserved_bytes <= MEBI
    assert not ways[1].suffices(1, 2 * MEBI)
    assert not ways[1].suffices(3, 10 * MEBI)


def test_what_it_costs_to_fill_pages_anew() -> None:
    whole, own, *_ = provisions([0, 8 * MEBI], 0, 16 * MEBI)
    assert refill_seconds(whole, [0, 1, 1]) == 0
    assert refill_seconds(own, [0, 1, 1]) == 2 * refill_seconds(own, [1]) > 0


def test_what_malloc_does_not_keep_is_filled_anew() -> None:
    needed = [8 * MEBI, 32 * MEBI, 40 * MEBI, 50 * MEBI]
    whole = Provision(max(needed))
    assert malloc_seconds(whole, [0, 1], needed) == 0
    assert malloc_seconds(whole, [2, 3, 3, 1], needed) > malloc_seconds(whole, [3, 3], needed) > 0
    own = Provision(32 * MEBI, (0, 0, 0, 50 * MEBI), MEBI)  # counted by `refill_seconds`
    assert malloc_seconds(own, [2, 3], needed) == malloc_seconds(whole, [2], needed)


def pooled(w: jax.Array, x: jax.Array) -> jax.Array:
    """Its gradient needs much workspace at the end, when little else is there any more."""
    image = jnp.tanh(x @ w).reshape(16, -1, 32, 16)
    # So large a window that its gradient is XLA's own (see `ir.max_pool_gradient`).
    h = lax.reduce_window(image, -jnp.inf, lax.max, (1, 6, 6, 1), (1, 2, 2, 1), "SAME")
    for k in range(16):
        h = jnp.tanh(h * (1 + k / 8))
    return (h * h).mean()


def step(w: jax.Array, x: jax.Array) -> Any:
    loss, gradient = jax.value_and_grad(pooled)(w, x)
    return w - 0.1 * gradient, loss


def arguments() -> tuple[jax.Array, jax.Array]:
    key = jax.random.key(0)
    return jax.random.normal(key, (32, 1024)) / 8, jax.random.normal(key, (256, 32))


def plans(budgeted: Any) -> list[CompiledPlan]:
    (signature,) = budgeted._signatures.values()
    return list(signature.plans.values())


def test_operations_get_blocks_where_a_reservation_does_not_fit() -> None:
    w, x = arguments()
    free = coop_jax.run(step)
    expected = free(w, x)
    (plan,) = plans(free)
    workspace = plan.counts.workspace_bytes
    assert workspace > 0.1 * free.runtime.stats().peak_bytes, "else this test shows nothing"
    assert plan.reserved_workspace_bytes == workspace  # nothing is gained by blocks here
    reserved = coop_jax.min_budget(step, w, x, workspace=workspace)
    for share in (0.93, 0.95, 0.97, 0.985):
        budget = int(share * reserved)
        found = coop_jax.run(step, budget=budget)
        try:
            assert_same_bits(found(w, x), expected)
        except coop_jax.BudgetExceededError:
            continue
        break
    for _ in range(2):
        assert_same_bits(found(w, x), expected)
    *_, plan = plans(found)
    assert plan.reserved_workspace_bytes < workspace == plan.counts.workspace_bytes
    emptied = [r for r in plan.instructions if type(r) is Run and r.emptied]
    assert emptied
    stats = found.runtime.stats()
    assert stats.peak_bytes <= budget
    assert stats.workspace_bytes == workspace
    for run in emptied:
        places = sorted((*run.emptied, *((o, s.nbytes) for o, s in run.slots)))
        ends = [offset + nbytes for offset, nbytes in places]
        assert all(a <= b for a, (b, _) in zip(ends, places[1:], strict=False))
        assert sum(n - 2 * 4096 for _, n in run.emptied) >= run.executable.workspace_bytes
    # What is simulated is what runs, now that the operations are compiled.
    assert found.simulate(w, x).peak_bytes == stats.peak_bytes
    assert found.simulate(w, x).rematerialisations * 3 == stats.rematerialisations


def test_pages_of_blocks_are_given_back() -> None:
    w, x = arguments()
    peak = _peak(w, x)
    for share in (0.5, 0.55, 0.6, 0.65, 0.7, 0.75):
        found = coop_jax.run(step, budget=int(share * peak))
        try:
            found(w, x)
        except coop_jax.BudgetExceededError:
            continue
        for _ in range(3):
            found(w, x)
            assert found.runtime.memory().pool.resident_bytes() <= int(share * peak)
        return
    pytest.fail("the program fits into none of these budgets")


def _peak(w: jax.Array, x: jax.Array) -> int:
    free = coop_jax.run(step)
    free(w, x)
    return free.runtime.stats().peak_bytes


def test_the_error_names_a_budget_that_does() -> None:
    w, x = arguments()
    expected = coop_jax.run(step)(w, x)
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        coop_jax.run(step, budget="64KiB")(w, x)
    smallest = caught.value.report.smallest_budget_bytes
    assert smallest is not None
    assert_same_bits(coop_jax.run(step, budget=smallest)(w, x), expected)


@pytest.mark.parametrize("policy", ["coop", "lookahead", "dtr", "dte"])
def test_same_bits_and_no_more_than_the_budget(policy: str) -> None:
    w, x = arguments()
    expected = coop_jax.run(step)(w, x)
    peak = _peak(w, x)
    for share in (0.8, 0.6, 0.45):
        found = coop_jax.run(step, budget=int(share * peak), policy=policy)
        try:
            assert_same_bits(found(w, x), expected)
        except coop_jax.BudgetExceededError:
            continue
        assert found.runtime.stats().peak_bytes <= int(share * peak)
    np.testing.assert_array_less(0, expected[1])


# What XLA's workers keep is as much again for each CPU: two, everywhere.
_MEASURE = """
import ctypes, gc, json, os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import coop_jax, jax, numpy as np
from test_workspaces import step

def status(field):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field))

def settle():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")

random = np.random.default_rng(0)
w = random.standard_normal((32, 16384)).astype(np.float32) / 8
x = random.standard_normal((256, 32)).astype(np.float32)
free = coop_jax.run(step, donate_argnums=0)
free(w, x)
idle = None
for share in np.arange(0.46, 0.8, 0.01):
    budget = int(share * free.runtime.stats().peak_bytes)
    settle()
    idle = status("VmRSS")
    found = coop_jax.run(step, donate_argnums=0, budget=budget)
    try:
        state, loss = found(w, x)
    except coop_jax.BudgetExceededError:
        continue
    for _ in range(2):  # planned and compiled: what that took is the host's
        state, loss = found(state, x)
    (signature,) = found._signatures.values()
    plan = list(signature.plans.values())[-1]
    if plan.reserved_workspace_bytes < plan.counts.workspace_bytes:
        del state, loss
        settle()
        inside = found.runtime.memory().pool.resident_bytes()
        before = status("VmRSS") - inside
        state, loss = found(w, x)
        for _ in range(3):
            state, loss = found(state, x)
        grown = status("VmHWM") - before
        # What others have freed is not looked for, step after step: it stays.
        others = [bytearray(20_000) for _ in range(4000)]
        del others[::2]
        before = status("VmRSS")
        state, loss = found(state, x)
        print(json.dumps([budget, plan.counts.workspace_bytes, grown, before - status("VmRSS")]))
        break
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="reads /proc, as on Linux")
def test_the_process_takes_no_more_than_the_budget() -> None:
    switches = ("COOP_JAX_VERIFY", "COOP_JAX_FORCE_EVICTION", "COOP_JAX_FUSION")
    printed = output_of(_MEASURE, environment=dict.fromkeys(switches, "0"))
    assert printed, "no budget was found at which operations have blocks of their own"
    budget, workspace, grown, returned = json.loads(printed)
    assert workspace > 16 * MEBI
    assert grown < budget + 4 * MEBI, (budget, grown)
    assert returned < 16 * MEBI, returned
