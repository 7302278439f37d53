"""Kernels compiled: one way to run a kernel, with its outputs where the engine wants them.

Which outputs XLA writes into pool slots, which ones over an input, which ones wherever it likes.
Slots come in as donated, unused placeholder arguments; XLA pairs a donated argument with an output
of its shape and dtype, first with first, so the outputs are ordered: slots, then in-place ones,
then the rest. Where XLA must not be given slots (see `donation_probe`), it allocates every output,
and an `Executable` copies those that have a slot into it; it takes the same arguments and returns
the same.

What writes a part of an operand (a `dynamic_update_slice`) into a slot is compiled to write over
it, and given a copy that lies in the slot. XLA itself would make two copies, one of them in memory
of its own.

Typed random keys are handled as their data: an executable takes and returns arrays of uint32, and
the keys exist only inside the compiled code.
Thread rule: made and lowered by one thread; `compile` may run on another.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from coop_jax import _core
from coop_jax._src.compat import (
    arrays,
    buffer_assignment,
    caches,
    calls,
    ffi,
    hlo,
    jaxprs,
    library_memory,
    number_checks,
    wide,
)
from coop_jax._src.ir import cost_model

if TYPE_CHECKING:
    from coop_jax._src.ir.kernels import Kernel

OUTSIDE = -2  # XLA allocates the output
SLOT = -1  # the output is written into a slot of the pool; >= 0: over this operand


class Executable:
    """One compiled way to run a kernel on one device; ready once `compile` was called.

    Attributes:
      label, cost_seconds, out_avals: the kernel's.
      call: `call(*slots, *operands)` returns outputs in the order of `order`, uncommitted, whether
        the arguments are committed or not.
      donates: whether slots and overwritten operands are given to XLA. If not, outputs for slots
        are copied there, and what should overwrite an operand is returned elsewhere.
      order: result numbers in the order in which `call` returns them.
      slot_results: results that go into slots, in the order of the slot arguments.
      workspace_bytes: temporary memory XLA allocates while it runs, including outputs that XLA
        would not write where it was told, and what its libraries take (see
        `compat.library_memory`).
      places_outputs: whether XLA writes slots and in-place outputs where it was told. From the
        compiler's aliasing at first, corrected by the addresses seen in the first run.
    """

    __slots__ = (
        "_compiled",
        "_failed_at",
        "_host",
        "_is_wide",
        "_kernel",
        "_lowered",
        "_placed_bytes",
        "_rewritten",
        "_structure",
        "_temporaries",
        "call",
        "checked",
        "cost_seconds",
        "donates",
        "label",
        "library_bytes",
        "modes",
        "obedient_call",
        "order",
        "out_avals",
        "places_outputs",
        "slot_results",
        "workspace_bytes",
    )

    def __init__(
        self, kernel: Kernel, modes: tuple[int, ...], device: jax.Device, *, donates: bool = True
    ):
        # A kernel holds its executables. In a cycle with it they would stay until Python looks for
        # cycles, which is hundreds of executables later.
        self._kernel = weakref.ref(kernel)
        self._is_wide = kernel.is_wide
        self.label, self.cost_seconds = kernel.label, kernel.cost_seconds
        self.out_avals: Sequence[Any] = kernel.out_avals
        self.donates = donates
        self.modes = modes
        slot_results = [k for k, mode in enumerate(modes) if mode == SLOT]
        in_place = sorted((mode, k) for k, mode in enumerate(modes) if mode >= 0)
        outside = [k for k, mode in enumerate(modes) if mode == OUTSIDE]
        self.slot_results = tuple(slot_results)
        # The session's, once the outputs were seen to lie where they should.
        self.obedient_call: _core.CompiledCall | None = None
        self.order = (*slot_results, *(k for _, k in in_place), *outside)
        is_copied = donates and modes == (SLOT,) and not kernel.is_wide
        rewritten = kernel.rewritten if is_copied else -1
        slots = len(slot_results) if donates and rewritten < 0 else 0
        told_where = len(slot_results) + len(in_place)
        order = self.order

        def run(*arguments: Any) -> list[Any]:
            results = kernel(*arguments[slots:])
            return [arrays.as_stored(results[k]) for k in order]

        donated = (*range(slots), *(slots + operand for operand, _ in in_place)) if donates else ()
        donated = donated if rewritten < 0 else (rewritten,)
        jitted = jax.jit(run, donate_argnums=donated, keep_unused=True)
        specs = [
            jaxprs.spec_of(arrays.stored_aval(aval))
            for aval in (*(kernel.out_avals[k] for k in slot_results[:slots]), *kernel.in_avals)
        ]
        self._rewritten = rewritten
        self._failed_at = f"the operation '{kernel.label}' for {device}"
        self._placed_bytes = sum(cost_model.nbytes(kernel.out_avals[k]) for k in order[:told_where])
        with (
            warnings.catch_warnings(),
            number_checks.keeping_donation(),
            # Where no sharding is named, results are uncommitted, as most arrays of users are.
            jax.default_device(device),
            wide.holding(wide=kernel.is_wide),
        ):
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            try:
                self._lowered: jax.stages.Lowered | None = caches.lowered(jitted, specs)
            except Exception as error:  # no rule for this device...
                error.add_note(f"coop_jax: this came of compiling {self._failed_at}")
                raise
        self._host = device.platform == "cpu"
        self.call: Callable[..., Sequence[jax.Array]] = _not_compiled
        self._compiled: jax.stages.Compiled | None = None
        self._structure: str | None = None
        self._temporaries: list[int] | None = None
        self.workspace_bytes = self.library_bytes = 0
        self.places_outputs = False
        self.checked = False

    @property
    def kernel(self) -> Kernel:
        """What it runs: for those who know that a program, a call or a segment still holds that."""
        kernel = self._kernel()
        assert kernel is not None, "invariant: nobody asks for a kernel that is gone"
        return kernel

    def compile(self) -> None:
        """Compiles; may run in another thread than the one that made this."""
        _core.ensure_signal_stack()  # XLA computes what is constant
        try:
            with arrays.caching_all(), wide.holding(wide=self._is_wide):
                assert self._lowered is not None, "compiled twice"
                self._compiled = compiled = self._lowered.compile()
                memory = compiled.memory_analysis()
        except Exception as error:  # not enough memory to compile...
            error.add_note(f"coop_jax: this came of compiling {self._failed_at}")
            raise
        self._lowered = None
        call = calls.dispatcher(compiled)
        if self._is_wide:
            call = wide.calling(call)
        if self._rewritten >= 0:
            self.call = _rewriting(call, self._rewritten)
        else:
            self.call = call if self.donates else _storing(call, len(self.slot_results))
        placed = self._placed_bytes
        aliased = int(getattr(memory, "alias_size_in_bytes", placed)) if self.donates else 0
        self.workspace_bytes = int(getattr(memory, "temp_size_in_bytes", 0)) + max(
            0, placed - aliased
        )
        if self._host:  # elsewhere XLA gives libraries their memory, and tells of it
            self.library_bytes = library_memory.unreported_bytes(hlo.serialized(compiled))
            self.workspace_bytes += self.library_bytes
        self.places_outputs = aliased >= placed

    def module(self) -> hlo.Module | None:
        """What XLA made of it, None if it does not say."""
        assert self._compiled is not None, "looked at before it was compiled"
        return hlo.module_of(self._compiled)

    def temporaries(self) -> list[int]:
        """Bytes of the temporary buffers that XLA keeps at one time, about."""
        if self._temporaries is None:
            assert self._compiled is not None, "looked at before it was compiled"
            self._temporaries = buffer_assignment.at_once(self._compiled)
        return self._temporaries

    def structure(self) -> str | None:
        """The hash of what XLA made of it (see `compat.hlo`), None if it does not say."""
        if self._structure is None and (module := self.module()) is not None:
            self._structure = module.structure(module.entry)
        return self._structure


def _not_compiled(*arguments: Any) -> Sequence[jax.Array]:
    raise RuntimeError("invariant: an executable is compiled before it is called")


def _storing(
    compiled: Callable[..., Sequence[jax.Array]], slots: int
) -> Callable[..., list[jax.Array]]:
    """`call` of an executable that donates nothing, over a function of the operands."""

    def call(*arguments: Any) -> list[jax.Array]:
        results: list[jax.Array] = []
        try:
            results += compiled(*arguments[slots:])
            stored = [ffi.store(*pair) for pair in zip(arguments[:slots], results, strict=False)]
            return stored + results[slots:]
        finally:  # a traceback that somebody keeps must not keep arrays
            del arguments
            results = []

    return call


def _rewriting(
    compiled: Callable[..., Sequence[jax.Array]], operand: int
) -> Callable[..., Sequence[jax.Array]]:
    """`call` of an executable that writes over an operand, given a slot for a copy of it."""

    def call(slot: jax.Array, *arguments: Any) -> Sequence[jax.Array]:
        operands = list(arguments)
        try:
            operands[operand] = ffi.copy_into(slot, operands[operand])
            return compiled(*operands)
        finally:  # a traceback that somebody keeps must not keep arrays
            del slot, arguments
            operands.clear()

    return call
