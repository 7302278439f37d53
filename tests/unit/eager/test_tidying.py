"""What a call returns is put side by side, so that the next one finds its pool in one piece."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.eager import compaction
from tests.testing.comparison import assert_same_bits
from tests.testing.layers import data, first_params, sgd_step

ALIGNMENT = 64
KIB = 1024


def lent(
    runtime: coop_jax.Runtime, blocks: list[tuple[int, int]], dtype: Any = "float32"
) -> list[jax.Array]:
    """Arrays at these (offset, bytes) of the pool, each with other contents."""
    memory = runtime.memory()
    out = []
    for number, (offset, nbytes) in enumerate(blocks):
        x = (jnp.arange(nbytes // jnp.dtype(dtype).itemsize) + 7 * number).astype(dtype)
        out.append(memory.copied(offset, memory.spec(x.aval), x))
    return out


def tidied(runtime: coop_jax.Runtime, arrays: list[jax.Array], peak_bytes: int = 1 << 40) -> Any:
    """The blocks in which they lie after."""
    before = [np.array(x) for x in arrays]
    avals = [x.aval for x in arrays]
    compaction.side_by_side(runtime.memory(), arrays, avals, ALIGNMENT, peak_bytes)
    assert_same_bits([np.array(x) for x in arrays], before)
    runtime.memory().pool.drain_freed()
    runtime.memory().pool.validate()
    return sorted(runtime.memory().pool.live_blocks())


def test_what_lies_apart_is_put_together() -> None:
    runtime = coop_jax.Runtime(64 * KIB)
    blocks = [(20 * KIB, 4 * KIB), (40 * KIB, 2 * KIB), (60 * KIB, 4 * KIB - 32), (0, KIB)]
    arrays = lent(runtime, blocks)
    assert tidied(runtime, arrays) == [
        (0, 4 * KIB),
        (4 * KIB, 2 * KIB),
        (6 * KIB, 4 * KIB - 32),  # what follows is aligned
        (10 * KIB, KIB),
    ]
    assert tidied(runtime, arrays)[-1] == (10 * KIB, KIB)  # again: nothing moves


def test_it_lies_beside_what_the_caller_has_and_takes_turns_with_it() -> None:
    runtime = coop_jax.Runtime(64 * KIB)
    sizes = [3 * KIB, KIB, 2 * KIB]
    held: list[jax.Array] = []
    ends = []
    for _ in range(4):
        arrays = lent(runtime, [(20 * KIB, sizes[0]), (30 * KIB, sizes[1]), (50 * KIB, sizes[2])])
        blocks = tidied(runtime, arrays)
        assert blocks[-1][0] + blocks[-1][1] - blocks[0][0] == sum(n for _, n in blocks)
        held = arrays  # the ones before go
        del arrays
        ends.append(sorted(runtime.memory().pool.live_blocks())[-1])
    assert ends == [(4 * KIB, 2 * KIB), (10 * KIB, 2 * KIB)] * 2
    del held


def test_what_others_hold_stays() -> None:
    runtime = coop_jax.Runtime(64 * KIB)
    arrays = lent(runtime, [(20 * KIB, 4 * KIB), (50 * KIB, 4 * KIB)])
    memory = runtime.memory()
    other = memory.lend(50 * KIB, memory.spec(arrays[1].aval))
    assert tidied(runtime, arrays) == [(0, 4 * KIB), (50 * KIB, 4 * KIB)]
    assert memory.offset_of(arrays[1]) == memory.offset_of(other) == 50 * KIB


def test_nothing_moves_where_there_is_room_in_one_piece_or_nowhere_to_go() -> None:
    runtime = coop_jax.Runtime(64 * KIB)
    blocks = [(4 * KIB, 4 * KIB), (32 * KIB, 4 * KIB)]
    arrays = lent(runtime, blocks)
    assert tidied(runtime, arrays, peak_bytes=20 * KIB) == blocks
    del arrays
    runtime = coop_jax.Runtime(64 * KIB)
    full = [(0, 8 * KIB), (10 * KIB, 30 * KIB), (41 * KIB, 20 * KIB)]
    arrays = lent(runtime, full)
    blocks = tidied(runtime, arrays)  # each of them lies in the way of another
    assert sum(n for _, n in blocks) == sum(n for _, n in full)


@pytest.mark.parametrize("seed", range(40))
def test_any_layout_keeps_its_contents(seed: int) -> None:
    random = np.random.default_rng(seed)
    runtime = coop_jax.Runtime(64 * KIB)
    blocks, at = [], 0
    while at < 60 * KIB:
        nbytes = int(random.integers(1, 300)) * 16
        if at + nbytes <= 64 * KIB and random.random() < 0.6:
            blocks.append((at, nbytes))
        at += -(-nbytes // ALIGNMENT) * ALIGNMENT
    if not blocks:
        pytest.skip("no blocks")
    dtype = ["float32", "int8", "bfloat16"][seed % 3]
    arrays = lent(runtime, blocks, dtype)
    others = [x for x in arrays if random.random() < 0.3]
    mine = [x for x in arrays if not any(x is y for y in others)]
    del arrays
    places = [runtime.memory().offset_of(x) for x in others]
    tidied(runtime, mine)
    assert [runtime.memory().offset_of(x) for x in others] == places


def trained(budget: int | None, policy: str, steps: int) -> tuple[Any, Any]:
    step = coop_jax.remat_eager(sgd_step, budget=budget, policy=policy)
    params: Any = first_params()
    for number in range(steps):
        params, _ = step(params, data(number))
    return params, step


@pytest.mark.unless_forced("where all is evicted, more is needed")
@pytest.mark.parametrize("policy", ["coop", "lookahead"])
def test_a_step_that_is_given_what_it_returned_finds_the_same_pool_every_other_time(
    policy: str,
) -> None:
    budget = 420_000
    wanted, _ = trained(None, "coop", 6)
    found, step = trained(budget, policy, 6)
    assert_same_bits(found, wanted)
    stats = step.runtime.stats()
    assert stats.peak_bytes <= budget
    assert stats.evictions > 0
    pool = step.runtime.memory().pool
    large = sorted(x for x in pool.live_blocks() if x[1] > KIB)
    assert len(large) == 4
    assert all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(large))
    assert large[-1][0] + large[-1][1] <= 2 * sum(n for _, n in pool.live_blocks()) + 32 * KIB


@pytest.mark.unless_forced("where all is evicted, more is needed")
@pytest.mark.parametrize("budget", range(380_000, 560_000, 20_000))
def test_where_a_budget_does_a_larger_one_does_too(budget: int) -> None:
    """It does not depend on where things happen to lie, and what gets lost for what."""
    wanted, _ = trained(None, "coop", 2)
    found, step = trained(budget, "coop", 2)
    assert_same_bits(found, wanted)
    stats = step.runtime.stats()
    assert stats.peak_bytes <= stats.budget_bytes == budget
    assert stats.rematerialisations > 0
