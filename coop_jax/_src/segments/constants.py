"""Tuned constants of segments; see `planning.constants` for how to read them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # --- Which operations (`partition`) ---

    # Operations of a segment: launches against XLA's compilation time, which is not linear. Not
    # shown.
    max_members: int = 4096

    # A segment that fits is searched for up to this part (1/n) of its operations: launches against
    # segments that are made to be tried. Not shown.
    fitting_resolution: int = 8

    # --- Memory (`compose`, `scratch_blocks`) ---

    # Smaller values are left to XLA: passing one more array costs more than the page.
    # `pytest tests/unit/segments/test_scratch.py`
    min_block_bytes: int = 4096

    # Rounds of adding blocks for values that found no room: each moves others, and after some
    # little is missing. `pytest tests/unit/segments/test_scratch.py`
    max_block_rounds: int = 8

    # An operation with as much workspace gets blocks for it even where it stays alone, and a
    # segment gets more than were expected: memory outside the pool against compiling again. Not
    # shown.
    large_workspace_bytes: int = 1 << 18

    # --- Order of members (`compose`, `segment`) ---

    # Members that pass on as many bytes at once run in our order. XLA goes breadth first, which
    # keeps cores busy where operations are small, but reads values when they have left the caches
    # and needs more memory of its own: in the pool a GPT-3-style step of 51 MB takes 0.73 of
    # `jax.jit` in order, else 0.95; a BiLSTM's of 4 MB 1.28, else 0.99.
    # `python -m tests.benchmarks.compiled`
    in_order_min_bytes: int = 1 << 25

    # Members in order that may run at one time: cores in use against memory, as each waits for the
    # one this many before it and its operands stay until then.
    # `pytest tests/unit/segments/test_composing.py`
    max_concurrent_members: int = 3


TUNED = Constants()
