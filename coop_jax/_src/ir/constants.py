"""Tuned constants of programs and kernels; see `planning.constants` for how to read them.

What devices take is in `cost_model`, a `DeviceProfile` each.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # --- Stacks (`stacks`) ---

    # Where operations are fused, a stack that is at most this share of the arguments is put
    # together when it is computed with: an operation for each part (the biases of each layer)
    # against memory for the whole. `pytest tests/unit/ir/test_scanned_layers.py`
    small_stack_fraction: float = 1 / 512

    # Fan-in of the tree of operations that puts a stack together: launches against parts that
    # cannot be evicted meanwhile. Not shown.
    stack_fan_in: int = 8

    # --- Kernels (`retention`, `max_pool_gradient`) ---

    # Kernels that are kept at first, some 300 KB each of compiled code and what XLA keeps of it:
    # memory of the process against compiling again. Not shown.
    kept_kernels: int = 512

    # Elements of a window whose gradient is computed element by element, which takes some equations
    # for each: 3 by 3 by 3 is what networks have. `pytest tests/unit/ir/test_pooling.py`; what such
    # a gradient saves: `python -m tests.benchmarks.pooling`.
    pooling_max_window_elements: int = 27


TUNED = Constants()
