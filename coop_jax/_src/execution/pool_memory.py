"""Pool memory as arrays: slots to write into, views to read, what is held and by whom.

A slot is an array over a range of the pool, made without copying, meant to be donated to the
operation that writes it. The memory belongs to the pool; an array that is given to the user is
*lent*: it keeps its range taken until its last user lets go, whatever that user is (an array, a
NumPy view). What is not lent belongs to the running call, which knows when its operations are done;
XLA's worker threads may let go of their references any time later, and that is not waited for.

On CPU the pool is address space whose pages come and go; what the budget reserves for workspace and
for values outside is given back to the system, so the process holds the budget and no more.

On a GPU the pool is one JAX array of the whole capacity, from XLA's own allocator, which counts it
as in use from the first call until the runtime and the last array in it are gone. `discard` gives
nothing back there. So a range that is reserved for workspace or for a value outside the pool is
counted once by the budget but taken twice from the device: the budget is hard for what the call
keeps, while XLA's `bytes_in_use` may reach the capacity plus what is reserved. What the budget
counts there: blocks of the pool, inputs and small values outside it, and for one operation at a
time XLA's temporary buffer and the outputs that XLA allocates itself. Not counted, as on CPU: the
code of compiled operations, constants inside it, what cuDNN and cuBLAS keep for themselves, and
unused space between XLA's allocations.

Thread rule: the C++ pool is thread-safe; everything else is used under the runtime's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat import arrays, devices
from coop_jax._src.execution import slot_copy
from coop_jax._src.ir import cost_model


class PoolMemory:
    """The memory of one runtime on one device.

    Attributes:
      pool: the C++ pool.
      cells: arrays over it that sessions are done with, to write into.
      synchronous: whether an operation is done when its call returns.
      ordered: whether an operation begins when all that were called before are done.
    """

    __slots__ = ("_import", "_specs", "cells", "device", "ordered", "pool", "synchronous")

    def __init__(self, capacity_bytes: int, device: jax.Device):
        self.device = device
        self.cells = _core.SlotCells()
        self.synchronous = arrays.runs_synchronously(device)
        self.ordered = devices.runs_in_order(device)
        load, arguments = arrays.importer(device)
        self._import: Callable[[object], jax.Array] = lambda capsule: load(capsule, *arguments)
        self._specs: dict[tuple[Any, Any], _core.SlotSpec] = {}
        if device.platform == "cpu":
            # Pages are taken from the system when first written, so an unused part costs nothing.
            self.pool = _core.Pool(capacity_bytes)
        else:
            kind = devices.dlpack_device(device)  # first: it refuses devices that will not do
            owner = _allocate(capacity_bytes, device)
            self.pool = _core.Pool(arrays.address_of(owner), capacity_bytes, owner, *kind)

    def spec(self, aval: Any) -> _core.SlotSpec:
        """The slot description of a shape and dtype."""
        key = (aval.shape, aval.dtype)
        found = self._specs.get(key)
        if found is None:
            kind = arrays.dlpack_type(aval.dtype)
            assert kind is not None, f"invariant: values of {aval.dtype} stay outside the pool"
            shape = arrays.stored_aval(aval).shape
            found = self._specs[key] = _core.SlotSpec(shape, *kind)
        return found

    def slot(self, offset: int, spec: _core.SlotSpec) -> jax.Array:
        """An array to be donated to the operation that writes this range.

        Raises:
          RuntimeError: the user holds the range; that would be a defect of the planner.
        """
        return self._import(self.pool.take(offset, spec))

    def view(self, offset: int, spec: _core.SlotSpec) -> jax.Array:
        """An array that reads what lies there, for the running call."""
        return self._import(self.pool.view(offset, spec))

    def lend(self, offset: int, spec: _core.SlotSpec) -> jax.Array:
        """An array of what lies there, for the user: the memory is taken until it is gone."""
        return self._import(self.pool.slot(offset, spec, False))

    def adopt(self, offset: int, spec: _core.SlotSpec, value: jax.Array) -> None:
        """Lets an array, and whoever holds it, live in the pool: its contents are copied there."""
        arrays.replace_buffer(value, self.copied(offset, spec, value))

    def copied(self, offset: int, spec: _core.SlotSpec, value: jax.Array) -> jax.Array:
        """An array for the user, with the contents of another one, at a place that is free.

        Where they can be, they are copied as they are: XLA would compile a copy for each shape.
        """
        self.copy(offset, spec, value)
        return self.lend(offset, spec)

    def moved(self, offset: int, spec: _core.SlotSpec, value: jax.Array) -> jax.Array:
        """As `copied`, for the running call."""
        self.copy(offset, spec, value)
        return self.view(offset, spec)

    def copy(self, offset: int, spec: _core.SlotSpec, value: jax.Array) -> None:
        """Writes the contents of an array to a place that is free."""
        if self.device.platform == "cpu" and arrays.lies_as(value, spec.nbytes):
            arrays.wait(value)
            self.pool.write(offset, arrays.address_of(value), spec.nbytes)
        else:
            moved = slot_copy.copy_into(self.slot(offset, spec), value)
            if arrays.address_of(moved) != self.pool.base + offset:
                raise RuntimeError("invariant: a copy into a slot lies in the slot")

    def lent(self, value: jax.Array, aval: Any) -> jax.Array:
        """The array to give to the user for one of the running call's."""
        offset = self.offset_of(value)
        return value if offset < 0 else self.lend(offset, self.spec(aval))

    def offset_of(self, value: Any) -> int:
        """The offset of an array in the pool, -1 for anything else."""
        value = arrays.stored(value)
        if not isinstance(value, jax.Array) or not hasattr(value, "unsafe_buffer_pointer"):
            return -1
        return self.pool.offset_of(arrays.address_of(value))


def _allocate(capacity_bytes: int, device: jax.Device) -> jax.Array:
    try:
        owner = arrays.zero_bytes(max(capacity_bytes, 1), device)
    except RuntimeError as error:
        error.add_note(
            f"coop_jax: a pool of {capacity_bytes} bytes, the budget, could not be allocated on"
            f" {device}. Name a smaller budget, or free what the device holds."
        )
        raise
    if arrays.address_of(owner) % cost_model.ALIGNMENT_BYTES:
        raise RuntimeError("invariant: XLA aligns what it allocates on a GPU to 256 bytes")
    return owner
