"""Tuned constants of execution; see `planning.constants` for how to read them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # --- Compilation (`compilation`) ---

    # As few operations are compiled one after the other: threads cost more than they save. Not
    # shown.
    compile_few: int = 4

    # Threads that compile, at most: memory of XLA's compiler against time. Not shown.
    compile_max_threads: int = 8

    # --- Memory (`runtime`, `executor`) ---

    # Without a budget, share of what the allocator of the device has left that the pool takes: the
    # rest is for arrays of others. Not shown.
    unbounded_pool_fraction: float = 0.9

    # Bytes of arguments that were copied into the pool in a call, from which on what they took is
    # given back to the system at once: real memory against the time that malloc takes for it, and
    # for what XLA's libraries had left there. `passes --networks=resnet`
    least_returned_bytes: int = 1 << 22

    # Memory that is held this long after its array was deleted is held by another library: the wait
    # for an error against XLA's threads, which let go late. Not shown.
    release_timeout_seconds: float = 1.0

    # Seconds between two looks for that: latency against work for nothing. Not shown.
    release_poll_seconds: float = 2e-5

    # --- The smallest budget that a call accepts (`fitting`) ---

    # Factor by which a budget is raised until its plan fits with the workspace of its launches, and
    # how often: how near the number is against plans that are made for it. Not shown.
    budget_raise_factor: float = 1.01
    budget_max_raises: int = 20

    # --- Checks (`verification`, `donation_probe`) ---

    # Values up to this size are kept, others as a digest: memory of the host against an error that
    # says what differs. `pytest tests/unit/execution/test_verify.py`
    verified_max_bytes: int = 1 << 16

    # Time for the probe of a device: on a cold machine a GPU's first use loads libraries and tunes
    # kernels for a minute. Not shown.
    probe_timeout_seconds: float = 240.0


TUNED = Constants()
