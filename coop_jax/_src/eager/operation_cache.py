"""Preparing an operation for a session: once per primitive, parameters and shapes.

A `Prepared` says what a primitive on such operands is: the operand itself, a view of it (if that is
in the pool), or a kernel with everything that running it and telling the engine needs.
Thread rule: the cache belongs to the device's kernel cache; entries are never changed once stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat import arrays, contexts, equation_keys, jaxprs
from coop_jax._src.eager import constants
from coop_jax._src.eager.values import Value, aval_of, key_of, operand_key
from coop_jax._src.execution import executable_cache
from coop_jax._src.execution.executables import OUTSIDE, SLOT, Executable
from coop_jax._src.ir import cost_model, primitives
from coop_jax._src.ir.equations import KernelBuilder, LiteralValue
from coop_jax._src.ir.kernels import Kernel, KernelCache
from coop_jax._src.lowering import constants as lowering_constants
from coop_jax._src.lowering.inlining import is_group_body

_NOTHING = _core.OperationSpec([], [], [], 0.0, True)

Prepared = _core.Prepared


def _is_small(nbytes: int) -> bool:
    """Whether a value of that size stays outside the pool."""
    return nbytes <= lowering_constants.TUNED.small_bytes


def _prepared_in(cache: KernelCache) -> _core.PreparedOperations:
    """What is prepared under JAX's configuration of now."""
    context = contexts.current().of_kernels()
    with cache.lock:
        found = cache.prepared.get(context)
        if found is None:
            found = cache.prepared[context] = _core.PreparedOperations(
                jaxprs.WEAK_LITERALS, LiteralValue, jaxprs.LITERAL_ARRAY, jaxprs.LITERAL_ARRAY_AVAL
            )
        cache.prepared.move_to_end(context)
        if len(cache.prepared) > constants.TUNED.kept_configurations:
            cache.prepared.popitem(last=False)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Application:
    """A primitive on operands that was not seen before; as for `Preparer.prepare`."""

    primitive: Any
    operands: Sequence[Any]
    params: dict[str, Any]
    context: Any
    effects: Any


class Preparer:
    """Looks prepared operations up, and makes them on first sight."""

    __slots__ = ("_cache", "_device", "prepared")

    def __init__(self, cache: KernelCache, device: jax.Device):
        self._cache = cache
        self._device = device
        self.prepared = _prepared_in(cache)

    def prepare(
        self,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        effects: Any,
        eqn: Any = None,
    ) -> Prepared | None:
        """What to do for this primitive; None for a call that is to be taken apart.

        `context` is the equation's, or the state of JAX's configuration where that is another one
        than when the session began.
        """
        quick: tuple[Hashable, ...] = _core.operation_key(
            operand_key, primitive, operands, params, context
        )
        try:
            known = self.prepared.get(quick, quick)
        except TypeError:  # a parameter has no hash
            quick = (quick[0], equation_keys.params_key(params), *quick[2:])
            known = self.prepared.get(quick, quick)
        if known is not quick:
            found: Prepared | None = known
            return found
        within = None if isinstance(context, contexts.Context) else context
        application = _Application(primitive, operands, params, within, effects)
        prepared = self._prepare_new(application, eqn)
        if len(self.prepared) > constants.TUNED.kept_operations:
            self.prepared.clear()
        if prepared is not None or not jaxprs.closes_over_tracers(params):
            self.prepared[quick] = prepared  # a key with a value in it would keep that
        return prepared

    def _prepare_new(self, application: _Application, eqn: Any) -> Prepared | None:
        primitive, operands = application.primitive, application.operands
        params = application.params
        body = jaxprs.call_body(primitive, params)
        if body is not None and not is_group_body(*body):
            return None
        in_avals = [aval_of(x) for x in operands]
        out_avals = (
            [v.aval for v in eqn.outvars]
            if eqn is not None
            else jaxprs.abstract_eval(primitive, in_avals, params)
        )
        source = jaxprs.source_of(jaxprs.current_source())
        primitives.check_supported(primitive, params, [*in_avals, *out_avals], source)
        first = operands[0] if operands else None
        view = False
        if body is None and isinstance(first, Value) and len(out_avals) == 1:
            if primitives.is_identity(primitive, params, first.aval, out_avals[0]):
                return _core.Prepared(
                    None,
                    None,
                    _NOTHING,
                    (),
                    tuple(out_avals),
                    [key_of(out_avals[0])],
                    identity=True,
                )
            view = (
                not _is_small(cost_model.nbytes(first.aval))
                and arrays.dlpack_type(out_avals[0].dtype) is not None
                and arrays.dlpack_type(first.aval.dtype) is not None
                and primitives.is_view(primitive, params, first.aval, out_avals[0])
            )
        kernel, selection = self._kernelise(application, out_avals)
        # Also of a view: an operand outside the pool cannot be viewed.
        return self._finish(kernel, selection, out_avals, view=view)

    def _kernelise(
        self, application: _Application, out_avals: Sequence[Any]
    ) -> tuple[Kernel, list[int]]:
        primitive, operands = application.primitive, application.operands
        params = application.params
        selection: list[int] = []
        local: list[int | LiteralValue] = []
        seen: dict[int, int] = {}
        for position, x in enumerate(operands):
            if isinstance(x, LiteralValue):
                local.append(x)
            elif isinstance(x, Value) and id(x) in seen:
                local.append(seen[id(x)])
            else:
                seen[id(x)] = len(selection)
                local.append(len(selection))
                selection.append(position)
        in_avals = [aval_of(operands[p]) for p in selection]
        builder = KernelBuilder(in_avals)
        body = jaxprs.call_body(primitive, params)
        if body is None:
            results: Sequence[Any] = range(len(selection), len(selection) + len(out_avals))
            context, effects = application.context, application.effects
            builder.add(primitive, params, context, effects, out_avals, local, results)
        else:
            results = builder.inline(body[0], body[1], local)
        kernel = self._cache.kernel(builder.equations, list(results), in_avals, list(out_avals))
        return kernel, selection

    def _finish(
        self, kernel: Kernel, selection: Sequence[int], out_avals: Sequence[Any], *, view: bool
    ) -> Prepared:
        sizes = [cost_model.nbytes(a) for a in kernel.out_avals]
        outside = [
            _is_small(n) or arrays.dlpack_type(a.dtype) is None
            for n, a in zip(sizes, kernel.out_avals, strict=True)
        ]
        modes = tuple(OUTSIDE if o else SLOT for o in outside)
        return _core.Prepared(
            executable_cache.executable(kernel, modes, self._device, self._cache),
            kernel,
            _core.OperationSpec(
                sizes, outside, [-1] * len(sizes), kernel.cost_seconds, kernel.recomputable
            ),
            list(selection),
            tuple(out_avals),
            [key_of(a) for a in out_avals],
            in_place=() if any(outside) else kernel.in_place_operands,
            view=view,
        )

    def in_place(self, prepared: Prepared, operand: int) -> Executable:
        """The form of an operation that writes its one result over an operand."""
        executable: Executable = executable_cache.executable(
            prepared.kernel, (operand,), self._device, self._cache
        )
        return executable

    def function(self, function: Callable[..., Any], operands: Sequence[Any]) -> Prepared:
        """A small JAX function of arrays as one operation."""
        key = (
            function,
            tuple(x.key if type(x) is Value else operand_key(x) for x in operands),
        )
        found: Prepared | None = self.prepared.get(key)
        if found is None:
            kernel = self._cache.from_function(function, [aval_of(x) for x in operands])
            found = self._finish(kernel, range(len(operands)), kernel.out_avals, view=False)
            self.prepared[key] = found
        return found
