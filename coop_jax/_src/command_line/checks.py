"""What `coop-jax doctor` looks at: versions, devices, settings, memory.

Model: a check is a name and a function that says what it found; what it raises is a failure of the
check. Checks do not depend on each other.

Thread rule: functions. Cost: the check of donation starts another Python.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib.metadata
import os
import platform
from collections.abc import Callable
from typing import TypeAlias

import jax

from coop_jax._src.compat import arrays, contexts, devices, stored_programs
from coop_jax._src.execution import constants, donation_probe
from coop_jax._src.util.options import format_bytes

_LEAST_FREE_BYTES = 1 << 30


class Status(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a check found.

    Attributes:
      text: that, in words.
      advice: what to do; "" if nothing.
      status: whether it is as it should be.
    """

    text: str
    advice: str = ""
    status: Status = Status.OK


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A check that was made."""

    name: str
    status: Status
    found: str
    advice: str


Ask: TypeAlias = Callable[[], Found]


def asked(name: str, ask: Ask) -> Check:
    """Makes a check."""
    try:
        found = ask()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        found = Found(
            f"{type(error).__name__}: {first}",
            "report this with the output of `coop-jax doctor --json`",
            Status.FAILED,
        )
    return Check(name, found.status, found.text, found.advice)


def _versions() -> Found:
    names = ("coop-jax", "jax", "jaxlib", "numpy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return Found(f"{versions}, Python {platform.python_version()}")


def _platform() -> Found:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Found(f"{system}, {os.cpu_count()} cores")


def _devices() -> Found:
    kinds = collections.Counter((d.platform, d.device_kind) for d in jax.devices())
    text = ", ".join(
        f"{count} × {kind}" + (f" ({name})" if name != kind else "")
        for (name, kind), count in kinds.items()
    )
    default = contexts.default_device()
    try:
        devices.dlpack_device(default)
    except ValueError as error:
        return Found(text, f"{error}, or set JAX_PLATFORMS=cpu", Status.FAILED)
    return Found(f"{text}; default {default}")


def _donation() -> Found:
    device = contexts.default_device()
    placement, reason = donation_probe.ask(
        donation_probe.check_command(device), constants.TUNED.probe_timeout_seconds
    )
    if placement is donation_probe.Placement.DONATED:
        return Found("XLA writes results into the pool")
    return Found(
        f"XLA does not write results into the pool: {reason}",
        "run and remat_eager copy results, which takes time and workspace; try another jaxlib, or"
        " use coop_jax.jit, which has no pool",
        Status.WARNING,
    )


def _dispatch() -> Found:
    device = contexts.default_device()
    if device.platform != "cpu":
        return Found("as JAX has it: only on CPU it must be off")
    if arrays.runs_synchronously(device):
        return Found("off, as run and remat_eager need it")
    return Found(
        "on: JAX's CPU backend was started before coop_jax was imported",
        "import coop_jax before anything uses JAX, or set JAX_CPU_ENABLE_ASYNC_DISPATCH=0",
        Status.WARNING,
    )


def _host_memory() -> Found:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
    return _free(free, "end other processes, or choose small budgets")


def _device_memory() -> Found:
    device = contexts.default_device()
    left = devices.memory_left(device)
    if left is None:
        return Found("that of the host")
    return _free(left, "end other processes on the device, or set XLA_PYTHON_CLIENT_MEM_FRACTION")


def _free(free: int, advice: str) -> Found:
    if free < _LEAST_FREE_BYTES:
        return Found(f"{format_bytes(free)} free", advice, Status.WARNING)
    return Found(f"{format_bytes(free)} free")


def _cache() -> Found:
    folder = stored_programs.directory()
    if folder is not None:
        return Found(f"in {folder}")
    return Found(
        "no folder set: every process compiles and plans again",
        "set JAX_COMPILATION_CACHE_DIR to a folder",
        Status.WARNING,
    )


ALL: tuple[tuple[str, Ask], ...] = (
    ("versions", _versions),
    ("platform", _platform),
    ("devices", _devices),
    ("donation", _donation),
    ("async dispatch", _dispatch),
    ("host memory", _host_memory),
    ("device memory", _device_memory),
    ("persistent cache", _cache),
)
