"""What each pass of `lowering` saves, on networks of other people's libraries.

Run: python -m tests.benchmarks.passes
"""
