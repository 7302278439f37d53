"""Blocks of the pool in which XLA keeps what an executable hands on inside.

XLA takes that memory from its own allocator, so that pages have to go from the pool to the system
and back for it. But its buffer assignment also puts intermediates where an argument lies whose
memory is to become a result's: until that result is made, and wherever nothing else is. So an
executable takes blocks of bytes that it never reads, and returns them at last (see
`compat.ffi.scratch`).

How many, and how large? XLA goes through buffers by size, the largest first, and takes the first
place that is large enough and free while the buffer lives; here the same is done with what is known
before XLA compiles: which value lives when. What it guesses wrong stays XLA's temporary memory,
which is measured as ever.

Thread rule: functions of their arguments. Cost: intermediates times places.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Sequence

from coop_jax._src.segments import constants

FOREVER = math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """What has to lie somewhere for a while.

    Attributes:
      nbytes: how large.
      begin: number of the step that makes it; -1 for what is there before.
      end: number of the last step that reads it; `FOREVER` for a result with memory of its own,
        where others may lie before it is made.
    """

    nbytes: int
    begin: int
    end: float


def block_bytes(buffers: Iterable[Buffer]) -> list[int]:
    """The blocks that hold what has no memory of its own, the largest first.

    Results have their own, others may lie there before; so has what is there before, others may lie
    there after it.
    """
    least = constants.TUNED.min_block_bytes
    large = sorted((b for b in buffers if b.nbytes >= least), key=lambda b: (-b.nbytes, b.begin))
    results = [b for b in large if b.end == FOREVER or b.begin < 0]
    others = [b for b in large if b.end != FOREVER and b.begin >= 0]
    blocks: list[int] = []
    for _ in range(constants.TUNED.max_block_rounds):
        missing = _not_held(results, others, blocks)
        if not missing:
            break
        blocks = sorted((*blocks, *missing), reverse=True)
    return blocks


def _not_held(
    results: Sequence[Buffer], others: Sequence[Buffer], blocks: Sequence[int]
) -> list[int]:
    """Bytes of places that are missing for others: those of results and blocks do not do."""
    places: list[_Place] = []
    missing: list[int] = []
    known = sorted(
        [*((r.nbytes, True, r) for r in results), *((n, False, None) for n in blocks)],
        key=lambda k: (-k[0], not k[1]),
    )
    next_known = 0
    for buffer in others:
        # XLA comes to the memory of results before what is as large.
        while next_known < len(known) and known[next_known][0] >= buffer.nbytes:
            nbytes, _, result = known[next_known]
            places.append(_Place(nbytes))
            if result is not None:
                places[-1].takes(result)
            next_known += 1
        fits = any(place.takes(buffer) for place in reversed(places))
        if not fits:
            places.append(_Place(buffer.nbytes))
            places[-1].takes(buffer)
            missing.append(buffer.nbytes)
    return missing


class _Place:
    """Memory for one buffer at a time."""

    __slots__ = ("_begins", "_ends", "nbytes")

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self._begins: list[int] = []  # of those that lie here, which are apart: sorted as the ends
        self._ends: list[float] = []

    def takes(self, buffer: Buffer) -> bool:
        """Takes a buffer if it is free while that lives."""
        at = bisect.bisect_left(self._ends, buffer.begin)  # the first that ends then or later
        if at < len(self._begins) and self._begins[at] <= buffer.end:
            return False
        self._begins.insert(at, buffer.begin)
        self._ends.insert(at, buffer.end)
        return True
