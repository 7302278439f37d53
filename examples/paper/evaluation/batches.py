"""The largest batch that fits a device.

Model: a batch fits if a step with it needs no more than the device has: without a budget for a
plain step ("none") and for static checkpoints ("per-layer"), under a budget of it for others.
Each batch is another program, and tracing takes longer than planning, so all methods look at the
same batches: powers of two and `PARTS` steps between each and the next. The answer is one of them,
and the next of them does not fit. What fits is taken to be a range from 1 up, as in
`coop_jax.min_budget`.
Cost: about eight traces for a network, one for each batch that any method looks at.
"""

from __future__ import annotations

from collections.abc import Callable

import coop_jax
from examples.paper.evaluation.overheads import simulations, unbudgeted
from examples.paper.evaluation.tables import Batch
from examples.paper.networks import Network

NETWORKS_COMPARED = ("unet", "resnet50", "bert")
METHODS_COMPARED = ("none", "coop", "dte", "dtr", "per-layer")
PARTS = 8

# The program of a batch, with a checkpointing option.
Tracer = Callable[[str, int], coop_jax.TracedProgram]


def batch_at(index: int) -> int:
    """1, 2, 3 ... 8, 9 ... 16, 18, 20 ...: about a tenth more each."""
    if index < PARTS:
        return index + 1
    octave, part = divmod(index - PARTS + 1, PARTS)
    return (PARTS + part) << octave


def index_of(batch: int) -> int:
    """The index of the largest that is not more."""
    if batch <= PARTS:
        return batch - 1
    octave = batch.bit_length() - PARTS.bit_length()
    return octave * PARTS + (batch >> octave) - 1


def largest_batch(
    network: Network, trace: Tracer, method: str, budget_bytes: int, profile: str, start: int
) -> Batch:
    """The row of a method; the search goes up and down from the batch `start`.

    A network of which not even one sample fits has batch 0.
    """

    def fits(index: int) -> bool:
        if method in ("none", "per-layer"):
            program = trace(method, batch_at(index))
            return unbudgeted(program, profile).unbudgeted_peak_bytes <= budget_bytes
        program = trace("none", batch_at(index))
        return simulations(program, method, [budget_bytes], profile)[0].feasible

    index = largest(fits, index_of(start))
    return Batch(
        network.name,
        network.title,
        method,
        budget_bytes,
        batch_at(index) if index >= 0 else 0,
    )


def largest(fits: Callable[[int], bool], start: int) -> int:
    """The last of the numbers 0, 1, 2 ... that fits; -1 if none does."""
    low, high, step = -1, start, PARTS // 2
    while fits(high):
        low, high = high, high + step
        step = PARTS  # twice the batch
    step = PARTS // 2
    if low < 0:  # the start did not fit: down
        low = max(-1, high - step)
        while low >= 0 and not fits(low):
            step *= 2
            low, high = max(-1, low - step), low
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
