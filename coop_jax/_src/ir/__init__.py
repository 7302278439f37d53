"""What a program is: values, storages, operations, and the kernels that operations compute.

Start with `program` (what a call does, in order, and when storages are released), then `kernels`
(groups of equations keyed by structure) and `equations`. `raw_operations` are operations before
it is known when storages are released. `primitives` and `kernel_classes` hold what is known of
JAX's primitives, `cost_model` what they cost on a device, `overwriting` which operand a result may
be written over. `refs` and `stacks` are values that are written part by part; `max_pool_gradient`
computes one faster than XLA does.
"""
