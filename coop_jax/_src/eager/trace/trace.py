"""The eager front end's Trace: every primitive is handed to a session as it is called.

Model: an `EagerTracer` (see `tracers`) is a `jax.Array` look-alike that holds exactly one `Value`,
an opaque handle that belongs to a `Session`. Binding a primitive unwraps the operands, lets the
session execute now, and wraps what comes back. Asking a tracer for its contents (`bool`, `int`,
`np.asarray`, `repr`) asks the session, which brings an evicted value back first. JAX's
transformations sit on top as they sit on its own evaluation trace, so Python control flow may
depend on values, also under `jax.grad`.
What a scan stacks is behind a `StackTracer`: a stack of values, put together when it is read whole.
Two primitives do not reach the session as they are called: the broadcast of a scalar is run when it
is first read, and a conversion to the type that an array already has is not run at all.

Invariants:
- A tracer is the only owner of its value here. No cache, cycle or closure of this module keeps one,
  so a value dies with its last tracer, and that is how the session learns that it is dead.
- While a session runs, the current trace is JAX's evaluation trace.
- All eager traces look alike to the key of JAX's jit cache (see `_cache_identity`).
- After `close` every use of a tracer raises; the trace no longer refers to the session.

Threads: JAX's current trace is per thread; a trace is used by the thread that entered it.
Complexity: a bind costs O(operands + results) beyond what the session does.
Source: not in the paper, whose section 4 builds on a framework that executes eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax._src import config as _config
from jax._src import core
from jax._src.dtypes import float0
from jax._src.lax import lax

from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.compat.refs import is_ref
from coop_jax._src.compat.transforms import RunsEagerly
from coop_jax._src.eager.session_protocol import Session, Value
from coop_jax._src.eager.trace.tracers import (
    EagerTracer,
    Fill,
    RefTracer,
    StackTracer,
    ValueTrace,
    wrap,
)

_FOREIGN = (
    "a coop_jax.remat_eager function met a {kind} of a JAX transformation around its call, or of"
    " one that has ended: {aval}. If the function closes over that value, pass it as an argument."
)
_SHARD_MAP = (
    "coop_jax runs on one device: the primitive 'shard_map' at {source} works over several. Call"
    " coop_jax inside the mapped function, or map without it."
)


class EagerTrace(ValueTrace, RunsEagerly):
    """Executes each primitive at once on `session`, until `close`."""

    __slots__ = ()

    session: Session | None
    plain = EagerTracer  # whose operators `operators` looks after

    def __init__(self, session: Session | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard: list[Any] | None = None  # what was run, while somebody listens
        self._weakref = _cache_identity._weakref
        self.session = session

    def close(self) -> None:
        """Makes every tracer of this trace raise when used, and lets go of the session."""
        self.invalidate()  # type: ignore[no-untyped-call]
        self.session = None

    def wrap(self, value: Any) -> EagerTracer:
        """A tracer for a value, a stack or a reference of the session."""
        return wrap(self, value)

    def note_arguments(self, tracers: Sequence[Any], given: Sequence[Any]) -> None:
        """The tracers stand for these; for a trace that looks after what values are used for."""

    def uses_of(self, results: Sequence[Any]) -> Sequence[Any]:
        """What such a trace knows of what the call returns."""
        return ()

    def note_results(self, uses: Sequence[Any], made: Sequence[Any]) -> None:
        """These arrays are what the call returns."""

    def value_of(self, x: object) -> Any:
        """The value behind a tracer of this trace; None for anything else."""
        return x.value if isinstance(x, EagerTracer) and x._trace is self else None

    def stage_value(self, val: Any) -> Any:
        """The value itself: there is nothing to stage."""
        return val if isinstance(val, core.Tracer) else core.eval_trace.stage_value(val)

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        """Runs `primitive` now; an array of equal elements only when it is first read."""
        if self.heard is None:
            return self._process(primitive, tracers, params)
        heard, self.heard = self.heard, None
        results = self._process(primitive, tracers, params)
        heard.append((primitive, tracers, params, results))
        self.heard = heard
        return results

    def _process(self, primitive: Any, tracers: Any, params: Any) -> Any:
        if primitive is lax.broadcast_in_dim_p and _is_fill(tracers):
            if core.typeof(tracers[0]).dtype == float0:  # tangents of integers: nothing to compute
                with core.set_current_trace(core.eval_trace):
                    return core.eval_trace.process_primitive(primitive, tracers, params)
            return EagerTracer(self, Fill(primitive, tracers, params))
        if primitive is lax.convert_element_type_p and _keeps_type(self, tracers[0], params):
            return tracers[0]
        values = self.apply(primitive, tracers, params)
        if primitive.multiple_results:
            return [self._result(value) for value in values]
        return self.wrap(values[0])

    def _result(self, value: Any) -> Any:
        aval = value.aval
        if getattr(aval, "dtype", None) == float0:  # JAX hands these on as NumPy arrays
            return np.zeros(aval.shape, float0)
        return self.wrap(value)

    def apply(self, primitive: Any, tracers: Any, params: Any) -> Sequence[Value]:
        """Has the session run `primitive`."""
        session = self.session
        if session is None:
            raise RuntimeError("an eager coop_jax call has ended, and its trace was used again")
        operands = [
            (t._held if type(t._held) is not Fill else t.given_to(primitive))
            if type(t) is EagerTracer and t._trace is self
            else _other_operand(self, t)
            for t in tracers
        ]
        # As `core.set_current_trace`, without making an object: this is done for every operation.
        before = core.trace_ctx.trace
        core.trace_ctx.set_trace(core.eval_trace)
        try:
            if _config.disable_jit.value:
                with arrays.compiling():
                    return session.apply(primitive, operands, params)
            return session.apply(primitive, operands, params)
        finally:
            core.trace_ctx.set_trace(before)

    def process_call(self, call_primitive: Any, f: Any, tracers: Any, params: Any, /) -> Any:
        """Calls the function: a call is its body."""
        del call_primitive, params
        return self._call(f, tracers)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **_: Any
    ) -> Any:
        """Calls the function; its rule was JAX's concern above this trace."""
        del primitive, jvp
        return self._call(fun, tracers)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **_: Any
    ) -> Any:
        """Calls the function; its rules were JAX's concern above this trace."""
        del primitive, fwd, bwd
        return self._call(fun, tracers)

    def process_shard_map(self, *_: Any, **__: Any) -> Any:
        """Refuses."""
        source = jaxprs.source_of(jaxprs.current_source())
        raise NotImplementedError(_SHARD_MAP.format(source=source))

    def _call(self, fun: Any, tracers: Any) -> Any:
        with core.set_current_trace(self):
            return fun.call_wrapped(*tracers)


