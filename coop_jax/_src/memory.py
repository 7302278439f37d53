"""Pool memory as arrays: slots to write into, views to read, what is held and by whom.

A slot is an array over a range of the pool, made without copying, meant to be donated to the
operation that writes it. The memory belongs to the pool; an array that is given to the user is
*lent*: it keeps its range taken until its last user lets go, whatever that user is (an array, a NumPy
view). What is not lent belongs to the running call, which knows when its operations are done; XLA's
worker threads may let go of their references any time later, and that is not waited for.

Thread rule: the C++ pool is thread-safe; everything else is used under the runtime's lock.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coop_jax import _core
from coop_jax._src.compat import arrays

_DLPACK_CPU, _DLPACK_CUDA = 1, 2


class PoolMemory:
    """The memory of one runtime on one device.

    Attributes:
      pool: the C++ pool.
      synchronous: whether an operation is done when its call returns.
    """

    __slots__ = ("_import", "_specs", "device", "pool", "synchronous")

    def __init__(self, capacity_bytes: int, device: jax.Device):
        self.device = device
        self.synchronous = arrays.runs_synchronously(device)
        self._import = arrays.importer(device)
        self._specs: dict[tuple[Any, Any], _core.SlotSpec] = {}
        if device.platform == "cpu":
            # Pages are taken from the system when first written, so an unused part costs nothing.
            self.pool = _core.Pool(capacity_bytes)
        else:
            owner = jax.device_put(jnp.zeros(capacity_bytes, jnp.uint8), device).block_until_ready()
            self.pool = _core.Pool(
                arrays.address_of(owner), capacity_bytes, owner, _DLPACK_CUDA, device.id
            )

    def spec(self, aval: Any) -> _core.SlotSpec:
        """The slot description of a shape and dtype."""
        key = (aval.shape, aval.dtype)
        found = self._specs.get(key)
        if found is None:
            kind = arrays.dlpack_type(aval.dtype)
            assert kind is not None, f"invariant: values of {aval.dtype} stay outside the pool"
            found = self._specs[key] = _core.SlotSpec(aval.shape, *kind)
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

    def lent(self, value: jax.Array, aval: Any) -> jax.Array:
        """The array to give to the user for one of the running call's."""
        offset = self.offset_of(value)
        return value if offset < 0 else self.lend(offset, self.spec(aval))

    def offset_of(self, value: Any) -> int:
        """The offset of an array in the pool, -1 for anything else."""
        if not isinstance(value, jax.Array) or not hasattr(value, "unsafe_buffer_pointer"):
            return -1
        return self.pool.offset_of(arrays.address_of(value))
