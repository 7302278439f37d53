"""A session that just executes, and counts the bytes of its living values.

It has no pool: an array is a value's memory, and a release hint only takes its bytes off the count.
What the tests of the eager trace find here is what JAX and the trace keep, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from coop_jax._src.eager.trace.scope import EagerScope
from coop_jax._src.eager.trace.tracers import EagerTracer


class Value:
    def __init__(self, session: CountingSession, array: jax.Array) -> None:
        self.aval = jax.typeof(array)
        self.array = array
        self.session = session
        self.resident = False
        session.living += 1
        self.bring_back()

    def bring_back(self) -> None:
        if not self.resident:
            self.resident = True
            self.session.live_bytes += self.array.nbytes
            self.session.peak_bytes = max(self.session.peak_bytes, self.session.live_bytes)

    def release(self) -> None:
        if self.resident:
            self.resident = False
            self.session.live_bytes -= self.array.nbytes

    def __del__(self) -> None:
        self.release()
        self.session.living -= 1


class CountingSession:
    def __init__(self) -> None:
        self.living = self.live_bytes = self.peak_bytes = 0
        self.brought_back = 0
        self.primitives: list[str] = []
        self.jaxprs: list[Any] = []
        self.released: list[tuple[int, ...]] = []

    def apply(self, primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> list[Value]:
        self.primitives.append(primitive.name)
        if "jaxpr" in params:
            self.jaxprs.append(params["jaxpr"])
        arrays = [self.concrete(x) if isinstance(x, Value) else x for x in operands]
        out = primitive.bind(*arrays, **params)
        return [Value(self, x) for x in (out if primitive.multiple_results else [out])]

    def concrete(self, value: Value) -> jax.Array:
        self.brought_back += not value.resident
        value.bring_back()
        return value.array

    def treasure_results_of(self, values: Sequence[Any]) -> bool:
        return False

    def treasure_no_results(self, but: bool) -> None:
        pass

    def release_hint(self, value: Value) -> None:
        self.released.append(value.aval.shape)
        value.release()


def run_eagerly(fn: Callable[..., Any], *args: Any) -> tuple[Any, CountingSession]:
    """Calls `fn` under an eager trace; its result as plain arrays, and the session."""
    session = CountingSession()
    leaves, tree = jax.tree.flatten(args)
    arrays = [x.concrete() if isinstance(x, EagerTracer) else jnp.asarray(x) for x in leaves]
    with EagerScope(session) as trace:
        inputs = jax.tree.unflatten(tree, [trace.wrap(Value(session, x)) for x in arrays])
        out = fn(*inputs)
        del inputs
        values = [(x, trace.value_of(x)) for x in jax.tree.leaves(out)]
        plain = [x if value is None else session.concrete(value) for x, value in values]
        structure = jax.tree.structure(out)
        del out, values
    return jax.tree.unflatten(structure, plain), session


def liveness_peak_bytes(fn: Callable[..., Any], *args: Any) -> int:
    """Peak of the traced program when every value is freed after its last use; inputs stay."""
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    last: dict[Any, int] = {}
    for step, eqn in enumerate(jaxpr.eqns):
        last.update((v, step) for v in (*eqn.invars, *eqn.outvars) if isinstance(v, core.Var))
    kept = {v for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars) if isinstance(v, core.Var)}
    live = sum(_nbytes(v) for v in (*jaxpr.invars, *jaxpr.constvars))
    peak = live
    for step, eqn in enumerate(jaxpr.eqns):
        live += sum(_nbytes(v) for v in eqn.outvars)
        peak = max(peak, live)
        touched = {v for v in (*eqn.invars, *eqn.outvars) if isinstance(v, core.Var)}
        live -= sum(_nbytes(v) for v in touched if last[v] == step and v not in kept)
    return peak


def _nbytes(v: Any) -> int:
    return int(v.aval.size) * int(v.aval.dtype.itemsize)
