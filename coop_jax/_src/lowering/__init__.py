"""Makes a program of a jaxpr: `flatten` walks along equations, `passes` improve what came of it.

`inlining` chooses which calls are taken apart, `conditional_to_select` which branches, `cse` finds
what is computed twice, `stacking` what is put together part by part.
"""
