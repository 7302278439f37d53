"""Frees residuals during JAX's backward pass, each right after its last use.

Model: `ad.backward_pass3` walks a linear jaxpr in reverse and keeps every residual referenced until
it returns. Under an `EagerTrace` the jaxpr is rewritten first: an equation of our own primitive
`coop_release` is put before (in reverse: after) the last equation that reads a residual. It has no
outputs and one linear input, so that JAX counts it among the linear ones and calls its rule for
transposition, which tells the session that the residual's memory may go.

A scan may read such a residual slice by slice, so one is put after (in reverse: before) that, too:
it says of stacks that this is their last use, and their parts go as the scan proceeds.

Cotangents go as they are consumed, but for one leak: the locals of JAX's loop keep those of the
last equation with an ordinary rule while equations with a "fancy" rule follow. A release equation
has an ordinary rule that gives none, so one is put wherever the walk turns to fancy rules.

A cotangent depends on all those before it, and on the forward pass besides: to make it again is to
go the way again. So the session is told to treasure what comes of those that the walk begins with.
(What does not is the forward pass of a `jax.checkpoint`, which takes little to make.)

Invariants:
- Only a hint: a function returned by `jax.vjp` may be called again, the session recovers the value.
- Only residuals that nobody but JAX's machinery refers to. Their reference count is compared with
  that of a residual of which this is known, measured once by `install` and not assumed.
- Under any other trace, and without linear inputs, JAX's own function runs unchanged.

Threads: `install` is idempotent; nothing else is shared. Complexity: O(equations) per pass.
Source: not in the paper; its host framework frees saved tensors as the backward pass goes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax._src.interpreters import ad

from coop_jax._src.eager.trace.trace import EagerTrace
from coop_jax._src.eager.trace.tracers import EagerTracer
from coop_jax._src.ir.stacks import Stack

_release_p = core.Primitive("coop_release")
_release_p.multiple_results = True
# Equations that newer versions of JAX always treat as linear, whatever their inputs.
_VJP_NODE: type | tuple[()] = getattr(ad, "VJPNode", ())

_jax_backward_pass = ad.backward_pass3
# References, as the backward pass begins, to a residual that only JAX's machinery holds.
_machinery_references = 0
_install_lock = threading.Lock()


def install() -> None:
    """Wraps JAX's backward pass: once per process, at the first eager call."""
    global _machinery_references
    with _install_lock:
        if _machinery_references == 0:
            ad.primitive_transposes[_release_p] = _release
            _machinery_references = _measure_machinery_references()
            ad.backward_pass3 = _backward_pass


def _backward_pass(
    jaxpr: Any,
    transform_stack: bool,
    consts: Sequence[Any],
    primals_in: Sequence[Any],
    cotangents_in: Sequence[Any],
) -> Any:
    if isinstance(core.trace_ctx.trace, EagerTrace):
        counts = _reference_counts(consts, primals_in)
        jaxpr = _with_releases(jaxpr, consts, primals_in, counts)
        session = core.trace_ctx.trace.session
        if session is not None:
            cotangents = [core.trace_ctx.trace.value_of(x) for x in cotangents_in]
            before = session.treasure_results_of([x for x in cotangents if x is not None])
            try:
                return _jax_backward_pass(jaxpr, transform_stack, consts, primals_in, cotangents_in)
            finally:
                session.treasure_no_results(before)
    return _jax_backward_pass(jaxpr, transform_stack, consts, primals_in, cotangents_in)


def _reference_counts(consts: Sequence[Any], primals_in: Sequence[Any]) -> list[int]:
    # Counted in a comprehension that indexes, so that both callers add the same references.
    counts = [sys.getrefcount(consts[i]) for i in range(len(consts))]
    return counts + [sys.getrefcount(primals_in[i]) for i in range(len(primals_in))]


