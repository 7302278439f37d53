"""Options as users write them, checked where they are given: devices, flags, numbers, paths.

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
