"""Where the results of a call that is known had better lie: side by side, beside what is there.

A function that is given what it returned then finds its arguments where they were some calls
before, so that its plans serve again.

Thread rule: functions of their arguments. Cost: linear in the recorded call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coop_jax import _core
from coop_jax._src.planning import constants
from coop_jax._src.planning.local_search import Hints


def layout(
    history: _core.History,
    taken: Sequence[tuple[int, int]],
    capacity_bytes: int,
    alignment_bytes: int,
) -> Hints:
    """Where results go, and that what they meet there goes elsewhere; nothing if there is no room.

    Args:
      history: the call that is known.
      taken: (offset, bytes) of what is in the pool, and of what is kept from it.
      capacity_bytes: the budget.
      alignment_bytes: of blocks.
    """
    storage_bytes, made_by = history.storage_bytes, history.made_by
    in_pool = {storage for kind in history.kinds for storage in kind}
    results = sorted(in_pool.intersection(history.outputs))
    if not results:
        return Hints()
    sizes = [rounded(storage_bytes[s], alignment_bytes) for s in results]
    places, sides = [-1] * len(storage_bytes), [0] * len(storage_bytes)
    offsets = side_by_side(sizes, taken, capacity_bytes, alignment_bytes)
    if not offsets:
        return Hints()
    for storage, offset in zip(results, offsets, strict=True):
        places[storage] = offset
    made = itertools.accumulate(sizes)
    begun = constants.TUNED.first_results_share * sum(sizes)
    first = next(s for s, n in zip(results, made, strict=True) if n >= begun)
    there = set(history.alive_at(made_by[first]))
    there.update(s for s in in_pool if made_by[s] >= made_by[first])
    for storage in there.intersection(in_pool).difference(results):
        sides[storage] = 1
    return Hints(sides=sides, places=places)


def side_by_side(
    sizes: Sequence[int], taken: Sequence[tuple[int, int]], capacity_bytes: int, alignment: int
) -> list[int]:
    """Offsets for blocks in that order beside what is taken; none if there is little room.

    They go near the left end of a pool. There lie the results of expensive operations; most of them
    are gone when a call ends, but for small ones at the very end.
    """
    tuned, total = constants.TUNED, sum(sizes)
    if total > tuned.results_share * (capacity_bytes - sum(nbytes for _, nbytes in taken)):
        return []
    at = rounded(int(capacity_bytes * tuned.clear_share), alignment)
    for offset, nbytes in sorted(taken):
        if offset >= at + total:
            break
        at = max(at, rounded(offset + nbytes, alignment))
    if at + total > capacity_bytes:
        return []
    return [at + before for before in itertools.accumulate(sizes, initial=0)][:-1]


def rounded(nbytes: int, alignment: int) -> int:
    """Bytes up to the next multiple of the alignment."""
    return -(-nbytes // alignment) * alignment
