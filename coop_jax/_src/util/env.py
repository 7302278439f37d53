"""Environment variables that turn things on or off in a process, for doubts and for tests."""

from __future__ import annotations

import os
from collections.abc import Sequence


def is_on(name: str, *, default: bool = False) -> bool:
    """Whether a variable is 1 or true; the default if it is empty or not set.

    Raises:
      ValueError: it is something else than that, 0 or false.
    """
    told = setting(name)
    return default if told is None else told


def setting(name: str) -> bool | None:
    """What a variable says; None if it is empty or not set.

    Raises:
      ValueError: it is something else than 1, true, 0 or false.
    """
    text = os.environ.get(name, "").strip().lower()
    if text not in ("", "0", "1", "false", "true"):
        raise ValueError(f"{name} must be 0 or 1, got {text!r}")
    return text in ("1", "true") if text else None


def names(variable: str, known: Sequence[str]) -> frozenset[str]:
    """The names, separated by commas, that a variable lists; none if it is empty or not set.

    Raises:
      ValueError: one of them is not known.
    """
    given = (name.strip() for name in os.environ.get(variable, "").split(","))
    listed = frozenset(name for name in given if name)
    if unknown := sorted(listed.difference(known)):
        raise ValueError(
            f"{variable} lists {', '.join(unknown)}; what it may list: {', '.join(known)}"
        )
    return listed
