"""Benchmarks: programs that print times and ratios beside their targets, and assert nothing."""
