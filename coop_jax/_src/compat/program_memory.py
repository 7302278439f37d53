"""What XLA says of a program's memory, in one place: of a compiled one, of one that is loaded.

Known of both supported versions of JAX (0.10 to 0.12): a client lists its loaded executables, the
newest one first.
Thread rule: functions of their arguments. Cost: serialising the module and its buffer assignment.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from coop_jax._src.compat import buffer_assignment, compiled_memory, hlo
from coop_jax._src.compat.compiled_memory import Sizes


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramMemory:
    """A compiled program and its memory.

    Attributes:
      name: of its function.
      platform: "cpu", "gpu", ...
      devices: on how many it runs.
      sizes: bytes on one of them.
      module: its `HloModuleProto`.
      assignment: its `BufferAssignmentProto`; b"" if XLA does not say.
      kept: which leaves of the caller's arguments it has as parameters, in order, -1 for a constant
        of JAX's; None if that is not known.
    """

    name: str
    platform: str
    devices: int
    sizes: Sizes
    module: bytes
    assignment: bytes
    kept: list[int] | None


def of_compiled(compiled: jax.stages.Compiled) -> ProgramMemory:
    """Of what JAX compiled.

    Raises:
      NotImplementedError: the platform does not say what a program needs.
    """
    return ProgramMemory(
        compiled_memory.name_of(compiled),
        compiled_memory.platform_of(compiled),
        compiled_memory.device_count(compiled),
        compiled_memory.sizes_of(compiled),
        hlo.serialized(compiled),
        buffer_assignment.serialized(compiled),
        compiled_memory.kept_arguments(compiled),
    )


def loaded(device: jax.Device) -> list[Any]:
    """Executables that are loaded on a device's platform, newest first."""
    return list(device.client.live_executables())


def sizes_of_loaded(executable: Any) -> Sizes:
    """What a loaded executable needs."""
    return compiled_memory.sizes_in(executable.get_compiled_memory_stats())


def of_loaded(executable: Any) -> ProgramMemory:
    """Of a loaded executable."""
    (module,) = executable.hlo_modules()
    said = executable.get_compiled_memory_stats()
    devices = executable.local_devices()
    return ProgramMemory(
        str(module.name).removeprefix("jit_"),
        str(devices[0].platform),
        len(devices),
        compiled_memory.sizes_in(said),
        bytes(module.as_serialized_hlo_module_proto()),
        bytes(getattr(said, "serialized_buffer_assignment_proto", b"")),
        None,
    )
