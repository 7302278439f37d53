"""Makes a program of a jaxpr: `flatten` walks along equations, `passes` improve what came of it.

`build` goes from one to the other with a `builder`; `in_place` says what is written over what.
`inlining` chooses which calls are taken apart, `conditional_to_select` which branches, `cse` finds
what is computed twice, `stacking` and `stacked_ops` what is put together, or computed, part by
part. `pass_options` has a switch for each pass.
"""
