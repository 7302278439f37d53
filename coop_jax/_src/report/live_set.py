"""The fullest moment of a program, and what lives then.

Model: an allocation of temporary memory is full at a moment as far as buffers that live then cover
its addresses. Buffers that share addresses (one is written over the other) count once. The sum of
their sizes is an upper bound, so few moments have to be looked at address by address.

Thread rule: functions of their arguments. Cost: n log n of the buffers, times the moments looked
at.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from coop_jax._src.report.buffers import Buffer


def fullest_moment(buffers: Sequence[Buffer], moments: int) -> int:
    """The first moment at which the buffers that live cover most addresses."""
    change = [0] * (moments + 1)
    for buffer in buffers:
        change[buffer.first] += buffer.nbytes
        change[buffer.last + 1] -= buffer.nbytes
    bounds = list(itertools.accumulate(change[:moments]))
    best, found = -1, 0
    for moment in sorted(range(moments), key=lambda m: (-bounds[m], m)):
        if bounds[moment] < best:
            break
        covered = sum(b.nbytes for b in covering(_living(buffers, moment)))
        if (covered, -moment) > (best, -found):
            best, found = covered, moment
    return found


def covering(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Buffers that live at one time, each with the bytes that no earlier one of the list covers.

    Of those that share addresses the one that lives longest comes first.
    """
    free: dict[int, list[tuple[int, int]]] = {}  # by allocation: what is covered
    found = []
    for buffer in sorted(buffers, key=lambda b: (-(b.last - b.first), -b.nbytes, b.offset)):
        taken = free.setdefault(buffer.allocation, [])
        begin, end = buffer.offset, buffer.offset + buffer.nbytes
        own = end - begin - sum(max(0, min(end, e) - max(begin, b)) for b, e in taken)
        if own > 0:
            free[buffer.allocation] = _with(taken, begin, end)
            found.append(
                buffer if own == buffer.nbytes else dataclasses.replace(buffer, nbytes=own)
            )
    return found


def live_at(buffers: Iterable[Buffer], moment: int) -> list[Buffer]:
    """What lives at a moment, each address counted once; largest first."""
    return sorted(covering(_living(buffers, moment)), key=lambda b: (-b.nbytes, b.first, b.offset))


def _living(buffers: Iterable[Buffer], moment: int) -> list[Buffer]:
    return [b for b in buffers if b.first <= moment <= b.last]


def _with(taken: list[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """Ranges that do not touch, and one more."""
    apart = [(b, e) for b, e in taken if e < begin or end < b]
    joined = [(b, e) for b, e in taken if not (e < begin or end < b)]
    for b, e in joined:
        begin, end = min(begin, b), max(end, e)
    return [*apart, (begin, end)]
