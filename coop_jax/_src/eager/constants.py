"""Tuned constants of `remat_eager`; see `planning.constants` for how to read them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # --- What is remembered ---

    # Prepared operations of a device under one configuration of JAX (`operation_cache`), and
    # configurations: memory of the process against preparing again. Not shown.
    kept_operations: int = 8192
    kept_configurations: int = 8

    # Operators, and rules of linearization (`trace`), remembered in the process: the same trade for
    # programs whose shapes are new each time. Not shown.
    kept_rules: int = 1 << 14

    # --- Memory (`beside`, `compaction`) ---

    # Room beside the pool is reserved in steps of these bytes, or of this share of the budget if
    # that is less: requests against room that stays empty. Not shown.
    reserve_step_bytes: int = 1 << 16
    reserve_step_fraction: float = 1 / 256

    # With as large a share of the free memory in one piece, results of a call are not moved: copies
    # against fragmentation in the next call. `pytest tests/unit/eager/test_tidying.py`
    compact_fraction: float = 0.9


TUNED = Constants()
