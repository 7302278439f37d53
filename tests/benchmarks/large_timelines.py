"""Timelines of any size, without a program: lanes of the pool in which one storage follows another.

Seeded. Lanes have different sizes and lifetimes, as parameters, activations and scratch have; one
storage in ten is evicted, and what follows in its lane is its recomputation.
"""

from __future__ import annotations

import numpy as np

from coop_jax._src.report.timeline import Timeline
from coop_jax._src.report.timeline_data import Ending, Kind, Label, Launches, Residences

_UNIT = 64
_LANES = 400


def large_timeline(residences: int, seed: int = 0) -> Timeline:
    """A timeline of about so many residences, and half as many moments."""
    rng = np.random.default_rng(seed)
    moments = max(2, residences // 2)
    heights = (rng.pareto(1.2, _LANES) * 1e4).astype(np.int64).clip(1, 10**6) * _UNIT
    bottoms = np.concatenate([[0], np.cumsum(heights)])
    shares = rng.dirichlet(np.full(_LANES, 0.5))
    columns = [_lane(rng, max(1, int(n)), moments) for n in shares * residences]
    begin, end = (np.concatenate(part) for part in zip(*columns, strict=True))
    lane = np.repeat(np.arange(_LANES), [len(b) for b, _ in columns])
    order = np.argsort(begin, kind="stable")
    begin, end, lane = begin[order], end[order], lane[order]
    count = len(begin)
    evicted = (rng.random(count) < 0.1) & (end < moments)
    again = rng.random(count) < 0.1
    nbytes = heights[lane]
    labels = tuple(
        Label(f"dot_general+{n}", f"/home/me/model.py:{n} (Layer.__call__)", (n, 128), "float32")
        for n in range(1, 301)
    )
    return Timeline(
        f"{count:,} residences",
        int(bottoms[-1]),
        Residences(
            begin=begin.astype(np.int32),
            end=end.astype(np.int32),
            address=bottoms[lane],
            nbytes=nbytes,
            asked_bytes=nbytes - rng.integers(0, _UNIT, count),
            kind=rng.choice([Kind.FORWARD, Kind.BACKWARD, Kind.STATE], count).astype(np.uint8),
            ending=np.where(evicted, Ending.EVICTED, Ending.DROPPED).astype(np.uint8),
            label=rng.integers(0, len(labels), count).astype(np.int32),
            storage=np.arange(count, dtype=np.int32),
            recomputation=again.astype(np.uint16),
        ),
        Launches(
            rng.integers(0, len(labels), moments).astype(np.int32),
            rng.random(moments) < 0.1,
            np.concatenate([[0.0], np.cumsum(rng.exponential(1e-5, moments))]),
        ),
        labels,
    )


def _lane(
    rng: np.random.Generator, count: int, moments: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Begins and ends of residences that follow each other."""
    cuts = np.unique(rng.integers(0, moments + 1, count + 1))
    if len(cuts) < 2:
        cuts = np.array([0, moments])
    begin, end = cuts[:-1], cuts[1:]
    idle = (rng.random(len(begin)) * 0.3 * (end - begin)).astype(np.int64)
    return begin, end - idle
