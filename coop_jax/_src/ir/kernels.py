"""What operations compute: kernels, groups of equations keyed by structure.

A `Kernel` is what an operation computes; an `Executable` is one way to run it (see `execution`).

Invariants: equal keys compute equal bits under one configuration of JAX, and a kernel is compiled
under the one that it was made under; an executable is compiled once per process and device, unless
two runtimes ask for it at the same time.
Thread rule: the cache may be used from several threads.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat import arrays, caches, calls, contexts, equation_keys, jaxprs, wide
from coop_jax._src.ir import cost_model, max_pool_gradient, overwriting, primitives
from coop_jax._src.ir.equations import Equation, KernelBuilder, LiteralValue
from coop_jax._src.ir.retention import Kernels


class Kernel:
    """What an operation computes, of operands without repetition and without literals.

    Attributes:
      key: structural identity.
      in_avals, out_avals: abstract values of operands and results.
      flops, moved_bytes, cost_seconds: work, and the roofline estimate of it.
      recomputable: whether it may be replayed.
      in_place_operands: operands that an output of the same shape and dtype may overwrite.
      equations, outputs: what it computes, in kernel-local numbers; which of them are results.
      is_group: whether it computes more than one equation.
      is_wide: whether it computes with types of 64 bits.
      rewritten: the operand of which the result is a copy but for a part that is written; -1: none.
      touches_part: whether it reads or writes only a part of a large operand.
      stands_apart: whether XLA was seen to compile it otherwise where others are around it.
      label: primitive names, for messages.
      compiled: what `execution.executable_cache` keeps of it.
    """

    __slots__ = (
        "__weakref__",
        "_keys",
        "compiled",
        "cost_seconds",
        "equations",
        "flops",
        "in_avals",
        "in_place_operands",
        "is_group",
        "is_wide",
        "key",
        "label",
        "moved_bytes",
        "out_avals",
        "outputs",
        "recomputable",
        "rewritten",
        "stands_apart",
        "touches_part",
    )

    def __init__(
        self,
        key: Hashable,
        equations: Sequence[Equation],
        outputs: Sequence[int],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        profile: cost_model.DeviceProfile,
        moved_bytes: int | None = None,
        in_place_operands: tuple[int, ...] | None = None,
    ):
        self.key = key
        self.equations = tuple(equations)
        self.outputs = tuple(outputs)
        self.touches_part = moved_bytes is not None
        self.is_group = len(self.equations) > 1
        self.stands_apart = False
        self.in_avals = tuple(in_avals)
        self.out_avals = tuple(out_avals)
        self.is_wide = wide.any_wide((*in_avals, *out_avals)) or any(
            wide.any_wide(e.out_avals) or jaxprs.is_wide(e.params) for e in equations
        )
        self._keys = tuple(n for n, a in enumerate(self.in_avals) if arrays.is_keys(a.dtype))
        self.recomputable = all(
            primitives.is_recomputable(e.primitive, e.params, e.effects) for e in equations
        )
        names = list(dict.fromkeys(e.primitive.name for e in equations))
        self.label = "+".join(names[:3]) + ("+..." if len(names) > 3 else "")
        self.in_place_operands = (
            overwriting.operands_of_result(self.equations, self.in_avals, self.out_avals)
            if in_place_operands is None
            else in_place_operands
        )
        self.rewritten = overwriting.rewritten(
            self.equations, self.in_place_operands, touches_part=self.touches_part
        )
        if moved_bytes is None:
            self.flops = self._count_flops()
            moved_bytes = sum(map(cost_model.nbytes, (*self.in_avals, *self.out_avals)))
        else:  # a part of a large array: its equations would count the whole
            self.flops = float(moved_bytes)
        self.moved_bytes = moved_bytes
        self.cost_seconds = cost_model.cost_seconds(profile, self.flops, moved_bytes)
        self.compiled: dict[Hashable, object] = {}  # of `execution.executable_cache`

    def _count_flops(self) -> float:
        avals: dict[int, Any] = dict(enumerate(self.in_avals))
        total = 0.0
        for e in self.equations:
            ins = [avals[x] if isinstance(x, int) else x.aval for x in e.operands]
            avals.update(zip(e.results, e.out_avals, strict=True))
            total += cost_model.flops(e.primitive, e.params, ins, e.out_avals)
        return total

    def __call__(self, *operands: Any) -> list[Any]:
        """Computes the kernel with JAX, under whatever trace is current."""
        return self._computed(operands, as_called=False)

    def scalars(self) -> dict[int, Any]:
        """The scalars that results are filled with, or what is written into: by the equation."""
        return {
            number: e.operands[0].value
            for number, e in enumerate(self.equations)
            if e.primitive.name == "broadcast_in_dim" and isinstance(e.operands[0], LiteralValue)
            if self.touches_part or e.results[0] in self.outputs
        }

    def with_scalars(self, scalars: Mapping[int, Any], *operands: Any) -> list[Any]:
        """As a call, with these scalars for those of the same equations."""
        return self._computed(operands, as_called=False, scalars=scalars)

    def called(self, *operands: Any) -> list[Any]:
        """The same for XLA's CPU compiler where it is called by a larger computation.

        Keys are given and returned as their data.
        """
        results = self._computed(list(map(calls.row_major, operands)), as_called=True)
        return [calls.row_major(arrays.as_stored(r)) for r in results]

    def _computed(
        self, operands: Sequence[Any], *, as_called: bool, scalars: Mapping[int, Any] | None = None
    ) -> list[Any]:
        values: dict[int, Any] = dict(enumerate(operands))
        for n in self._keys:
            values[n] = arrays.as_keys(values[n], self.in_avals[n])
        for number, e in enumerate(self.equations):
            ins = [values[x] if isinstance(x, int) else x.value for x in e.operands]
            if scalars and number in scalars:
                ins[0] = scalars[number]
            if as_called and e.primitive.name == "conv_general_dilated":
                results = calls.bind_convolution(e.primitive, e.params, e.context, *ins)
            elif max_pool_gradient.is_known(e.primitive, e.params, ins):
                with jaxprs.within(e.context):
                    results = [max_pool_gradient.select_and_scatter_add(*ins, **e.params)]
            else:
                results = jaxprs.bind(e.primitive, e.params, e.context, ins)
            values.update(zip(e.results, results, strict=True))
        return [jaxprs.strong(values[number]) for number in self.outputs]


class KernelCache:
    """Kernels of one device by structural key. Process-wide, as JAX's compilation caches are.

    Those that keep shardings are for programs over several devices (`coop_jax.jit`).
    """

    def __init__(self, device: jax.Device, *, keeps_shardings: bool = False):
        self.device = device
        self.keeps_shardings = keeps_shardings
        self.profile = cost_model.profile_for(device.platform)
        self.lock = threading.RLock()
        self.compilations = 0
        self.compile_seconds = 0.0  # that somebody waited for
        # The sessions', by the state of JAX's configuration; bounded by them.
        self.prepared: collections.OrderedDict[Hashable, _core.PreparedOperations] = (
            collections.OrderedDict()
        )
        self._kernels: Kernels[Kernel] = Kernels(self.prepared)
        caches.cleared_with_jax(self)

    def kernel(
        self,
        equations: Sequence[Equation],
        outputs: Sequence[int],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        *,
        moved_bytes: int | None = None,
        in_place_operands: tuple[int, ...] | None = None,
    ) -> Kernel:
        """The kernel of these equations, made on first sight of their structure.

        `moved_bytes` and `in_place_operands` say what the equations do not: that a kernel touches
        only a part of its operands, and which operand its result may be written over.
        """
        context = contexts.current().of_kernels()
        params_key, aval_key = equation_keys.params_key, equation_keys.aval_key
        if self.keeps_shardings:
            params_key, aval_key = equation_keys.placed_params_key, equation_keys.placed_aval_key
        key = (
            tuple(
                (
                    e.primitive,
                    params_key(e.params),
                    e.context,
                    tuple(
                        x
                        if isinstance(x, int)
                        else (
                            equation_keys.literal_key(x.value),
                            equation_keys.type_name(x.aval.dtype),
                        )
                        for x in e.operands
                    ),
                    e.results,
                )
                for e in equations
            ),
            tuple(outputs),
            tuple(map(aval_key, in_avals)),
            moved_bytes,
            in_place_operands,
        )
        found = self._kernels.find((key, context))
        if found is None:
            with self.lock:
                kernel = Kernel(
                    key,
                    equations,
                    outputs,
                    in_avals,
                    out_avals,
                    self.profile,
                    moved_bytes,
                    in_place_operands,
                )
                found = self._kernels.keep((key, context), kernel)
        return found

    def remembered(self, key: Hashable, make: Callable[[], Kernel]) -> Kernel:
        """The kernel of a key; `make` makes it on first sight."""
        with self.lock:
            return self._kernels.find(key) or self._kernels.keep(key, make())

    def cache_clear(self) -> None:
        """Forgets all kernels but those of plans; `jax.clear_caches` does it."""
        with self.lock:
            self._kernels.clear()

    def of_equation(
        self,
        eqn: Any,
        atoms: Sequence[int | LiteralValue],
        aval_of: Callable[[int], Any],
        *,
        opaque: bool = False,
    ) -> tuple[Kernel, list[int]]:
        """The kernel of one equation (or cheap call) and its operands without repetition.

        A call that is `opaque` stays one equation.
        """
        numbers: list[int] = []
        local: list[int | LiteralValue] = []
        for atom in atoms:
            if isinstance(atom, LiteralValue):
                local.append(atom)
                continue
            if atom not in numbers:
                numbers.append(atom)
            local.append(numbers.index(atom))
        in_avals = [aval_of(n) for n in numbers]
        builder = KernelBuilder(in_avals, keeps_shardings=self.keeps_shardings)
        body = None if opaque else jaxprs.call_body(eqn.primitive, eqn.params)
        if body is None:
            results: Sequence[Any] = range(len(numbers), len(numbers) + len(eqn.outvars))
            out_avals = [v.aval for v in eqn.outvars]
            builder.add(
                eqn.primitive, eqn.params, eqn.ctx, eqn.effects, out_avals, local, list(results)
            )
        else:
            results = builder.inline(body[0], body[1], local)
        out_avals = [v.aval for v in eqn.outvars]
        return self.kernel(builder.equations, list(results), in_avals, out_avals), numbers

    def from_function(
        self,
        function: Callable[..., Any],
        in_avals: Sequence[Any],
        *,
        moved_bytes: int | None = None,
        in_place_operands: tuple[int, ...] | None = None,
    ) -> Kernel:
        """A kernel of a small JAX function of arrays, for operations that no equation names."""
        with wide.holding(wide=wide.any_wide(in_avals)):
            specs = [jaxprs.spec_of(a, placed=self.keeps_shardings) for a in in_avals]
            jaxpr, constants = jaxprs.trace(lambda *xs: [function(*xs)], specs)
        builder = KernelBuilder(in_avals, keeps_shardings=self.keeps_shardings)
        outputs = builder.inline(jaxpr, constants, list(range(len(in_avals))))
        numbers = [x for x in outputs if isinstance(x, int)]
        return self.kernel(
            builder.equations,
            numbers,
            in_avals,
            [v.aval for v in jaxpr.outvars],
            moved_bytes=moved_bytes,
            in_place_operands=in_place_operands,
        )


_caches: dict[jax.Device, KernelCache] = {}
_caches_lock = threading.Lock()


def cache_for(device: jax.Device) -> KernelCache:
    """The kernel cache of a device."""
    with _caches_lock:
        if device not in _caches:
            _caches[device] = KernelCache(device)
        return _caches[device]
