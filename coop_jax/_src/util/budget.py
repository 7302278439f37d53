"""Budgets as users write them: bytes, strings with units, fractions.

A budget is an `int` (bytes), a `str` ("512MiB", "2GB": SI and IEC units are different things), a
`float` in (0, 1] or a percentage ("50%": fractions of the program's own unbudgeted peak), or None
(no cap). Everything is
checked here, at the API's edge, before any tracing.
"""

from __future__ import annotations

import decimal
import math
import re

import numpy as np

from coop_jax._src.util.options import shown

Budget = int | float | str | None

# A call that runs as it goes may recompute so many times as many operations as it runs.
MAX_RECOMPUTE = 4.0

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
# What numbers of bytes in the engine and in files are below.
MOST_BYTES = 1 << 62

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """Reads a number of bytes with its unit.

    Args:
      text: a number and a unit: B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of
        1024), in any case. No unit means bytes.

    Returns:
      The number of bytes, rounded down.

    Raises:
      TypeError: `text` is not a string.
      ValueError: it is not a number with one of these units, or not a positive number.

    Example:
      >>> import coop_jax
      >>> coop_jax.parse_bytes("1.5GiB")
      1610612736
      >>> coop_jax.parse_bytes("2GB")
      2000000000
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a string such as '512MiB', got {type(text).__name__}")
    match = _PATTERN.fullmatch(text)
    if match is None or match[2].lower() not in ({""} | set(_UNITS)):
        raise ValueError(
            f"cannot read {shown(text)} as a number of bytes: write a number and one of the units"
            " B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), for"
            " example '512MiB'"
        )
    unit = _UNITS[match[2].lower() or "b"]
    if float(match[1]) * unit >= MOST_BYTES:  # also what is infinite as a float
        raise ValueError(f"a budget of {shown(text)} is more than any machine has")
    # Exact: a float of so many bytes is not.
    count = int(decimal.Decimal(match[1]) * unit) if float(match[1]) else 0
    if count <= 0:
        raise ValueError(
            f"a budget must be positive, got {shown(text)}, less than a byte; a fraction of the"
            " peak is a float such as 0.5, or a percentage such as '50%'"
        )
    return count


def check_budget(
    budget: Budget, *, fraction_allowed: bool = True, name: str = "budget"
) -> int | float | None:
    """A budget as written by a user, checked: bytes (int), a fraction (float), or None for no cap.

    `name` is what a message calls it.

    Raises:
      TypeError: neither int, float, str nor None.
      ValueError: zero, negative, not finite, more than any machine has, a fraction above 1 or not
        allowed here, an unknown unit.
    """
    if budget is None:
        return None
    if isinstance(budget, str) and (percent := _PERCENT.fullmatch(budget)) is not None:
        budget = float(percent[1]) / 100
    if isinstance(budget, str):
        return parse_bytes(budget)
    if isinstance(budget, (bool, np.bool_)) or not isinstance(
        budget, (int, float, np.integer, np.floating)
    ):
        raise TypeError(
            f"{name} must be bytes (int), a string such as '512MiB', a fraction in (0, 1] or None,"
            f" got {type(budget).__name__}"
        )
    if isinstance(budget, (int, np.integer)):
        if budget <= 0:
            raise ValueError(f"{name} must be positive, got {shown(int(budget))} bytes")
        if budget >= MOST_BYTES:
            raise ValueError(f"{name} is more bytes than any machine has")
        return int(budget)
    fraction = float(budget)
    if not math.isfinite(fraction) or not 0 < fraction <= 1:
        raise ValueError(
            "a budget given as a float is a fraction of the peak without a budget, in (0, 1]; got"
            f" {fraction}. For bytes pass an int or a string such as '512MiB'."
        )
    if not fraction_allowed:
        raise ValueError(
            "a fraction needs a program to be a fraction of: give this budget in bytes, for example"
            " '512MiB'"
        )
    return fraction


def workspace_bytes(workspace: int | str | None) -> int:
    """Temporary memory as users write it: bytes, 0 for None.

    Raises:
      TypeError, ValueError: it makes no sense.
    """
    if workspace is None or (type(workspace) is int and workspace == 0):
        return 0
    kept = check_budget(workspace, fraction_allowed=False, name="workspace")
    assert isinstance(kept, int)
    return kept


def check_max_recompute(limit: float | None) -> float | None:
    """A limit of recomputation: a positive number, or None for none.

    Raises:
      TypeError: it is no number.
      ValueError: it is not positive, or not finite.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"max_recompute must be a number or None, got {type(limit).__name__}")
    if not 0 < limit < math.inf:
        raise ValueError("max_recompute must be positive and finite; None is no limit")
    return float(limit)
