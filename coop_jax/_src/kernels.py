"""What operations compute: kernels, groups of equations keyed by structure.

A `Kernel` is what an operation computes; an `Executable` (see `executables`) is one way to run it.

Invariants: equal keys compute equal bits under one configuration of JAX, and a kernel is compiled
under the one that it was made under; an executable is compiled once per process and device, unless
two runtimes ask for it at the same time.
Thread rule: the cache may be used from several threads.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src import costs, overwriting, placement, pooling, primitives
from coop_jax._src.compat import arrays, caches, calls, contexts, equation_keys, ffi, jaxprs, wide
from coop_jax._src.equations import Equation, KernelBuilder, LiteralValue
from coop_jax._src.executables import OUTSIDE as OUTSIDE
from coop_jax._src.executables import SLOT as SLOT
from coop_jax._src.executables import Executable, spec_of
from coop_jax._src.placement import Placement
from coop_jax._src.retention import Kernels


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
    """

    __slots__ = (
        "__weakref__",
        "_executables",
        "_keys",
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
        profile: costs.DeviceProfile,
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
            moved_bytes = sum(map(costs.nbytes, (*self.in_avals, *self.out_avals)))
        else:  # a part of a large array: its equations would count the whole
            self.flops = float(moved_bytes)
        self.moved_bytes = moved_bytes
        self.cost_seconds = costs.cost_seconds(profile, self.flops, moved_bytes)
        self._executables: dict[tuple[tuple[int, ...], Placement], Executable] = {}

    def _count_flops(self) -> float:
        avals: dict[int, Any] = dict(enumerate(self.in_avals))
        total = 0.0
        for e in self.equations:
            ins = [avals[x] if isinstance(x, int) else x.aval for x in e.operands]
            avals.update(zip(e.results, e.out_avals, strict=True))
            total += costs.flops(e.primitive, e.params, ins, e.out_avals)
        return total

    def __call__(self, *operands: Any) -> list[Any]:
        """Computes the kernel with JAX, under whatever trace is current."""
        return self._computed(operands, as_called=False)

    def called(self, *operands: Any) -> list[Any]:
        """The same for XLA's CPU compiler where it is called by a larger computation.

        Keys are given and returned as their data.
        """
        results = self._computed(list(map(calls.row_major, operands)), as_called=True)
        return [calls.row_major(arrays.as_stored(r)) for r in results]

    def _computed(self, operands: Sequence[Any], *, as_called: bool) -> list[Any]:
        values: dict[int, Any] = dict(enumerate(operands))
        for n in self._keys:
            values[n] = arrays.as_keys(values[n], self.in_avals[n])
        for e in self.equations:
            ins = [values[x] if isinstance(x, int) else x.value for x in e.operands]
            if as_called and e.primitive.name == "conv_general_dilated":
                results = calls.bind_convolution(e.primitive, e.params, e.context, *ins)
            elif pooling.is_known(e.primitive, e.params, ins):
                with jaxprs.within(e.context):
                    results = [pooling.select_and_scatter_add(*ins, **e.params)]
            else:
                results = jaxprs.bind(e.primitive, e.params, e.context, ins)
            values.update(zip(e.results, results, strict=True))
        return [jaxprs.strong(values[number]) for number in self.outputs]

    def executable(
        self, modes: tuple[int, ...], device: jax.Device, cache: KernelCache
    ) -> Executable:
        """The compiled form with these output modes (OUTSIDE, SLOT or an operand's number)."""
        found = self.known_executable(modes, device)
        if found is None:
            with cache.lock:
                found = self.known_executable(modes, device)
                if found is None:
                    found = self.lowered(modes, device)
                    found.compile()
                    self.keep(found, device, cache)
        return found

    def executables(self) -> list[Executable]:
        """All compiled forms."""
        return list(self._executables.values())

    def known_executable(self, modes: tuple[int, ...], device: jax.Device) -> Executable | None:
        """The compiled form if there is one."""
        return self._executables.get((modes, placement.probe(device)))

    def lowered(self, modes: tuple[int, ...], device: jax.Device) -> Executable:
        """A form to `compile` and then to `keep`."""
        donates = placement.probe(device) is Placement.DONATED
        return Executable(self, modes, device, donates=donates)

    def keep(self, executable: Executable, device: jax.Device, cache: KernelCache) -> None:
        """Remembers a compiled form, if nobody else was faster."""
        with cache.lock:
            key = executable.modes, placement.probe(device)
            if self._executables.setdefault(key, executable) is executable:
                cache.compilations += 1


class KernelCache:
    """Kernels of one device by structural key. Process-wide, as JAX's compilation caches are."""

    def __init__(self, device: jax.Device):
        self.device = device
        self.profile = costs.profile_for(device.platform)
        self.lock = threading.RLock()
        self.compilations = 0
        # The sessions', by the state of JAX's configuration; bounded by them.
        self.prepared: collections.OrderedDict[Hashable, _core.PreparedOperations] = (
            collections.OrderedDict()
        )
        self._kernels = Kernels(self._forget_prepared)
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
        key = (
            tuple(
                (
                    e.primitive,
                    equation_keys.params_key(e.params),
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
            tuple(map(equation_keys.aval_key, in_avals)),
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

    def _forget_prepared(self) -> None:
        for prepared in list(self.prepared.values()):
            prepared.clear()

    def cache_clear(self) -> None:
        """Forgets all kernels but those of plans; `jax.clear_caches` does it."""
        with self.lock:
            self._kernels.clear()

    def of_equation(
        self, eqn: Any, atoms: Sequence[int | LiteralValue], aval_of: Callable[[int], Any]
    ) -> tuple[Kernel, list[int]]:
        """The kernel of one equation (or cheap call) and its operands without repetition."""
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
        builder = KernelBuilder(in_avals)
        body = jaxprs.call_body(eqn.primitive, eqn.params)
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
            specs = [spec_of(a) for a in in_avals]
            jaxpr, constants = jaxprs.trace(lambda *xs: [function(*xs)], specs)
        builder = KernelBuilder(in_avals)
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


def copy_into(slot: jax.Array, source: jax.Array) -> jax.Array:
    """Copies an array into a slot of its size and dtype; the result lies in the slot's memory.

    It is done when this returns: what is read there later need not know of it.
    """
    device = slot.device
    if placement.probe(device) is Placement.COPIED:
        return ffi.store(slot, source)
    copied = ffi.copy_into(slot, source)
    if not arrays.runs_synchronously(device):
        arrays.wait_for_launch(copied)
    return copied
