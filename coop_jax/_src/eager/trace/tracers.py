"""The arrays of the eager front end: tracers that hold values of a session.

Model: an `EagerTracer` behaves as the `jax.Array` that it stands for; asked for its contents it
has the session bring them back. What a scan stacked is behind a `StackTracer`, a mutable reference
behind a `RefTracer`.
Invariants: a tracer is the only owner of what it holds, so that a value dies with its last tracer;
after its trace is closed, or after `delete`, every use raises.
Threads: as the trace's. Cost: making a tracer is O(1).
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
from jax._src import core

from coop_jax._src.compat import arrays
from coop_jax._src.compat.tracer_identity import HoldsValue
from coop_jax._src.eager.trace.array_methods import ArrayMethods
from coop_jax._src.eager.trace.operators import Operators
from coop_jax._src.ir import primitives
from coop_jax._src.ir.refs import RefCell
from coop_jax._src.ir.stacks import Stack

_ESCAPED = (
    " It was made inside a coop_jax.remat_eager call that has ended, and its memory with it. Return"
    " the values that are needed later from the decorated function."
)
_REFERENCE = "a mutable reference ({aval}) was used as an array: read it with ref[...]"

# What a trace hears, among the primitives that are run, when a value's contents are asked for.
READ = object()


_WRITES_OVER = primitives.UPDATES | {"while", "scan"}


class Fill:
    """The broadcast of a scalar that nothing has read yet.

    JAX keeps such arrays as residuals that its transposition rules never read: the other branch of
    a select, the zeros beside a concatenated tangent. One a layer would be held all through a step.
    """

    __slots__ = ("aval", "operands", "params", "primitive")

    def __init__(self, primitive: Any, operands: Any, params: Any) -> None:
        self.primitive = primitive
        self.operands = operands
        self.params = params
        self.aval, _ = primitive.abstract_eval(*map(core.typeof, operands), **params)


class ValueTrace(core.Trace):
    """What tracers need of their trace: `EagerTrace` has it.

    Attributes:
      session: what holds the values, until the trace is closed.
      heard: what was run, while somebody listens.
      deleted: the trace of tracers that were deleted.
    """

    __slots__ = ("heard", "session")

    session: Any
    heard: list[Any] | None
    deleted: ClassVar[ValueTrace]

    def apply(self, primitive: Any, operands: Any, params: dict[str, Any]) -> Any:
        """Runs a primitive on values of the session."""
        raise NotImplementedError


class EagerTracer(Operators, ArrayMethods, HoldsValue, core.Tracer["ValueTrace"]):
    """Stands for one value of a session; behaves as the `jax.Array` it would be without one."""

    __slots__ = ("_held",)

    def __init__(self, trace: ValueTrace, held: Any) -> None:
        self._trace = trace
        self.aval = held.aval
        self._held = held  # a value, or a Fill that nothing has read yet

    @property
    def value(self) -> Any:
        """The session's value."""
        if type(self._held) is Fill:
            fill = self._held
            (self._held,) = self._trace.apply(fill.primitive, fill.operands, fill.params)
        return self._held

    def given_to(self, primitive: Any) -> Any:
        """The session's value for a primitive, of its own where it may be written over.

        JAX's frames and the caller's hold what they give away: a loop that writes into a buffer
        that begins as zeros would have a copy beside those.
        """
        if type(self._held) is Fill and primitive.name in _WRITES_OVER:
            (value,) = self._trace.apply(
                self._held.primitive, self._held.operands, self._held.params
            )
            return value
        return self.value

    @property
    def held_value(self) -> Any:
        """The session's value; None as long as the session has not been asked for one."""
        return None if type(self._held) is Fill else self._held

    def concrete(self) -> jax.Array:
        """The contents, brought back if need be."""
        session = self._trace.session
        if session is None:
            if self.is_deleted():
                aval: Any = self.aval
                raise RuntimeError(f"Array has been deleted with shape={aval.str_short()}.")
            raise core.escaped_tracer_error(self, _ESCAPED)
        if self._trace.heard is not None:
            self._trace.heard.append(READ)
        with core.set_current_trace(core.eval_trace), arrays.compiling():
            contents: jax.Array = session.concrete(self.value)
        return contents

    def to_concrete_value(self) -> EagerTracer:
        """Known, but not yet brought back: JAX asks this often only to learn whether it is known.

        What it then does with the answer (`bool`, `operator.index`, `np.equal`, slicing) works on a
        tracer as on an array.
        """
        return self

    def full_lower(self) -> EagerTracer:
        """The tracer itself: a value never turns into an array of its own accord."""
        return self

    def __str__(self) -> str:
        return repr(self) if self._trace.session is None else str(self.concrete())

    def __repr__(self) -> str:
        if self._trace.session is None and not self.is_deleted():
            return f"EagerTracer<{self.aval}>(its call has ended)"
        aval: Any = self.aval
        return repr(
            arrays.with_aval(
                self.concrete(),
                weak_type=getattr(aval, "weak_type", False),
                committed=False,
                shape=aval.shape,
                dtype=aval.dtype,
            )
        )

    def _short_repr(self) -> str:
        return str(self)

    def __copy__(self) -> EagerTracer:
        return self

    def __deepcopy__(self, memo: Any) -> EagerTracer:
        return self

    def block_until_ready(self) -> EagerTracer:
        """Waits for the contents, and returns the tracer."""
        self.concrete().block_until_ready()
        return self

    def delete(self) -> None:
        """Lets go of the value: its memory is free once nothing else needs it."""
        self._held = None
        self._trace = self._trace.deleted

    def is_deleted(self) -> bool:
        """Whether `delete` was called; an evicted value is brought back when it is needed."""
        return self._trace is self._trace.deleted


class StackTracer(EagerTracer):
    """What a scan stacked, in parts as long as nothing needs it whole.

    Not a class for hot paths to meet: operations look for `EagerTracer` itself first.
    """

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The session's value of the whole."""
        session = self._trace.session
        if type(self._held) is Stack and session is not None:
            with core.set_current_trace(core.eval_trace):
                self._held = session.as_value(self._held)
        return self._held

    @property
    def held_value(self) -> Any:
        """The session's value, or the stack."""
        return self._held


class RefTracer(EagerTracer):
    """A mutable reference: a cell with the value that is its contents now."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """Refuses: a reference is no array."""
        raise TypeError(_REFERENCE.format(aval=self.aval))

    @property
    def held_value(self) -> None:
        """Nothing that could be released."""
        return

    @property
    def sharding(self) -> Any:
        """As that of `jax.Ref`: the placement of its contents."""
        return self._contents().sharding

    @property
    def format(self) -> Any:
        """As that of `jax.Ref`: the layout and placement of its contents."""
        return self._contents().format

    def _contents(self) -> Any:
        contents: Any = self[...]
        return contents

    def __repr__(self) -> str:
        return f"EagerRef<{self.aval}>"


# JAX asks this table for the type of what `ref.at[...]` is taken of.
core.pytype_aval_mappings[RefTracer] = lambda tracer: tracer.aval

_TRACERS: dict[type, type[EagerTracer]] = {Stack: StackTracer, RefCell: RefTracer}


def wrap(trace: ValueTrace, value: Any) -> EagerTracer:
    """A tracer for a value, a stack or a reference of the trace's session."""
    return _TRACERS.get(type(value), EagerTracer)(trace, value)
