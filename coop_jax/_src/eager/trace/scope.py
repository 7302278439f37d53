"""Entering and leaving the eager front end's trace.

Model: inside an `EagerScope` JAX's current trace is an `EagerTrace`, so what the thread calls is
executed by the session one primitive at a time. The scope nests; an inner scope takes the contents
of an outer scope's tracers.
Invariant: after the scope the trace is closed, and its tracers raise when used.
Threads: as the current trace, a scope belongs to the thread that entered it. Complexity: O(1).
"""

from __future__ import annotations

from types import TracebackType

from jax._src import core

from coop_jax._src.eager.session_protocol import Session
from coop_jax._src.eager.trace import (
    array_methods,
    key_trace,
    known_values,
    linearization_cache,
    residual_release,
)
from coop_jax._src.eager.trace.trace import EagerTrace

_TRANSFORMED = (
    "an eager coop_jax call needs concrete arguments, but was called under another JAX"
    " transformation ({trace}). Put jax.grad, vmap, jvp or jit inside the decorated function, or"
    " use coop_jax.run for the transformed function."
)


class EagerScope:
    """Makes a new trace that executes on a session the current one, from `with` to its end.

    No generator: one that an exception left suspended would end at any time later, and set the
    current trace then.
    """

    __slots__ = ("_current", "_session", "_trace")

    def __init__(self, session: Session) -> None:
        """For this session."""
        self._session = session
        self._trace: EagerTrace | None = None

    def __enter__(self) -> EagerTrace:
        """Begins it.

        Raises:
            TypeError: another transformation is the current trace.
        """
        if not known_values.current_trace_is_concrete():
            raise TypeError(_TRANSFORMED.format(trace=type(core.trace_ctx.trace).__name__))
        residual_release.install()
        array_methods.install()
        linearization_cache.install()
        known_values.install()
        self._trace = trace = key_trace.trace_for(self._session)
        self._current = core.set_current_trace(trace)
        self._current.__enter__()
        return trace

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._current.__exit__(kind, error, trace)
        finally:
            self.close()

    def close(self) -> None:
        """Ends the trace, if it was begun; the current one is the caller's to bring back."""
        if self._trace is not None:
            self._trace.close()
