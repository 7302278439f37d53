"""Files that are to be written: what can be known before the work that fills them.

Thread rule: functions of their arguments.
"""

from __future__ import annotations

import os

from coop_jax._src.command_line.failures import UsageError


def check_writable(path: str) -> None:
    """Refuses a file that cannot be written.

    Raises:
      UsageError: its folder is not there, it is a folder itself, or it may not be written.
    """
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"{path} cannot be written: make the folder {folder} first")
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder: name a file in it")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f"{path} may not be written: name another file")
