"""A trace of eager calls that applies JAX's rules for the use of random keys.

Model: `jax_debug_key_reuse` (see `compat.key_reuse`); a use is kept beside the tracer of a key.
Thread rule: as the trace's. Cost: calls that begin while the setting is off have a plain
`EagerTrace`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from jax._src import config as _config
from jax._src import core as _core
from jax._src import pjit as _pjit
from jax._src.random import prng as _prng

from coop_jax._src.compat import arrays
from coop_jax._src.eager.trace.trace import EagerTrace


def trace_for(session: Any) -> EagerTrace:
    """The trace for an eager call that begins now."""
    return (KeyTrace if _config.debug_key_reuse.value else EagerTrace)(session)


class _Use(_prng.PRNGKeyArray):
    """What JAX asks of an array of keys, and no keys."""

    def __init__(self) -> None:
        self._consumed = False


class KeyTrace(EagerTrace):
    """An `EagerTrace` that applies JAX's rules for the use of keys."""

    __slots__ = ("_uses",)

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._uses: dict[int, tuple[Any, Any]] = {}

    def note_arguments(self, tracers: Sequence[Any], given: Sequence[Any]) -> None:
        """The tracers stand for these."""
        for tracer, x in zip(tracers, given, strict=True):
            if isinstance(x, _prng.PRNGKeyArray):
                self._note(tracer, x)

    def uses_of(self, results: Sequence[Any]) -> Sequence[Any]:
        """What was used of the results."""
        return [getattr(self._use_of(x), "_consumed", None) for x in results]

    def note_results(self, uses: Sequence[Any], made: Sequence[Any]) -> None:
        """These arrays are what the call returns."""
        for use, array in zip(uses, made, strict=False):
            if use is not None and isinstance(array, _prng.PRNGKeyArray):
                array._consumed = use

    def _process(self, primitive: Any, tracers: Any, params: Any) -> Any:
        from jax.experimental.key_reuse import _core as rules  # as JAX: when it is needed

        known = primitive in rules.key_reuse_signatures
        if not known or not _config.debug_key_reuse.value:
            return super()._process(primitive, tracers, params)
        signature = rules.key_reuse_signature_from_primitive(primitive, *tracers, **params)
        is_jit = primitive is _pjit.jit_p
        constants = getattr(params["jaxpr"], "consts", ()) if is_jit else ()
        operands = [self._use_of(x) for x in (*tracers, *constants)]
        name = "jit-compiled function" if is_jit else str(primitive)
        signature.check_signature(*operands, funcname=name)
        results = super()._process(primitive, tracers, params)
        made = results if primitive.multiple_results else [results]
        signature.update_consumption(operands, [self._use_of(x) for x in made])
        return results

    def _use_of(self, x: Any) -> Any:
        aval: Any = x.aval if isinstance(x, _core.Tracer) else None
        if aval is None or not arrays.is_keys(getattr(aval, "dtype", None)):
            return x
        known = self._uses.get(id(x))
        return self._note(x, _Use()) if known is None else known[1]

    def _note(self, tracer: Any, use: Any) -> Any:
        uses, number = self._uses, id(tracer)
        uses[number] = (weakref.ref(tracer, lambda _: uses.pop(number, None)), use)
        return use
