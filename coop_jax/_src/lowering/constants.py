"""Tuned constants of lowering; see `planning.constants` for how to read them.

Commands, which fail with much smaller values: `bundling`, `fusion`, `recurrent_cells`:
`pytest tests/unit/lowering/test_bundling.py` and so on; `control_flow`:
`pytest tests/behaviour/test_control_flow.py`.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # --- What stays outside the pool ---

    # Values up to this size are counted, never evicted, and cut chains of recomputation: bytes that
    # cannot be freed against slots that cost more than they hold. Not shown.
    small_bytes: int = 256

    # --- What runs as one operation although it is several equations (`inlining`) ---

    # Results and equations of a call or branch: fewer operations against values that cannot be
    # evicted one by one. Not shown.
    group_max_results: int = 4
    group_max_equations: int = 64

    # The same of a loop's body. `control_flow`
    loop_max_equations: int = 256

    # Bytes that a `while_loop` carries: its values are in memory twice anyway. `control_flow`
    loop_max_carry_bytes: int = 1 << 16

    # Elements of a constant that is part of the kernel: larger ones are operands, so that kernels
    # are shared and hold no memory. Not shown.
    group_max_constant_elements: int = 16

    # --- Common subexpressions (`cse`) ---

    # Elementwise results at most this deep below the arguments are always shared: memory against
    # recomputation that XLA fuses into the reader. Not shown.
    cse_max_depth: int = 3

    # Others are shared with at most this many operations in between: they hardly live longer.
    # `recurrent_cells`
    cse_max_distance: int = 16

    # --- Conditionals (`conditional_to_select`) ---

    # Equations of a branch that is computed although the other one may be selected: operations that
    # may be evicted one by one against time to plan them. `control_flow`
    select_max_equations: int = 4096

    # --- Stacks (`stacking`) ---

    # Parts that one operation writes, and their share of the stack: launches against parts that
    # wait in memory for each other. Not shown.
    stack_max_parts: int = 8
    stack_max_parts_fraction: float = 1 / 8

    # A stack is written early if at most this share of its parts is alive at once: else the whole
    # and most of the parts are in memory together. Not shown.
    stack_max_alive_fraction: float = 0.5

    # --- Clusters of small operations (`passes.launch_clustering`) ---

    # Work of a member and of a cluster, in units of `DeviceProfile.smallness`: launches against
    # recomputation of results that are not needed. `bundling`
    cluster_max_member_work: float = 4.0
    cluster_max_work: float = 8.0

    # Share of the memory in use at the peak that a cluster may read and make: launches against
    # budgets that still suffice. Not shown.
    cluster_max_peak_fraction: float = 1 / 16

    # Cost of a launch and of reading an operand; storing a result is 1. High ones make clusters
    # longer, low ones end them where fewer arrays pass. Not shown.
    cluster_launch_cost: float = 10.0
    cluster_operand_cost: float = 0.25

    # Limits of a cluster: launches against XLA's compilation time. `bundling` (the first).
    cluster_max_equations: int = 128
    cluster_max_operands: int = 64

    # --- Fusion (`passes.fusion`) ---

    # Limits of a fused operation: more take XLA long to compile, and gain nothing. `fusion`
    fusion_max_equations: int = 96
    fusion_max_operands: int = 48

    # Readers that each recompute an absorbed operation: memory against operations computed several
    # times; with more readers, reading the result costs about as much as computing it. `fusion`
    fusion_max_copies: int = 8

    # What a fused operation reads and writes, as a multiple of the most that a single one does:
    # results that need not be stored against small budgets that still suffice. `fusion`
    fusion_max_memory_factor: float = 2.0

    # Bytes that XLA may have to store inside a fused operation even if its sink writes less.
    # `fusion`
    fusion_max_inside_bytes: int = 1 << 16

    # Operands may live this many operations longer for a cheap operation to be absorbed: results
    # that need not be stored against operands that cannot be evicted. Not shown.
    fusion_near_operations: int = 12

    # A result as large as its operands may be computed at most this many operations later, in
    # several places. Not shown.
    fusion_max_distance: int = 48

    # Bytes that may live longer whatever that saves. Not shown.
    fusion_slack_bytes: int = 1 << 12

    # Depth of the search for operands that can be absorbed, too: time of the pass against bytes
    # that would be taken to live longer, and do not. `fusion`
    fusion_look_back: int = 6

    # --- Early updates (`passes.early_updates`) ---

    # Share of the bytes of results that must have a donated array to replace: gradients freed early
    # against results that lie in the pool early. Not shown.
    update_replaced_fraction: float = 0.9

    # What reads little more than it makes waits with the update that it is part of, such as a small
    # term of a sum of gradients: by itself it takes a launch. Not shown.
    update_min_term_bytes: int = 1 << 14


TUNED = Constants()
