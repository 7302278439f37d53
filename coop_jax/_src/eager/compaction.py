"""After a call: what it returned is put side by side where it would be in the next one's way.

An operation's result goes where room is found for it, and stays there if the function returns it. A
function that is called again with what it returned, as a train step is, then finds its pool cut in
pieces by arrays that cannot go, and what is too large for each of them does not fit any more.
So what lies apart is copied to the left end of the pool, next to what the caller holds already.

Invariants: no array changes but in its address; nothing overlaps. Thread rule: under the runtime's
lock, between calls. Cost: at most a copy of what a call returns, where memory is short; nothing
where the largest free part is as large as all that the call had at its peak.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from coop_jax._src.eager import constants
from coop_jax._src.execution.pool_memory import PoolMemory


def side_by_side(
    memory: PoolMemory,
    results: list[Any],
    avals: Sequence[Any],
    alignment_bytes: int,
    peak_bytes: int,
) -> None:
    """Moves what a call returned together, where it lies apart.

    Args:
      memory: where it lies.
      results: arrays that were lent; those that are moved are replaced. What somebody else holds,
        too, stays where it is, and so does what lies outside the pool.
      avals: of each of them, at least.
      alignment_bytes: of blocks.
      peak_bytes: what the call had in use at most.
    """
    pool = memory.pool
    pool.drain_freed()
    blocks = dict(pool.live_blocks())
    free_bytes = pool.capacity_bytes - sum(blocks.values())
    largest = max(
        (end - begin for begin, end in _gaps(blocks.items(), pool.capacity_bytes)), default=0
    )
    if largest >= min(peak_bytes, constants.TUNED.compact_fraction * free_bytes):
        return
    offsets = [memory.offset_of(x) for x in results]
    movable = [n for n, at in enumerate(offsets) if at in blocks and pool.live_count(at) == 1]
    sizes = {n: -(-blocks[offsets[n]] // alignment_bytes) * alignment_bytes for n in movable}
    total = sum(sizes.values())
    own = {offsets[n] for n in movable}
    others = [block for block in blocks.items() if block[0] not in own]

    def move(n: int, to: int) -> None:
        results[n] = memory.copied(to, memory.spec(avals[n]), results[n])
        blocks[to] = blocks.pop(offsets[n])
        offsets[n] = to

    def room(taken: Iterable[tuple[int, int]], nbytes: int) -> int | None:
        for begin, end in _gaps(taken, pool.capacity_bytes):
            at = -(-begin // alignment_bytes) * alignment_bytes
            if end - at >= nbytes:
                return at
        return None

    target = room(others, total)
    if target is None:
        return
    # What lies where another one goes makes way first.
    places = dict(zip(movable, itertools.accumulate(sizes.values(), initial=target), strict=False))
    for n in movable:
        if offsets[n] != places[n] and target - sizes[n] < offsets[n] < target + total:
            aside = room([*blocks.items(), (target, total)], sizes[n])
            if aside is None:
                return
            move(n, aside)
    for n in movable:
        if offsets[n] != places[n]:
            move(n, places[n])


def _gaps(blocks: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of what no (offset, bytes) of them takes before `end`, from the left."""
    begin = 0
    for at, nbytes in sorted(blocks):
        if begin < min(at, end):
            yield begin, min(at, end)
        begin = max(begin, at + nbytes)
    if begin < end:
        yield begin, end
