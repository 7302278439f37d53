"""Environment variables that turn things on in a process, for users in doubt and for tests."""

from __future__ import annotations

import os


def is_on(name: str) -> bool:
    """Whether a variable is 1 or true.

    Raises:
      ValueError: it is neither that nor 0, false, empty or not set.
    """
    text = os.environ.get(name, "").strip().lower()
    if text not in ("", "0", "1", "false", "true"):
        raise ValueError(f"{name} must be 0 or 1, got {text!r}")
    return text in ("1", "true")
