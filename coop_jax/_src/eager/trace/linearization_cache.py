"""Derivatives of primitives in eager calls, without asking JAX's rules for every one anew.

Under `jax.grad` JAX runs a primitive's rule each time the primitive is called: it traces what the
rule does to the tangent, drops what is not needed, and wraps it all up, 200 us to find out what it
was the last time. So what a rule comes down to is remembered by primitive, parameters, shapes and
dtypes: which primitives it runs on what is known, what of that is kept for the backward pass, and
which equations its tangent goes through. The next time just these are run.

Invariants:
- JAX is asked first. Remembered is only what follows from the operands' types: whoever read an
  operand's contents meanwhile, or made something of it past the trace, is asked again.
- An entry holds no value: scalars, primitives, parameters and equations only.
- What runs, runs in the same order as JAX would run it, and its source line is that of this call.
- Only for operands of an eager trace that is the current one; of other operands scalars alone, of
  which the value counts, too. Everything else, higher derivatives among it, is JAX's as before.

Threads: the dictionary is shared, entries are equal whoever makes them; `install` is idempotent.
Cost: a dictionary look-up, and what the rule runs.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax._src import config, core, source_info_util
from jax._src.interpreters import ad

from coop_jax._src.compat import caches, equation_keys, jaxprs
from coop_jax._src.eager import constants as tuning
from coop_jax._src.eager.trace.trace import EagerTrace
from coop_jax._src.eager.trace.tracers import READ, EagerTracer
from coop_jax._src.eager.values import key_of

_by_jax: Callable[..., Any] = ad.fallback_linearize_rule
_Zero: Any = ad.Zero  # type: ignore[attr-defined]
_install_lock = threading.Lock()

# What `linearize_from_jvp` returns as a function is a closure over these, and over no value.
_CLOSED_OVER = {"jaxpr", "nonzeros", "out_tangent_avals", "out_nzs"}

_SCALARS = (bool, int, float, complex, np.generic)


def install() -> None:
    """Remembers derivatives in eager calls: once per process, at the first of them."""
    with _install_lock:
        ad.fallback_linearize_rule = _linearize  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, slots=True)
class _Steps:
    """Primitives to run, on what is given, constants, and each other's results in this order."""

    steps: tuple[tuple[Any, dict[str, Any], tuple[int, ...]], ...]
    constants: tuple[Any, ...]
    results: tuple[int, ...]

    def run(self, given: Sequence[Any], bind: Callable[[Any, list[Any], Any], Any]) -> list[Any]:
        known = [*given, *self.constants]
        for primitive, params, operands in self.steps:
            found = bind(primitive, [known[i] for i in operands], params)
            if primitive.multiple_results:
                known += found
            else:
                known.append(found)
        return [known[i] for i in self.results]


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    """What a primitive's rule comes down to.

    Attributes:
      known: what it runs on the operands; results are the primitive's, then the residuals.
      outs: how many results the primitive has.
      single: whether JAX returns them as one.
      differentiable: for each, whether it has a tangent.
      more: what newer versions of JAX return after the residuals.
      takes: which operands' tangents count.
      tangents: what it runs on residuals and tangents; results are those of differentiable results.
      zeros: the type of each result's tangent.
    """

    known: _Steps
    outs: int
    single: bool
    differentiable: tuple[bool, ...]
    more: tuple[Any, ...]
    takes: tuple[bool, ...]
    tangents: _Steps
    zeros: tuple[Any, ...]

    def answer(self, trace: EagerTrace, primals: Sequence[Any]) -> Any:
        """As JAX's `fallback_linearize_rule`."""
        found = self.known.run(primals, trace.process_primitive)
        outs, residuals = found[: self.outs], found[self.outs :]
        if self.single:
            return outs[0], self.differentiable[0], residuals, *self.more, self.linearized
        return outs, list(self.differentiable), residuals, *self.more, self.linearized

    def linearized(self, residuals: Sequence[Any], *more_and_tangents: Any) -> Any:
        """The tangents of the results."""
        tangents = more_and_tangents[len(self.more) :]
        given = [*residuals, *(t for t, takes in zip(tangents, self.takes, strict=True) if takes)]
        found = iter(self.tangents.run(given, _bind))
        outs = [
            next(found) if differentiable else _Zero(aval)
            for differentiable, aval in zip(self.differentiable, self.zeros, strict=True)
        ]
        return outs[0] if self.single else outs


def _bind(primitive: Any, operands: list[Any], params: Any) -> Any:
    return primitive.bind(*operands, **params)


_remembered = caches.ClearedDict()  # a rule, or None where there is none


def _linearize(
    primitive: Any, is_vjp: bool, nonzeros: Sequence[bool], *primals: Any, **params: Any
) -> Any:
    trace = core.trace_ctx.trace
    if type(trace) is not EagerTrace or trace.heard is not None:
        return _by_jax(primitive, is_vjp, nonzeros, *primals, **params)
    operands = tuple([_operand_key(trace, x) for x in primals])
    if None in operands:
        return _by_jax(primitive, is_vjp, nonzeros, *primals, **params)
    # A square is not a product of two: which operands are one and the same counts.
    ids = [id(x) for x in primals]
    same = tuple(map(ids.index, ids)) if len(set(ids)) < len(ids) else None
    key = (primitive, is_vjp, *nonzeros, operands, same, *params.items(), config.trace_context())
    try:
        rule = _remembered[key]
    except KeyError:
        return _remember(trace, key, primitive, is_vjp, nonzeros, primals, params)
    except TypeError:  # parameters without a hash
        return _by_jax(primitive, is_vjp, nonzeros, *primals, **params)
    if rule is None:
        return _by_jax(primitive, is_vjp, nonzeros, *primals, **params)
    return rule.answer(trace, primals)


