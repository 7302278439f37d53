"""Entering and leaving the eager front end's trace.

Model: inside `eager_scope` JAX's current trace is an `EagerTrace`, so what the thread calls is
executed by the session one primitive at a time. The scope nests; an inner scope takes the contents
of an outer scope's tracers.
Invariant: after the scope the trace is closed, and its tracers raise when used.
Threads: as the current trace, a scope belongs to the thread that entered it. Complexity: O(1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jax._src import core

from coop_jax._src.compat import array_methods, backward, linearizing
from coop_jax._src.compat.tracing import EagerTrace, Session

_TRANSFORMED = (
    "an eager coop_jax call needs concrete arguments, but was called under another JAX"
    " transformation ({trace}). Put jax.grad, vmap, jvp or jit inside the decorated function, or"
    " use coop_jax.run for the transformed function."
)


def current_trace_is_concrete() -> bool:
    """Whether values are known here: no jit, grad, vmap or the like around the caller."""
    trace = core.trace_ctx.trace
    return trace is core.eval_trace or type(trace) is EagerTrace


@contextmanager
def eager_scope(session: Session) -> Iterator[EagerTrace]:
    """Makes a new trace that executes on `session` the current one.

    Raises:
        TypeError: another transformation is the current trace.
    """
    if not current_trace_is_concrete():
        raise TypeError(_TRANSFORMED.format(trace=type(core.trace_ctx.trace).__name__))
    backward.install()
    array_methods.install()
    linearizing.install()
    trace = EagerTrace(session)
    try:
        with core.set_current_trace(trace):
            yield trace
    finally:
        trace.close()
