"""The report of a compiled program.

Thread rule: functions of their arguments. Cost: see `xla_buffers`.
"""

from __future__ import annotations

from collections.abc import Sequence

from coop_jax._src.compat import library_memory
from coop_jax._src.compat.program_memory import ProgramMemory
from coop_jax._src.report.arguments import Argument
from coop_jax._src.report.elsewhere import Held
from coop_jax._src.report.hints import hints_of
from coop_jax._src.report.memory_report import MemoryReport
from coop_jax._src.report.xla_buffers import xla_buffers


def compiled_report(
    memory: ProgramMemory,
    arguments: Sequence[Argument] = (),
    results: Sequence[str] = (),
    elsewhere: tuple[Held, ...] = (),
) -> MemoryReport:
    """Where the memory of a compiled program goes.

    Args:
      memory: what XLA says of it.
      arguments: of the caller, see `xla_buffers`.
      results: names of its results.
      elsewhere: what the process holds beside its arguments.
    """
    found = xla_buffers(memory, arguments, results)
    sizes = memory.sizes
    is_cpu = memory.platform == "cpu"
    return MemoryReport(
        name=memory.name,
        platform=memory.platform,
        devices=memory.devices,
        peak_bytes=sizes.needed,
        argument_bytes=sizes.arguments,
        output_bytes=sizes.results,
        alias_bytes=sizes.aliases,
        temporary_bytes=sizes.temporaries,
        library_bytes=(
            library_memory.unreported_bytes(memory.module, one_by_one=True) if is_cpu else 0
        ),
        peak=found.peak,
        buffers=found.at_peak,
        moments=found.moments,
        lifetimes=found.buffers,
        hints=hints_of(found.at_peak, arguments, elsewhere, sizes.needed),
        elsewhere=elsewhere,
    )