def _operand_key(trace: EagerTrace, x: Any) -> Any:
    """What a rule may depend on of an operand; None where that is not known."""
    if type(x) is EagerTracer and x._trace is trace:
        key = getattr(x._held, "key", None)  # none: a fill that nothing has read yet
        return key_of(x.aval) if key is None else key
    return (type(x), equation_keys.literal_key(x)) if _is_scalar(x) else None


def _is_scalar(x: Any) -> bool:
    return isinstance(x, _SCALARS) or core.is_literalable(x, for_ad=True)


def _remember(
    trace: EagerTrace,
    key: Any,
    primitive: Any,
    is_vjp: bool,
    nonzeros: Sequence[bool],
    primals: Sequence[Any],
    params: dict[str, Any],
) -> Any:
    heard: list[Any] = []
    trace.heard = heard
    try:
        answer = _by_jax(primitive, is_vjp, nonzeros, *primals, **params)
    finally:
        trace.heard = None
    # A parameter may hold a program or a function, and that anything: not to be kept.
    if all(map(_is_plain, params.values())):
        if len(_remembered) >= tuning.TUNED.kept_rules:  # a program whose shapes are new each time
            _remembered.clear()
        _remembered[key] = _rule(heard, primals, answer, not primitive.multiple_results)
    return answer


def _is_plain(param: Any) -> bool:
    if isinstance(param, (tuple, frozenset)):
        return all(map(_is_plain, param))
    return param is None or isinstance(param, (str, bytes, type, enum.Enum, np.dtype, *_SCALARS))


def _rule(heard: list[Any], primals: Sequence[Any], answer: Any, single: bool) -> _Rule | None:
    """What was heard while JAX answered, as a rule; None if the answer does not follow from it."""
    outs, differentiable, residuals, *more, linearized = answer
    if single:
        outs, differentiable = [outs], [differentiable]
    names = getattr(getattr(linearized, "__code__", None), "co_freevars", ())
    if not _CLOSED_OVER.issubset(names) or any(x is not None for x in more):
        return None
    inside = {n: c.cell_contents for n, c in zip(names, linearized.__closure__, strict=True)}
    if any(h is READ or _holds_constants(h[2]) for h in heard):
        return None
    steps = [
        (primitive, params, operands, results if primitive.multiple_results else [results])
        for primitive, operands, params, results in heard
    ]
    known = _steps(steps, primals, [*outs, *residuals])
    tangents = _tangents(inside["jaxpr"])
    if known is None or tangents is None:
        return None
    return _Rule(
        known,
        len(outs),
        single,
        tuple(differentiable),
        tuple(more),
        tuple(inside["nonzeros"]),
        tangents,
        tuple(inside["out_tangent_avals"]),
    )


def _tangents(jaxpr: Any) -> _Steps | None:
    """The equations of a rule's tangent; None if they mean more than their primitives."""
    here, scopes = core.JaxprEqnContext(), source_info_util.current_name_stack().stack
    for eqn in jaxpr.eqns:
        if (
            eqn.ctx != here
            # Those that the call is in, which JAX names twice here; later calls have their own.
            or not set(eqn.source_info.name_stack.stack).issubset(scopes)
            or eqn.effects
            or eqn.primitive.get_bind_params(eqn.params) is not eqn.params
            or _holds_constants(eqn.params)
        ):
            return None
    return _steps(
        [(e.primitive, e.params, e.invars, e.outvars) for e in jaxpr.eqns],
        [*jaxpr.constvars, *jaxpr.invars],
        jaxpr.outvars,
    )


def _holds_constants(params: dict[str, Any]) -> bool:
    """Whether a program among parameters, or one within it, holds arrays."""
    return any(
        isinstance(x, jaxprs.ClosedJaxpr)
        and (x.consts or any(_holds_constants(eqn.params) for eqn in x.jaxpr.eqns))
        for x in params.values()
    )


def _steps(
    steps: Sequence[tuple[Any, Any, Sequence[Any], Sequence[Any]]],
    given: Sequence[Any],
    results: Sequence[Any],
) -> _Steps | None:
    """Steps (primitive, parameters, operands, results) by numbers instead of by identity."""
    constants: list[Any] = []
    numbers: dict[int, int] = {}
    for number, x in enumerate(given):
        numbers.setdefault(id(x), number)
    made = {id(x) for *_, out in steps for x in out} | numbers.keys()
    read = [x for _, _, operands, _ in steps for x in operands] + list(results)
    for x in read:
        if id(x) not in made:
            constant = x.val if isinstance(x, core.Literal) else x
            if not _is_scalar(constant):
                return None
            constants.append(constant)
            made.add(id(x))
            numbers[id(x)] = len(given) + len(constants) - 1
    by_number = []
    last = len(given) + len(constants)
    for primitive, params, operands, out in steps:
        by_number.append((primitive, params, tuple(numbers[id(x)] for x in operands)))
        for x in out:
            numbers.setdefault(id(x), last)
            last += 1
    return _Steps(tuple(by_number), tuple(constants), tuple(numbers[id(x)] for x in results))
