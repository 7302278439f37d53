"""Tests that fused operations (`--fusion`) leave without what they are about, and why.

By file or by name, as in `forced_eviction`; a new test is better marked where it is defined,
`unless_fused(reason)`.
"""

from __future__ import annotations

_PRESSURE = "its few operations become one or two: nothing is left to evict, or it does not fit"
_COUNTS = "counts operations, or asserts what one primitive at a time needs"
_BITS = "checkpoints change what is fused, and so the last bits"

UNLESS_FUSED = {
    "test_checkpoints_change_memory_and_no_results": _BITS,
    "test_a_scan_over_a_stack_reads_the_originals": _COUNTS,
    "test_64_bits": _PRESSURE,
    "test_every_dtype": _PRESSURE,
    "test_the_peak_is_within_a_tenth_of_what_run_needs": _COUNTS,
    "test_bits_that_differ_each_time_are_drawn_once": _PRESSURE,
    "test_prints": _PRESSURE,
    "test_a_real_interrupt_in_a_recomputation_is_raised_between_operations": _PRESSURE,
    "test_an_operation_that_raises_leaves_everything_as_before": _COUNTS,
    "test_donated_arguments_are_intact_or_the_error_says_that_they_are_not": _COUNTS,
    "test_host_memory_is_flat_from_step_100_to_step_2000": _PRESSURE,
    "test_statistics_describe_the_last_calls": _PRESSURE,
    "test_a_program_as_an_operation_log": _COUNTS,
    "test_an_old_version_that_is_still_needed_comes_back": _PRESSURE,
    "test_with_everything_evicted_before_every_operation": _PRESSURE,
    "test_a_jitted_function_is_taken_apart": _COUNTS,
    "test_impure_results_are_kept_not_computed_again": _PRESSURE,
}
