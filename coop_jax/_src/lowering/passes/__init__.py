"""Passes over the raw operations of a program, in the order in which `lowering.build` calls them.

`transpose_folding` folds transposes into products; `early_updates` runs an optimizer's updates as
soon as their gradients are there; `fusion` makes one operation of what XLA can fuse (`fused_kernel`
is what it makes); `launch_clustering` of neighbours that cost less than a launch. The program
computes the same with and without each; its last bits may differ (see `lowering.pass_options`).
"""
