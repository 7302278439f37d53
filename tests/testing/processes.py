"""Programs in a Python process of their own: other devices, switches, exits, real memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


def output_of(
    program: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    warnings: str = "error",
    timeout_seconds: float = 300,
) -> str:
    """What a program prints; fails with its errors if it ends with one, in any thread.

    Args:
      program: Python text. It finds `tests`, and runs on the CPU.
      *arguments: of its command line.
      environment: what to change in ours, this session's cache of compiled programs included.
      warnings: what becomes of them, as `python -W` takes it.
      timeout_seconds: after which it counts as hanging.
    """
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-W", warnings, "-c", program, *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-1000:], done.stderr[-4000:])
    unseen = "Exception in thread", "Exception ignored"
    assert not any(x in done.stderr for x in unseen), done.stderr[-4000:]
    return done.stdout
