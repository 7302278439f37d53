"""Values on their way to a device.

Known of both supported versions of JAX (0.10 to 0.12): the function of jaxlib that `jax.device_put`
ends in.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jaxlib import _jax

from coop_jax._src.compat import arrays, wide
from coop_jax._src.compat.refs import contents, is_ref


def on_device(value: Any, device: jax.Device) -> Any:
    """The array on this device: itself, or a copy of one that JAX may move.

    Raises:
      ValueError: the array was put elsewhere, or lies on several devices.
    """
    if _lies_there(value, device):
        return value
    moved = put(arrays.stored(value), device)
    return arrays.with_aval(
        moved, weak_type=False, committed=False, shape=value.shape, dtype=value.dtype
    )


def _lies_there(value: Any, device: jax.Device) -> bool:
    """Whether an array is on this device; if not, JAX may move it.

    Raises:
      ValueError: it may not.
    """
    array = arrays.stored(value)
    sharding = array.sharding
    if type(sharding) is jax.sharding.SingleDeviceSharding and sharding._device is device:
        return True
    devices = sharding.device_set
    if devices == {device}:
        return True
    if len(devices) > 1 or arrays.is_committed(array):
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"an array of shape {value.shape} lies on {names}, and this coop_jax call runs on"
            f" {device} alone: pass device=, or jax.device_put it there first"
        )
    return False


def check_places(values: Sequence[Any], device: jax.Device | None) -> None:
    """Refuses arrays that cannot be used on this device (None: any), and meshes around the call.

    Comes before anything is traced: what is traced of arrays over several devices is for them, and
    so would be what is compiled and kept of it.

    Raises:
      ValueError: an array was put elsewhere, or lies on several devices; the call is inside
        `jax.set_mesh` with a mesh of several.
    """
    around = jax.sharding.get_abstract_mesh().size
    if around > 1:
        raise ValueError(
            f"coop_jax runs on one device, and this call is inside jax.set_mesh with {around}: call"
            " it outside of that context"
        )
    for value in values:
        if isinstance(value, _core.Tracer):
            aval: Any = value.aval
            mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
            if mesh is not None and mesh.size > 1:
                raise ValueError(
                    f"a value of shape {aval.shape} lies on the {mesh.size} devices of"
                    f" {mesh}, and coop_jax runs on one: jax.device_put it there first"
                )
        elif isinstance(value, jax.Array):
            array = contents(value) if is_ref(value) else value
            _lies_there(array, device or next(iter(array.sharding.device_set)))


def from_numpy(value: Any, device: jax.Device, *, committed: bool) -> jax.Array | None:
    """What `jax.device_put` makes of an everyday NumPy array, in an eighth of its time.

    None for anything else. The contents may not be there yet.
    """
    if type(value) is not np.ndarray or _dtypes.canonicalize_dtype(value.dtype) != value.dtype:
        return None
    aval = arrays.aval_like(value.shape, value.dtype)
    array: jax.Array = _jax.batched_device_put(
        aval, _sharding_of(device), [value], [device], committed
    )
    return array


@functools.lru_cache(maxsize=64)
def _sharding_of(device: jax.Device) -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(device)


def put(value: Any, device: jax.Device) -> jax.Array:
    """The value as an array on the device, whatever trace is current, contents and all."""
    with wide.holding(wide=wide.is_wide(value.dtype)):
        return _put(value, device)


def _put(value: Any, device: jax.Device) -> jax.Array:
    known = from_numpy(value, device, committed=True)
    if known is not None:
        arrays.wait(known)
        return known
    with _core.set_current_trace(_core.eval_trace):
        array: jax.Array = jax.device_put(value, device)
        arrays.wait(array)
        return array


def alias(array: jax.Array, device: jax.Device) -> jax.Array:
    """Another array over the same memory, which stays when the first is deleted or donated.

    The array itself where that is not known to be so.
    """
    if device.platform != "cpu" or not array.size or arrays.dlpack_type(array.dtype) is None:
        return array
    other = _jax.dlpack_managed_tensor_to_buffer(array.__dlpack__(), device, None)
    return arrays.with_aval(
        other,
        weak_type=False,
        committed=arrays.is_committed(array),
        shape=array.shape,
        dtype=array.dtype,
    )
