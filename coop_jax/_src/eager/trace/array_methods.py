"""What a `jax.Array` offers and a tracer of JAX's refuses: placement, shards, exports.

Model: `ArrayMethods` is mixed into the eager front end's tracer, before JAX's `Tracer`, whose
methods raise. Each asks for the contents, which the session brings back, and asks those.
`jax.device_get` hands tracers back as they are, so it is told to look at the contents, too.

Invariant: what leaves here does not depend on the pool: contents are copied out of it first.
Threads: `install` is idempotent; nothing else is shared. Complexity: a copy of the contents each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import api as _api


class ArrayMethods:
    """The methods of `jax.Array` that need contents; the class that mixes them in gives those."""

    __slots__ = ()

    def concrete(self) -> jax.Array:
        """The contents, as an array that does not depend on the pool."""
        raise NotImplementedError

    def __array__(
        self, dtype: Any = None, context: None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        # As an array gives it: not writable unless it is a copy. NumPy 1 has no such argument.
        del context
        asked: dict[str, Any] = {} if copy is None else {"copy": copy}
        return np.asarray(self.concrete(), dtype=dtype, **asked)

    def __bool__(self) -> bool:
        return bool(self.concrete())

    def __int__(self) -> int:
        return int(self.concrete())

    def __float__(self) -> float:
        return float(self.concrete())

    def __complex__(self) -> complex:
        return complex(self.concrete())

    def __index__(self) -> int:
        return operator.index(self.concrete())

    def __format__(self, spec: str) -> str:
        return format(self.concrete(), spec)

    def __reduce__(self) -> Any:
        return self.concrete().__reduce__()

    def __bytes__(self) -> bytes:
        return np.asarray(self).tobytes()

    def __dlpack__(self, **asked: Any) -> Any:
        return self.concrete().__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.concrete().__dlpack_device__()  # type: ignore[attr-defined]

    if "__numpy_dtype__" in vars(jax.Array):  # an array that is given for a dtype: JAX warns
        __numpy_dtype__ = vars(jax.Array)["__numpy_dtype__"]

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.concrete().__cuda_array_interface__  # type: ignore[attr-defined]

    def item(self, *args: Any) -> Any:
        """As `jax.Array.item`."""
        return self.concrete().item(*args)

    def tolist(self) -> Any:
        """As `jax.Array.tolist`."""
        return self.concrete().tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        """As `jax.Array.tobytes`."""
        return np.asarray(self).tobytes(order)

    @property
    def sharding(self) -> Any:
        """As `jax.Array.sharding`."""
        return self.concrete().sharding

    @property
    def device(self) -> Any:
        """As `jax.Array.device`."""
        return self.concrete().device

    def devices(self) -> set[Any]:
        """As `jax.Array.devices`."""
        return set(self.concrete().devices())

    @property
    def format(self) -> Any:
        """As `jax.Array.format`."""
        return self.concrete().format  # type: ignore[attr-defined]

    @property
    def committed(self) -> bool:
        """Never: what an operation returns is not bound to its device."""
        return False

    _committed = committed  # what JAX itself asks; where it is missing, JAX takes it for true

    @property
    def is_fully_addressable(self) -> bool:
        """As `jax.Array.is_fully_addressable`."""
        return True

    @property
    def is_fully_replicated(self) -> bool:
        """As `jax.Array.is_fully_replicated`."""
        return True

    @property
    def addressable_shards(self) -> Any:
        """As `jax.Array.addressable_shards`."""
        return self.concrete().addressable_shards

    @property
    def global_shards(self) -> Any:
        """As `jax.Array.global_shards`."""
        return self.concrete().global_shards

    def addressable_data(self, index: int) -> jax.Array:
        """As `jax.Array.addressable_data`."""
        return self.concrete().addressable_data(index)

    def on_device_size_in_bytes(self) -> int:
        """As `jax.Array.on_device_size_in_bytes`."""
        return int(self.concrete().on_device_size_in_bytes())

    def unsafe_buffer_pointer(self) -> int:
        """Refused: contents move as they are evicted and brought back."""
        raise NotImplementedError(
            "a value of an eager coop_jax call has no lasting address: use the array that the"
            " call returns, or a copy made by numpy.asarray"
        )

    @property
    def traceback(self) -> Any:
        """As `jax.Array.traceback`."""
        return self.concrete().traceback

    def is_ready(self) -> bool:
        """Always: operations are carried out as they are called."""
        return True

    def copy_to_host_async(self) -> None:
        """Does nothing: contents are copied when they are asked for."""


_device_get: Callable[[Any], Any] = _api._device_get


def _device_get_contents(x: Any) -> Any:
    return _device_get(x.concrete() if isinstance(x, ArrayMethods) else x)


def install() -> None:
    """Has `jax.device_get` copy the contents of eager values to the host, as it does of arrays."""
    _api._device_get = _device_get_contents
