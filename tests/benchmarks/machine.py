"""What every table of times begins with: versions, the machine, how often was timed."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import jax


def heading(repeats: int, warmups: int) -> str:
    """A line for a benchmark of so many timed rounds after so many others."""
    packages = ("coop-jax", "jax", "jaxlib", "flax", "optax")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"{versions}, Python {platform.python_version()};"
        f" {jax.devices()[0].platform}, {os.cpu_count()} CPUs,"
        f" load {os.getloadavg()[0]:.1f}; {repeats} rounds after {warmups}"
    )
