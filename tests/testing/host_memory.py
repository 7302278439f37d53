"""Arrays in host memory that XLA takes without copying it."""

from __future__ import annotations

import numpy as np


def ones_that_xla_shares(shape: tuple[int, ...]) -> np.ndarray:
    """Ones where XLA takes NumPy's memory as it is instead of copying it: at a multiple of 64."""
    data = np.empty(int(np.prod(shape)) * 4 + 64, np.uint8)
    begin = -data.ctypes.data % 64
    ones = data[begin : begin + data.size - 64].view(np.float32).reshape(shape)
    ones[...] = 1
    return ones
