"""Tests that forced eviction (`--force-eviction`) cannot run or that recompute nothing, and why.

By file or by name. A new test is better marked where it is defined, `unless_forced(reason)` or
`no_recomputation(reason)`; here is what holds for files and for tests of many parametrizations.
"""

from __future__ import annotations

_LONG = "whole models: recomputation is quadratic in the length of a program"
_COUNTS = "asserts peaks or counts, which evictions change"

UNLESS_FORCED = {
    "test_equality.py": _LONG,
    "test_real_memory.py": _COUNTS,
    "test_segments.py": "who wants everything evicted wants to see each operation",
    "test_the_peak_is_within_a_tenth_of_what_run_needs": _COUNTS,
    "test_an_lstm_at_half_of_its_memory_is_rematerialised_per_iteration": _LONG,
    "test_training_by_copies_gives_the_same_bits": _LONG,
    "test_a_scan_over_24_layers_costs_what_they_cost_unrolled": _COUNTS,
    "test_recurrent_over_time": _LONG,
    "test_the_small_size_trains_in_part_of_its_memory_with_the_same_bits": _LONG,
    "test_checkpoints_change_memory_and_no_results": _LONG,
    "test_a_real_step_takes_the_actions_that_were_simulated": _LONG,
    "test_later_steps_of_a_training_do_what_was_simulated": _LONG,
    "test_the_file_has_a_line_for_each_budget_that_suffices": _LONG,
    "test_little_memory_gives_the_same_bits": _LONG,
    "test_a_fraction_of_a_program_becomes_bytes": _COUNTS,
    "test_residuals_are_kept_where_they_fit": _COUNTS,
    "test_a_fraction_is_of_what_the_derivative_needs": _COUNTS,
    "test_programs_that_close_over_eager_values_do_not_keep_them": _COUNTS,
}

NO_RECOMPUTATION = {
    "test_a_value_that_leaves_the_call_by_another_door_says_so": "nothing reads it again",
}
