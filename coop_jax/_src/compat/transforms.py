"""A budgeted function as a primitive, so that JAX's transformations work around it.

Model: where the caller of a front end stands is found by walking from JAX's current trace to its
parents (`place`). Where all that is there is differentiation and batching, the call is bound as the
primitive `coop_call`, whose one parameter is a `Call`: a pure function of arrays, and how it is run
under its budget. Each rule asks the call for another one (its push-forward, its batched form, its
transpose) and binds that, until JAX's evaluation trace runs one. So any stack of transformations
ends in calls of the front end, and nothing of the function is executed outside of them.

Invariants: a rule binds at most two calls and does nothing else to arrays. What a call knows only
once it ran (which results are batched, which have tangents) is asked for after the bind.
Threads: no state but JAX's tables of rules. Cost: O(operands + results) for each transformation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax._src import core
from jax._src import dtypes as _dtypes
from jax._src import source_info_util as _source_info_util
from jax._src import util as _util
from jax._src.ad_util import Zero
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe

Tracer = core.Tracer


class Place(enum.Enum):
    """Where a front end is called."""

    TOP = "no transformation around"
    TRANSFORMED = "differentiation and batching around, nothing is staged"
    EAGER = "inside a remat_eager call"
    STAGED = "while JAX traces a program: jit, scan, make_jaxpr and the like"


class RunsEagerly:
    """A base of traces that run each operation at once, on values."""

    __slots__ = ()


_DYNAMIC = (ad.JVPTrace, ad.LinearizeTrace, batching.BatchTrace, pe.JaxprTrace)


def place() -> Place:
    """Where the caller stands."""
    trace: Any = core.trace_ctx.trace
    if trace is core.eval_trace:
        return Place.TOP
    while trace is not core.eval_trace:
        if isinstance(trace, RunsEagerly):
            return Place.EAGER
        if not isinstance(trace, _DYNAMIC):
            return Place.STAGED
        trace = trace.parent_trace
    return Place.TRANSFORMED


def at_top() -> bool:
    """Whether JAX's current trace is the one that just evaluates."""
    return core.trace_ctx.trace is core.eval_trace


def is_smooth(x: Any) -> bool:
    """Whether a value or abstract value has tangents: floating and complex numbers."""
    aval = x if isinstance(x, core.AbstractValue) else core.typeof(x)
    return bool(tangent_aval(aval).dtype != _dtypes.float0)


def tangent_aval(aval: Any) -> Any:
    """The abstract value of tangents."""
    return aval.to_tangent_aval()


