"""What stands out in the memory of a program, in words.

Each hint is a fact with its bytes, by rules that look at names, shapes and dtypes only; what is
about, says so.

Thread rule: functions of their arguments. Cost: linear in the buffers at the peak.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from coop_jax._src.report.arguments import Argument
from coop_jax._src.report.buffers import Buffer
from coop_jax._src.report.elsewhere import Held
from coop_jax._src.util.options import format_bytes

# Smaller dimensions are found in many shapes that have nothing to do with the batch.
_LEAST_ROWS = 16
# Of the peak: less is not worth a line.
_LEAST_SHARE = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Hint:
    """A fact.

    Attributes:
      kind: "batch", "donation", "optimizer dtype" or "elsewhere".
      nbytes: how much it is about.
      text: the fact.
    """

    kind: str
    nbytes: int
    text: str


def hints_of(
    buffers: Sequence[Buffer],
    arguments: Sequence[Argument],
    elsewhere: Sequence[Held],
    peak_bytes: int,
) -> tuple[Hint, ...]:
    """What stands out, most bytes first.

    Args:
      buffers: what is in memory at the peak.
      arguments: of the program.
      elsewhere: what the process holds beside them.
      peak_bytes: what the program needs.
    """
    found = [
        *_batch(buffers, peak_bytes),
        *_donation(buffers, arguments),
        *_optimizer_dtype(buffers),
        *_elsewhere(elsewhere),
    ]
    worth = [h for h in found if h.nbytes >= _LEAST_SHARE * peak_bytes]
    return tuple(sorted(worth, key=lambda h: (-h.nbytes, h.kind)))


def _batch(buffers: Sequence[Buffer], peak_bytes: int) -> Iterator[Hint]:
    inputs = [b for b in buffers if b.kind == "inputs" and b.shape]
    if not inputs:
        return
    largest = max(inputs, key=lambda b: b.nbytes)
    rows = largest.shape[0]
    if rows < _LEAST_ROWS:
        return
    grows = sum(
        b.nbytes
        for b in buffers
        if b.kind in ("inputs", "residuals", "temporaries")
        # Rows are often merged with another dimension, such as that of time.
        and (rows in b.shape or (b.shape and b.shape[0] > 0 and b.shape[0] % rows == 0))
    )
    yield Hint(
        "batch",
        grows,
        f"about {grows / max(1, peak_bytes):.0%} grows with the batch: {largest.path or 'an input'}"
        f" has {rows} rows",
    )


def _donation(buffers: Sequence[Buffer], arguments: Sequence[Argument]) -> Iterator[Hint]:
    kept = {a.path for a in arguments if not a.donated and a.path}
    by_root: collections.Counter[str] = collections.Counter()
    made = sum(b.nbytes for b in buffers if b.kind == "results")
    for buffer in buffers:
        if buffer.kind in ("parameters", "optimizer state") and buffer.path in kept:
            by_root[_root(buffer.path)] += buffer.nbytes
    saved = min(made, sum(by_root.values()))
    if saved:
        names = ", ".join(by_root)
        yield Hint(
            "donation",
            saved,
            f"{format_bytes(saved)} of results could be written over {names}, which"
            f" {'is' if len(by_root) == 1 else 'are'} not donated",
        )


def _optimizer_dtype(buffers: Sequence[Buffer]) -> Iterator[Hint]:
    by_dtype: collections.Counter[str] = collections.Counter()
    for buffer in buffers:
        if buffer.kind == "parameters" and _float_bytes(buffer.dtype):
            by_dtype[buffer.dtype] += buffer.nbytes
    if not by_dtype:
        return
    ((dtype, _),) = by_dtype.most_common(1)
    wider = [
        b
        for b in buffers
        if b.kind == "optimizer state" and _float_bytes(b.dtype) > _float_bytes(dtype)
    ]
    more = sum(b.nbytes - b.nbytes * _float_bytes(dtype) // _float_bytes(b.dtype) for b in wider)
    if more:
        yield Hint(
            "optimizer dtype",
            more,
            f"optimizer state is {wider[0].dtype}, parameters are {dtype}:"
            f" {format_bytes(more)} more than in {dtype}",
        )


def _elsewhere(elsewhere: Sequence[Held]) -> Iterator[Hint]:
    """Of what a variable holds; arrays of unknown holders are mostly JAX's own, and many."""
    named = [held for held in elsewhere if held.variable]
    if named:
        total = format_bytes(sum(held.nbytes for held in elsewhere))
        most = max(named, key=lambda held: held.nbytes)
        yield Hint(
            "elsewhere",
            sum(held.nbytes for held in named),
            f"held beside it: {total}, of it {format_bytes(most.nbytes)} in {most}",
        )


def _float_bytes(dtype: str) -> int:
    """Of an item; 0 for what is no floating-point number."""
    try:
        known = jnp.dtype(dtype)
    except TypeError:
        return 0
    return known.itemsize if jnp.issubdtype(known, jnp.floating) else 0


def _root(path: str) -> str:
    """The argument that a path begins with."""
    for end, letter in enumerate(path):
        if letter in ".[":
            return path[:end]
    return path
