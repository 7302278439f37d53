"""Segments: operations that follow each other, launched as one executable.

`segment` is what one is; `partition` chooses which operations of a program become one, `compose`
makes it, `scratch_blocks` finds where in the pool it works; `isolation_check` sees that XLA kept
its members apart. `planning.rematerialized` writes a plan as a program, so that what it recomputes
may be in segments too.
"""