def _with_releases(
    jaxpr: Any, consts: Sequence[Any], primals_in: Sequence[Any], counts: Sequence[int]
) -> Any:
    """The jaxpr with a release equation at the last backward use of each residual to release."""
    linear: set[Any] = set()
    pending: set[Any] = set()
    anchor = None
    for var, x, count in zip(
        (*jaxpr.constvars, *jaxpr.invars), (*consts, *primals_in), counts, strict=True
    ):
        if isinstance(x, ad.GradAccum):
            linear.add(var)
            anchor = var if anchor is None else anchor
        elif isinstance(x, EagerTracer) and count <= _machinery_references:
            pending.add(var)
    if anchor is None:
        return jaxpr
    pending.difference_update(v for v in jaxpr.outvars if isinstance(v, core.Var))
    equations = []
    after_fancy = False
    for eqn in jaxpr.eqns:
        reads = dict.fromkeys(v for v in eqn.invars if isinstance(v, core.Var))
        if (
            eqn.primitive.ref_primitive
            or isinstance(eqn.primitive, _VJP_NODE)
            or not linear.isdisjoint(reads)
        ):
            linear.update(eqn.outvars)
            dead = [v for v in reads if v in pending]
            fancy = eqn.primitive in ad.fancy_transposes
            if dead or (after_fancy and not fancy):
                pending.difference_update(dead)
                equations.append(_release_equation(anchor, dead, eqn))
            after_fancy = fancy
            if dead and (eqn.primitive.name == "scan" or eqn.params.get("jaxpr") is not None):
                equations.append(eqn)
                equations.append(_release_equation(anchor, dead, eqn, before=True))
                continue
        else:
            # Evaluated before the walk begins, from residuals alone; its result lives only there.
            pending.update(v for v in eqn.outvars if not isinstance(v, core.DropVar))
        equations.append(eqn)
    if pending and jaxpr.eqns:  # Not read by any linear equation: dead once the walk begins.
        order = [*jaxpr.constvars, *jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)]
        dead = [v for v in order if v in pending]
        equations.append(_release_equation(anchor, dead, jaxpr.eqns[-1]))
    return jaxpr.replace(eqns=equations)


def _release_equation(anchor: Any, dead: Sequence[Any], near: Any, *, before: bool = False) -> Any:
    return core.new_jaxpr_eqn(
        [anchor, *dead],
        [],
        _release_p,
        {"before": before},
        core.no_effects,
        near.source_info,
        near.ctx,
    )


def _release(cotangents: Any, anchor: Any, *residuals: Any, before: bool) -> list[None]:
    del cotangents, anchor
    for residual in residuals:
        if not isinstance(residual, EagerTracer):
            continue
        session, value = residual._trace.session, residual.held_value
        if session is None or value is None:
            continue
        if isinstance(value, Stack):
            if before:
                value.last_use = True
            else:
                value.release(session.release_hint)
        elif not before:
            session.release_hint(value)
    return [None] * (1 + len(residuals))


class _Shape:
    """A value without contents."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


class _ShapesOnly:
    """A session that computes abstract values only, so that measuring compiles nothing."""

    def apply(
        self, primitive: Any, operands: Sequence[Any], params: dict[str, Any]
    ) -> Sequence[_Shape]:
        avals = [x.aval if isinstance(x, _Shape) else core.typeof(x) for x in operands]
        out, _ = primitive.abstract_eval(*avals, **params)
        return [_Shape(aval) for aval in (out if primitive.multiple_results else [out])]

    def concrete(self, value: Any) -> jax.Array:
        raise AssertionError("measuring reads no contents")

    def as_value(self, x: Any) -> _Shape:
        raise AssertionError("measuring makes no stacks")

    def cell_of(self, ref: Any) -> Any:
        raise AssertionError("measuring makes no references")

    def release_hint(self, value: Any) -> None:
        pass

    def treasure_results_of(self, values: Sequence[Any]) -> bool:
        return False

    def treasure_no_results(self, but: bool) -> None:
        pass


def _measure_machinery_references() -> int:
    """Counts the references to the residual of a sine, which nobody else can have."""
    counts: list[int] = []

    def measure(
        jaxpr: Any, transform_stack: bool, consts: Any, primals_in: Any, cotangents_in: Any
    ) -> Any:
        if core.trace_ctx.trace is trace:  # not another thread's
            counts.extend(_reference_counts(consts, primals_in))
        return _jax_backward_pass(jaxpr, transform_stack, consts, primals_in, cotangents_in)

    trace = EagerTrace(_ShapesOnly())
    x = trace.wrap(_Shape(core.ShapedArray((), np.dtype(np.float32))))
    ad.backward_pass3 = measure
    try:
        with core.set_current_trace(trace):
            jax.grad(jax.lax.sin)(x)
    finally:
        ad.backward_pass3 = _jax_backward_pass
        trace.close()
    if not counts:
        raise AssertionError("invariant: jax.grad calls ad.backward_pass3 with the residuals first")
    return counts[0]  # the cosine
