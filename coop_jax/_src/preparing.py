"""Preparing an operation for a session: once per primitive, parameters and shapes.

A `Prepared` says what a primitive on such operands is: the operand itself, a view of it, or a
kernel with everything that running it and telling the engine needs.
Thread rule: the cache belongs to the device's kernel cache; entries are never changed once stored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src import costs, flattening, primitives
from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.equations import KernelBuilder, LiteralValue
from coop_jax._src.flattening import SMALL_BYTES
from coop_jax._src.kernels import OUTSIDE, SLOT, Executable, Kernel, KernelCache
from coop_jax._src.values import Value, aval_of, key_of, operand_key, repetitions

_KEPT = 8192


class Prepared:
    """A primitive on operands of given shapes: what to run and what to tell the engine."""

    __slots__ = (
        "executable",
        "identity",
        "kernel",
        "out_avals",
        "out_keys",
        "out_nbytes",
        "selection",
        "spec",
        "view",
    )

    def __init__(self) -> None:
        self.view: Any = None  # the result's aval, where it is a view of the first operand
        self.identity = False  # the result is the first operand
        self.kernel: Kernel
        self.executable: Executable
        self.spec: _core.OperationSpec
        self.out_avals: tuple[Any, ...] = ()
        self.out_keys: tuple[Any, ...] = ()
        self.out_nbytes: tuple[int, ...] = ()
        self.selection: tuple[int, ...] = ()  # which operands the kernel takes, in its order


class Preparer:
    """Looks prepared operations up, and makes them on first sight."""

    __slots__ = ("_cache", "_device")

    def __init__(self, cache: KernelCache, device: jax.Device):
        self._cache = cache
        self._device = device

    def prepare(
        self,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        effects: Any,
        eqn: Any = None,
    ) -> Prepared | None:
        """What to do for this primitive; None for a call that is to be taken apart."""
        shapes = tuple([x.key if type(x) is Value else operand_key(x) for x in operands])
        positions = repetitions(operands)
        quick: Hashable
        try:
            quick = (primitive, tuple(params.items()), shapes, positions, context)
            known = self._cache.prepared.get(quick, quick)
        except TypeError:
            quick = (primitive, jaxprs.params_key(params), shapes, positions, context)
            known = self._cache.prepared.get(quick, quick)
        if known is not quick:
            found: Prepared | None = known
            return found
        prepared = self._prepare_new(primitive, operands, params, context, effects, eqn)
        if len(self._cache.prepared) > _KEPT:
            self._cache.prepared.clear()
        self._cache.prepared[quick] = prepared
        return prepared

    def _prepare_new(
        self,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        effects: Any,
        eqn: Any,
    ) -> Prepared | None:
        body = jaxprs.call_body(primitive, params)
        if body is not None and not flattening.is_group_body(*body):
            return None
        in_avals = [aval_of(x) for x in operands]
        out_avals = (
            [v.aval for v in eqn.outvars]
            if eqn is not None
            else jaxprs.abstract_eval(primitive, in_avals, params)
        )
        source = jaxprs.source_of(jaxprs.current_source())
        primitives.check_supported(primitive, [*in_avals, *out_avals], source)
        first = operands[0] if operands else None
        if body is None and isinstance(first, Value) and len(out_avals) == 1:
            if primitives.is_identity(primitive, params, first.aval, out_avals[0]):
                prepared = Prepared()
                prepared.identity = True
                prepared.out_avals = tuple(out_avals)
                return prepared
            large = costs.nbytes(first.aval) > SMALL_BYTES
            viewable = arrays.dlpack_type(out_avals[0].dtype) is not None
            if (
                large
                and viewable
                and arrays.dlpack_type(first.aval.dtype) is not None
                and primitives.is_view(primitive, params, first.aval, out_avals[0])
            ):
                prepared = Prepared()
                prepared.view = out_avals[0]
                prepared.out_avals = tuple(out_avals)
                # An operand outside the pool cannot be viewed: then it is an operation after all.
                self._kernelise(prepared, primitive, operands, params, context, effects, out_avals)
                return prepared
        prepared = Prepared()
        self._kernelise(prepared, primitive, operands, params, context, effects, out_avals)
        return prepared

    def _kernelise(
        self,
        prepared: Prepared,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        effects: Any,
        out_avals: Sequence[Any],
    ) -> None:
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
            builder.add(primitive, params, context, effects, out_avals, local, results)
        else:
            results = builder.inline(body[0], body[1], local)
        kernel = self._cache.kernel(builder.equations, list(results), in_avals, list(out_avals))
        self._finish(kernel, prepared)
        prepared.selection = tuple(selection)

    def _finish(self, kernel: Kernel, prepared: Prepared | None = None) -> Prepared:
        prepared = prepared or Prepared()
        sizes = [costs.nbytes(a) for a in kernel.out_avals]
        outside = [
            n <= SMALL_BYTES or arrays.dlpack_type(a.dtype) is None
            for n, a in zip(sizes, kernel.out_avals, strict=True)
        ]
        modes = tuple(OUTSIDE if o else SLOT for o in outside)
        prepared.kernel = kernel
        prepared.out_avals = kernel.out_avals
        prepared.out_nbytes = tuple(sizes)
        prepared.out_keys = tuple(map(key_of, kernel.out_avals))
        prepared.executable = kernel.executable(modes, self._device, self._cache)
        prepared.spec = _core.OperationSpec(
            sizes, outside, [-1] * len(sizes), kernel.cost_seconds, kernel.recomputable
        )
        return prepared

    def function(self, function: Callable[..., Any], operands: Sequence[Any]) -> Prepared:
        """A small JAX function of arrays as one operation."""
        key = (function, tuple(operand_key(x) for x in operands))
        found: Prepared | None = self._cache.prepared.get(key)
        if found is None:
            found = self._finish(
                self._cache.from_function(function, [aval_of(x) for x in operands])
            )
            found.selection = tuple(range(len(operands)))
            self._cache.prepared[key] = found
        return found
