"""Tests that forced eviction (`--force-eviction`) cannot run, with reasons, by file or by name.

A new test is marked where it is defined, `@pytest.mark.unless_forced(reason)`; here is what holds
for a whole file or for a test that several parametrizations share.
"""

from __future__ import annotations

_LONG = "whole models: recomputation is quadratic in the length of a program"
_PEAKS = "compares peaks or counts, which evictions change"

UNLESS_FORCED = {
    "test_equality.py": _LONG,
    "test_real_memory.py": _PEAKS,
    "test_the_peak_is_within_a_tenth_of_what_run_needs": _PEAKS,
}
