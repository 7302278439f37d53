"""Blocks of the pool in which XLA keeps what a segment's members hand on to each other."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.compat import buffer_assignment, ffi
from coop_jax._src.execution import executable_cache, executables
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.ir import kernels
from coop_jax._src.ir.program import Operation
from coop_jax._src.segments import constants, partition
from coop_jax._src.segments import segment as segments
from coop_jax._src.segments.compose import Composer
from coop_jax._src.segments.scratch_blocks import FOREVER, Buffer, block_bytes
from tests.testing.comparison import assert_same_bits

LEAST_BYTES = constants.TUNED.min_block_bytes
SIZE = 4 * LEAST_BYTES


def test_what_lives_at_the_same_time_lies_apart() -> None:
    assert block_bytes([]) == []
    assert block_bytes([Buffer(SIZE, 0, 1)]) == [SIZE]
    # A chain: each is read as the next is made, the third finds the first gone.
    chain = [Buffer(SIZE, k, k + 1) for k in range(5)]
    assert block_bytes(chain) == [SIZE, SIZE]
    assert block_bytes([Buffer(SIZE, 0, 9), *chain]) == [SIZE] * 3
    assert block_bytes([Buffer(SIZE, 0, 1), Buffer(2 * SIZE, 2, 3)]) == [2 * SIZE]
    assert block_bytes([Buffer(LEAST_BYTES - 1, 0, 9)]) == []


def test_others_lie_in_a_results_place_until_it_is_made() -> None:
    result = Buffer(SIZE, 5, FOREVER)
    assert block_bytes([result]) == []
    assert block_bytes([result, Buffer(SIZE, 0, 2), Buffer(SIZE, 3, 4)]) == []
    assert block_bytes([result, Buffer(SIZE, 3, 5)]) == [SIZE]  # read as the result is made
    assert block_bytes([result, Buffer(2 * SIZE, 0, 2)]) == [2 * SIZE]  # too large for it


def test_others_lie_where_something_was_read_last() -> None:
    gone = Buffer(SIZE, -1, 3)
    assert block_bytes([gone]) == []
    assert block_bytes([gone, Buffer(SIZE, 4, 6), Buffer(SIZE, 7, 9)]) == []
    assert block_bytes([gone, Buffer(SIZE, 3, 6)]) == [SIZE]  # made as that is read
    assert block_bytes([gone, Buffer(2 * SIZE, 4, 6)]) == [2 * SIZE]  # too large for it


@pytest.mark.parametrize("seed", range(40))
def test_blocks_hold_everything_and_none_is_for_nothing(seed: int) -> None:
    rng = random.Random(seed)
    found = []
    for _ in range(rng.randrange(1, 40)):
        begin = rng.randrange(30)
        end = FOREVER if rng.random() < 0.2 else begin + rng.randrange(6)
        if rng.random() < 0.2:
            begin, end = -1, begin
        found.append(Buffer(rng.choice([1, 2, 3, 5, 8]) * LEAST_BYTES, begin, end))
    blocks = block_bytes(found)
    assert blocks == sorted(blocks, reverse=True)
    temporary = [b for b in found if b.end != FOREVER and b.begin >= 0]

    def fits(places: list[int]) -> bool:
        """First fit of all buffers, the largest first, by looking at each pair."""
        results = [b for b in found if b.end == FOREVER or b.begin < 0]
        # As XLA has them: by size, results before others; the last place that is free.
        lies = sorted([(r.nbytes, [r]) for r in results], key=lambda p: -p[0])
        lies += [(n, []) for n in places]
        lies.sort(key=lambda p: (-p[0], not p[1]))
        for b in sorted(temporary, key=lambda b: (-b.nbytes, b.begin)):
            for nbytes, there in reversed(lies):
                if nbytes >= b.nbytes and all(b.end < x.begin or x.end < b.begin for x in there):
                    there.append(b)
                    break
            else:
                return False
        return True

    assert fits(blocks)
    for step in range(40):  # never less than lives at one time beside the results
        alive = [b.nbytes for b in temporary if b.begin <= step <= b.end]
        waiting = [b.nbytes for b in found if b.end == FOREVER and b.begin > step]
        gone = [b.nbytes for b in found if b.begin < 0 and b.end < step]
        assert sum(blocks) + sum(waiting) + sum(gone) >= sum(alive)
    assert len(blocks) <= len(temporary)
    assert set(blocks) <= {b.nbytes for b in temporary}


def chained(x: jax.Array, w: jax.Array) -> jax.Array:
    for k in range(5):
        x = jnp.tanh(x @ w) + k * x
    return x.sum(0)


X = jax.ShapeDtypeStruct((256, 128), jnp.float32)
W = jax.ShapeDtypeStruct((128, 128), jnp.float32)


def executable_of(fn: Any, *avals: Any, in_pool: bool) -> tuple[Any, Any]:
    """A program as one segment, and its executable, all results in slots."""
    cache = kernels.cache_for(jax.devices()[0])
    program = coop_jax.trace_program(fn, *avals, fusion=True).program
    for op in program.operations:
        executable_cache.executable(
            op.kernel, (executables.SLOT,) * len(op.results), cache.device, cache
        )
    while True:
        whole = partition.segmented(program, cache, float("inf"), in_pool=in_pool)
        (op,) = whole.operations
        known = bool(executable_cache.executables(op.kernel))
        found = executable_cache.executable(
            op.kernel, (executables.SLOT,) * len(op.results), cache.device, cache
        )
        if known:
            return op.kernel, found


needs_segments = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="segments are for XLA's CPU compiler"
)


@needs_segments
def test_xla_works_in_blocks_of_the_pool_with_the_same_bits() -> None:
    own, without = executable_of(chained, X, W, in_pool=False)
    segment, within = executable_of(chained, X, W, in_pool=True)
    nbytes = 4 * X.size
    assert own.block_bytes == ()
    assert without.workspace_bytes >= 2 * nbytes
    assert sum(segment.block_bytes) >= 2 * nbytes
    assert within.workspace_bytes < LEAST_BYTES
    assert within.places_outputs
    memory = PoolMemory(1 << 21, jax.devices()[0])
    x, w = (jax.random.normal(jax.random.key(k), a.shape) / 8 for k, a in enumerate((X, W)))

    def called(executable: Any) -> list[jax.Array]:
        kernel, slots, at = executable.kernel, [], 0
        places = []
        for k in executable.slot_results:
            places.append(memory.pool.base + at)
            slots.append(memory.slot(at, memory.spec(kernel.out_avals[k])))
            at += -(-kernel.out_avals[k].size * kernel.out_avals[k].dtype.itemsize // 4096) * 4096
        results = list(executable.call(*slots, x, w))
        assert [r.unsafe_buffer_pointer() for r in results] == places
        return results

    expected = np.array(called(without)[0])
    result, *blocks = called(within)
    assert_same_bits(result, expected)
    assert [(b.shape, b.dtype) for b in blocks] == [((n,), np.uint8) for n in segment.block_bytes]


def test_without_blocks_nothing_is_called() -> None:
    assert ffi.scratch([jnp.ones(3)], []) == []
    jaxpr = jax.make_jaxpr(lambda x: ffi.scratch([x], [W]))(jnp.ones(3))
    assert [(a.shape, a.dtype) for a in jaxpr.out_avals] == [(W.shape, W.dtype)]


@needs_segments
def test_what_xla_keeps_is_told_by_its_buffers() -> None:
    def f(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x @ x)
        return jnp.sin(y @ x) @ y

    compiled = jax.jit(f).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).compile()
    total = compiled.memory_analysis().temp_size_in_bytes
    assert total > 0
    assert max(buffer_assignment.at_once(compiled)) == 64 * 64 * 4
    assert sum(buffer_assignment.at_once(compiled)) <= total

    class Reticent:
        def memory_analysis(self) -> Any:
            return None

    assert buffer_assignment.at_once(Reticent()) == []

    class Terse:
        def memory_analysis(self) -> Any:
            return type("Stats", (), {"temp_size_in_bytes": 128})

    assert buffer_assignment.at_once(Terse()) == [128]


@needs_segments
def test_a_segment_that_needs_more_than_there_is_becomes_several() -> None:
    cache = kernels.cache_for(jax.devices()[0])
    program = coop_jax.trace_program(chained, X, W, fusion=True).program
    for op in program.operations:
        executable_cache.executable(
            op.kernel, (executables.SLOT,) * len(op.results), cache.device, cache
        )

    def made(room: int) -> list[Any]:
        found = partition.segmented(
            program, cache, float("inf"), [room] * len(program.operations), in_pool=True
        )
        assert list(found.values[: len(program.values)]) == list(program.values)
        for op, released in zip(found.operations, found.releases, strict=True):
            added = [v for v in op.results if v >= len(program.values)]
            # Nobody reads a block: it is released at once.
            assert {found.values[v].storage for v in added} <= set(released)
            if isinstance(op.kernel, segments.Segment):
                assert [found.storages[found.values[v].storage].nbytes for v in added] == list(
                    op.kernel.block_bytes
                )
        return [op.kernel for op in found.operations]

    (whole,) = made(1 << 30)
    needed = sum(whole.block_bytes) + 4 * 128
    assert made(1 << 29) == [whole]
    several = made(needed - 1)
    assert len(several) > 1
    assert sum(len(getattr(k, "members", [k])) for k in several) == len(whole.members)


@needs_segments
def test_what_xla_needs_beyond_what_was_expected_is_expected_of_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fn(x: jax.Array, w: jax.Array) -> list[jax.Array]:
        found = []
        for _ in range(12):
            x = jnp.tanh(x @ w)
            found.append(x)
        return found

    cache = kernels.cache_for(jax.devices()[0])
    program = coop_jax.trace_program(fn, X, W, fusion=True).program
    nbytes, count = 4 * X.size, len(program.operations)
    added_by = Composer.added_by

    def known(self: Composer, made: Operation) -> int:
        # Of all together, XLA was seen to need four more.
        beyond = 4 * nbytes * (len(made.kernel.members) == count)
        return added_by(self, made) + beyond

    monkeypatch.setattr(Composer, "added_by", known)
    room = [count * nbytes] * count
    found = partition.segmented(program, cache, float("inf"), room, in_pool=True)
    members = [len(op.kernel.members) for op in found.operations]
    assert sum(members) == count == 12
    assert members[0] == 8  # each result adds its own bytes: there is room for eight and four


@needs_segments
def test_where_no_block_is_needed_nothing_is_expected_outside_the_pool() -> None:
    small = (
        jax.ShapeDtypeStruct((8, 16), jnp.float32),
        jax.ShapeDtypeStruct((16, 16), jnp.float32),
    )
    cache = kernels.cache_for(jax.devices()[0])
    program = coop_jax.trace_program(chained, *small, fusion=True).program
    outside = partition.segmented(program, cache, float("inf"))
    assert segments.temporary_bytes(outside)[0] >= 8 * 16 * 4
    within = partition.segmented(program, cache, float("inf"), in_pool=True)
    assert segments.temporary_bytes(within) == [0]
