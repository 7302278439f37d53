"""What tests and benchmarks share: train steps, faults, processes, comparison of bits."""
