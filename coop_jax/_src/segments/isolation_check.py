"""Whether XLA compiled the members of segments as it compiles each operation alone.

Thread rule: functions of their arguments. Cost: linear in what XLA made of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from coop_jax._src.compat import calls
from coop_jax._src.execution import executable_cache
from coop_jax._src.execution.executables import Executable
from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.segments.segment import Segment


def differing(executables: Iterable[Executable]) -> list[Kernel]:
    """Members that XLA did not compile as it compiles the operation alone.

    Args:
      executables: of segments.
    """
    found: dict[int, Kernel] = {}
    for executable in executables:
        segment = executable.kernel
        assert isinstance(segment, Segment)
        module = executable.module()
        called = {} if module is None else module.calls(calls.ATTRIBUTE)
        for number, member in enumerate(segment.members):
            computation = called.get(str(number))
            structure = (
                None if module is None or computation is None else module.structure(computation)
            )
            if structure is None or structure not in _structures(member.kernel):
                found[id(member.kernel)] = member.kernel
    return list(found.values())


def _structures(kernel: Kernel) -> set[str]:
    return {
        s for s in (e.structure() for e in executable_cache.executables(kernel)) if s is not None
    }
