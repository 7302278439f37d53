"""Imports of pool slots for tests that use the extension module without the runtime."""

from typing import Any

import jax
import numpy as np
from jaxlib import _jax

from coop_jax import _core

_TYPE_CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "c": 5, "b": 6}  # DLPack's; bfloat16 has kind V


def spec_of(shape: tuple[int, ...], dtype: Any) -> _core.SlotSpec:
    dtype = np.dtype(dtype)
    return _core.SlotSpec(shape, _TYPE_CODES[dtype.kind], dtype.itemsize * 8)


def import_slot(
    pool: _core.Pool, offset: int, spec: _core.SlotSpec, exclusive: bool = False
) -> jax.Array:
    """A mutable placeholder over pool memory, which XLA may write when it is donated."""
    capsule = pool.slot(offset, spec, exclusive)
    return _jax.dlpack_managed_tensor_to_buffer(capsule, jax.devices("cpu")[0], None, True)