def evaluate(jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Runs a jaxpr under the current trace, equation by equation."""
    return list(core.eval_jaxpr(jaxpr, constants, *operands))


def batched_function(
    fn: Callable[..., list[Any]],
    axis: Any,
    dims: Sequence[int | None],
    note_dims: Callable[[list[int | None]], None],
) -> Callable[..., list[Any]]:
    """`fn` for batched operands; tells which axes of its results are batched each time it runs.

    Unlike `jax.vmap` it leaves results alone that are not batched.
    """

    def batched(*operands: Any) -> list[Any]:
        tag = core.TraceTag()
        with core.take_current_trace() as parent:
            trace = batching.BatchTrace(parent, tag, axis)
            info = _source_info_util.current()
            tracers = [
                x if dim is None else batching.BatchTracer(trace, x, dim, info)
                for x, dim in zip(operands, dims, strict=True)
            ]
            with (
                core.set_current_trace(trace),
                core.extend_axis_env_nd([(axis.name, axis.size)]),
                core.add_spmd_axis_names(axis.spmd_name),
                core.add_explicit_mesh_axis_names(axis.explicit_mesh_axis),
            ):
                results = fn(*tracers)
            pairs = [trace.to_batch_info(x) for x in results]
        note_dims([dim for _, dim in pairs])
        return [x for x, _ in pairs]

    return batched


class Call(Protocol):
    """A pure function of arrays that a front end runs under its budget."""

    def execute(self, operands: Sequence[Any]) -> list[jax.Array]:
        """Runs it now."""
        ...

    def results(self, avals: Sequence[Any]) -> list[Any]:
        """The abstract values of its results."""
        ...

    def batched(self, axis: Any, dims: Sequence[int | None]) -> Call:
        """The call of batched operands; the axes of its results are its `batched_dims`."""
        ...

    def batched_dims(self) -> list[int | None]:
        """The batched axis of each result, None for none; known after the bind."""
        ...

    def pushforward(self, nonzero: Sequence[bool]) -> Call:
        """Takes operands, then the tangents that are not zero; gives results, then tangents."""
        ...

    def smooth_results(self) -> list[bool]:
        """Of a push-forward: which results have tangents; known after the bind."""
        ...

    def linearized(
        self, is_vjp: bool, nonzero: Sequence[bool], operands: Sequence[Any]
    ) -> tuple[list[Any], list[bool], Call]:
        """Results, which have tangents, and a call of operands and tangents that gives those."""
        ...

    def transposed(
        self, linear: Sequence[Any], given: Sequence[bool], cotangents: Sequence[Any]
    ) -> Call:
        """Takes operands that are not linear, then the cotangents that are given.

        `linear` has the abstract values of the linear operands and None for the others,
        `cotangents` those of the cotangents.
        """
        ...

    def staged(self) -> Callable[..., list[Any]]:
        """The function itself for a program that JAX compiles; raises where that makes no sense."""
        ...


def weakly_cached(kind: type) -> type:
    """Keeps JAX's caches from holding calls of this type, and with them what is in the pool."""
    _util.weakref_cache_key_types.add(kind)
    return kind


call_p = core.Primitive("coop_call")
call_p.multiple_results = True


def bind(call: Any, operands: Sequence[Any]) -> list[Any]:
    """Binds a call under the current trace."""
    return list(call_p.bind(*operands, call=call))


def _execute(*operands: Any, call: Call) -> list[jax.Array]:
    return call.execute(operands)


def _abstract(*avals: Any, call: Call) -> list[Any]:
    return call.results(avals)


def _batch(
    axis: Any, operands: Sequence[Any], dims: Sequence[int | None], *, call: Call
) -> tuple[list[Any], list[int | None]]:
    batched = call.batched(axis, tuple(dims))
    results = bind(batched, operands)
    return results, batched.batched_dims()


call_p.def_impl(_execute)
call_p.def_abstract_eval(_abstract)
batching.fancy_primitive_batchers[call_p] = _batch


def _nonzero(tangents: Sequence[Any]) -> tuple[bool, ...]:
    return tuple(type(t) is not Zero and core.typeof(t).dtype != _dtypes.float0 for t in tangents)


def _push(
    primals: Sequence[Any], tangents: Sequence[Any], *, call: Call
) -> tuple[list[Any], list[Any]]:
    nonzero = _nonzero(tangents)
    pushed = call.pushforward(nonzero)
    given = [t for t, nz in zip(tangents, nonzero, strict=True) if nz]
    flat = bind(pushed, [*primals, *given])
    smooth = pushed.smooth_results()
    results, moved = flat[: len(smooth)], iter(flat[len(smooth) :])
    return results, _with_zeros(results, smooth, moved)


ad.primitive_jvps[call_p] = _push


def _with_zeros(results: Sequence[Any], smooth: Sequence[bool], tangents: Any) -> list[Any]:
    return [
        next(tangents) if s else Zero(tangent_aval(core.typeof(x)))
        for x, s in zip(results, smooth, strict=True)
    ]


# Newer versions of JAX let a rule return residuals that keep their structure beside the others.
_STRUCTURED = "structured_residuals" in getattr(ad.LinearizeTrace, "__annotations__", {})


def _linearize(is_vjp: bool, nonzeros: Sequence[bool], *operands: Any, call: Call) -> Any:
    # JAX turns NumPy arrays into others on their way to the linear call; that knows its operands.
    primals = [x if isinstance(x, jax.Array) else jax.numpy.asarray(x) for x in operands]
    nonzero = tuple(
        nz and is_smooth(core.typeof(x)) for nz, x in zip(nonzeros, primals, strict=True)
    )
    results, smooth, linear = call.linearized(is_vjp, nonzero, primals)

    def apply(residuals: Sequence[Any], *rest: Any) -> list[Any]:
        tangents = rest[len(rest) - len(nonzero) :]
        given = [t for t, nz in zip(tangents, nonzero, strict=True) if nz]
        moved = iter(bind(linear, [*residuals, *given]) if any(smooth) else ())
        return _with_zeros(results, smooth, moved)

    return (results, smooth, primals, *((None,) if _STRUCTURED else ()), apply)


ad.primitive_linearizations[call_p] = _linearize


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Call) -> list[Any]:
    linear = tuple(x.aval if ad.is_undefined_primal(x) else None for x in operands)
    given = tuple(type(ct) is not Zero for ct in cotangents)
    if not any(given):
        return [None if aval is None else Zero(aval) for aval in linear]
    avals = tuple(ct.aval if type(ct) is Zero else core.typeof(ct) for ct in cotangents)
    known = [x for x, aval in zip(operands, linear, strict=True) if aval is None]
    cts = [ct for ct, is_given in zip(cotangents, given, strict=True) if is_given]
    found = iter(bind(call.transposed(linear, given, avals), [*known, *cts]))
    return [None if aval is None else next(found) for aval in linear]


ad.primitive_transposes[call_p] = _transpose


def _lower(context: Any, *operands: Any, call: Call) -> Any:
    rule = mlir.lower_fun(call.staged(), multiple_results=True)
    return rule(context, *operands)


mlir.register_lowering(call_p, _lower)
