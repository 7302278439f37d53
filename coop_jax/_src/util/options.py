"""What users write, checked where it is given: devices, flags, numbers, paths; numbers for people.

Whatever is wrong is one `TypeError` or `ValueError` that names the option, before any tracing.
Thread rule: functions of their arguments.
"""

from __future__ import annotations

import math
import os
import reprlib
from typing import Any

import jax
import numpy as np


def shown(value: Any) -> str:
    """A value for a message, in a few words however long it is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        return f"{type(value).__name__} of thousands of digits"


def check_device(device: Any) -> None:
    """Refuses what is neither a device nor None.

    Raises:
      TypeError: it is something else, a name such as "cpu" for instance.
    """
    if device is not None and not isinstance(device, jax.Device):
        raise TypeError(
            f"device must be a jax.Device, for example jax.devices('cpu')[0], got {shown(device)}"
        )


def flag(value: Any, name: str) -> bool:
    """A switch.

    Raises:
      TypeError: neither True nor False.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def number(value: Any, name: str, *, least: float, most: float = math.inf) -> float:
    """A real number within bounds; the lower one is allowed, the upper one is not.

    Raises:
      TypeError: it is no number.
      ValueError: it is out of bounds, or not a number (NaN).
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    if not least <= value < most:
        bounds = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
        raise ValueError(f"{name} must be {bounds}, got {shown(value)}")
    return float(value)


def file_path(path: Any) -> str:
    """The path of a file.

    Raises:
      TypeError: it is none; a number would be taken for an open file.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path of a file, got {shown(path)}")
    return os.fsdecode(path)


def format_bytes(count: int) -> str:
    """Bytes for people: `1536` is "1.5 KiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{int(value)} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """Seconds for people: `0.0125` is "12.5 ms"."""
    for unit, share in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= share:
            return f"{seconds / share:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds > 0 else "0 s"
