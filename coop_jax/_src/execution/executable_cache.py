"""Compiled forms of kernels, by output modes and by what XLA does with donated memory.

Modes: for each output `OUTSIDE`, `SLOT`, or the number of the operand that it is written over.
Invariant: a form is compiled once per process and device, unless two runtimes ask for it at the
same time.
Thread rule: may be used from several threads.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import cast

import jax

from coop_jax._src.execution import donation_probe
from coop_jax._src.execution.donation_probe import Placement
from coop_jax._src.execution.executables import Executable
from coop_jax._src.ir.kernels import Kernel, KernelCache


def executable(
    kernel: Kernel, modes: tuple[int, ...], device: jax.Device, cache: KernelCache
) -> Executable:
    """The compiled form with these output modes (OUTSIDE, SLOT or an operand's number)."""
    found = known_executable(kernel, modes, device)
    if found is None:
        with cache.lock:
            found = known_executable(kernel, modes, device)
            if found is None:
                begin = time.perf_counter()
                found = lowered(kernel, modes, device)
                found.compile()
                keep(kernel, found, device, cache)
                cache.compile_seconds += time.perf_counter() - begin
    return found


def executables(kernel: Kernel) -> list[Executable]:
    """All compiled forms."""
    return list(_compiled(kernel).values())


def known_executable(
    kernel: Kernel, modes: tuple[int, ...], device: jax.Device
) -> Executable | None:
    """The compiled form if there is one."""
    return _compiled(kernel).get((modes, donation_probe.probe(device)))


def _compiled(kernel: Kernel) -> dict[Hashable, Executable]:
    """The cache's part of a kernel: they hold each other, and go together."""
    return cast(dict[Hashable, Executable], kernel.compiled)


def lowered(kernel: Kernel, modes: tuple[int, ...], device: jax.Device) -> Executable:
    """A form to `compile` and then to `keep`."""
    donates = donation_probe.probe(device) is Placement.DONATED
    return Executable(kernel, modes, device, donates=donates)


def keep(kernel: Kernel, executable: Executable, device: jax.Device, cache: KernelCache) -> None:
    """Remembers a compiled form, if nobody else was faster."""
    with cache.lock:
        key = executable.modes, donation_probe.probe(device)
        if _compiled(kernel).setdefault(key, executable) is executable:
            cache.compilations += 1