def held_by(session: Session, x: Any) -> Any:
    """What a program that closes over it sees: of a tracer its value, of a reference its cell."""
    if not isinstance(x, EagerTracer):
        return session.cell_of(x) if is_ref(x) else x
    if type(x) is RefTracer and x._trace.session is session:
        return x._held
    return x.value if x._trace.session is session else x.concrete()


def _keeps_type(trace: EagerTrace, x: Any, params: Any) -> bool:
    # JAX converts every known tracer, also to the type it has: an operation per operand.
    if type(x) is not EagerTracer or x._trace is not trace:
        return False
    aval: Any = x.aval
    return bool(
        params["sharding"] is None
        and aval.dtype == params["new_dtype"]
        and aval.weak_type == params["weak_type"]
    )


def _is_fill(operands: Any) -> bool:
    if len(operands) != 1:
        return False
    aval = core.typeof(operands[0])
    return aval.shape == () and isinstance(aval.dtype, np.dtype)


def _other_operand(trace: EagerTrace, x: Any) -> Any:
    """A stack or a concrete operand as it is; the contents of a tracer of an enclosing call."""
    if type(x) in (StackTracer, RefTracer) and x._trace is trace:
        return x._held
    if is_ref(x):
        return trace.session and trace.session.cell_of(x)
    if isinstance(x, EagerTracer):
        return x.concrete()
    if isinstance(x, core.Tracer):
        detail = _FOREIGN.format(kind=type(x).__name__, aval=x.aval)
        raise core.escaped_tracer_error(x, f" {detail}")
    return x


# The key of jit's C++ cache holds the current trace's weak reference. One identity for all eager
# traces keeps each call from adding entries that no later call can hit. An entry made under a trace
# that is not JAX's evaluation trace never holds an executable, so sharing it is safe.
_cache_identity = core.Trace()

# The trace of tracers that were deleted.
EagerTrace.deleted = EagerTrace(None)
