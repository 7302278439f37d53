"""What coop_jax has to know of a device: its DLPack number, its order of work, its memory.

Thread rule: functions of the device.
"""

from __future__ import annotations

import jax
from jaxlib import version as _version
from jaxlib import xla_client as _xla_client


def dlpack_device(device: jax.Device) -> tuple[int, int]:
    """The DLPack (device type, number) of a device.

    Raises:
      ValueError: the pool cannot be on such a device.
    """
    if device.platform == "cpu":
        return 1, 0
    version = device.client.platform_version
    if device.platform == "gpu" and "cuda" in version:
        number = device.local_hardware_id
        return 2, 0 if number is None else number
    raise ValueError(
        f"coop_jax runs on CPU and on CUDA GPUs; {device} is a '{device.platform}' device"
        f" ({version.strip()}): choose another with `device=`"
    )


def runs_in_order(device: jax.Device) -> bool:
    """Whether an operation begins when all that were called before, by one thread, are done.

    XLA's default client for GPUs enqueues what it executes on one stream for each device, and its
    allocator counts on that. (Copies to the host have streams of their own, and wait for the array
    that they read.) Of its other client that is not known.
    """
    if device.platform != "gpu":
        return False
    make_options = getattr(_xla_client, "generate_pjrt_gpu_plugin_options", None)
    return make_options is not None and make_options().get("use_tfrt_gpu_client") is False


def jaxlib_version() -> str:
    """The version of jaxlib, whose behaviour is probed."""
    return _version.__version__


def memory_left(device: jax.Device) -> int | None:
    """Bytes that the device's allocator may hand out yet, None where it does not say (CPU)."""
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
