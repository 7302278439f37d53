"""`coop_jax.explain_oom`: what was in memory when XLA ran out of it.

Model: XLA's error says how many bytes it asked for. Of the executables that are loaded, the newest
one with so much temporary memory or so large results is the one that failed; if there is none, the
one that needs most is described, and called so.

Thread rule: of one thread. Cost: none unless XLA runs out of memory; then reading the programs.
"""

from __future__ import annotations

import re
from types import TracebackType

import jax

from coop_jax._src.compat import program_memory
from coop_jax._src.report.compiled_report import compiled_report
from coop_jax._src.report.elsewhere import caller_of_this_package, held_elsewhere
from coop_jax._src.report.memory_report import MemoryReport
from coop_jax._src.util.options import format_bytes

_ASKED = re.compile(r"allocat\w+ (\d+) bytes")


class OutOfMemory:
    """A context in which XLA's errors about memory are explained; made by `explain_oom`.

    Attributes:
      report: where the memory of the program goes that failed; None while nothing has failed, or if
        no program is known.
    """

    report: MemoryReport | None

    def __init__(self) -> None:
        self.report = None

    def __enter__(self) -> OutOfMemory:
        self.report = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
            asked = _ASKED.search(str(error))
            error.add_note(self._explained(int(asked[1]) if asked else 0))

    def _explained(self, asked_bytes: int) -> str:
        loaded = program_memory.loaded(jax.devices()[0])
        sizes = [program_memory.sizes_of_loaded(executable) for executable in loaded]
        caller = caller_of_this_package()
        if not loaded:
            held = "; ".join(map(str, held_elsewhere((), caller)[:3]))
            return f"coop_jax: no program is loaded. This process holds {held or 'no arrays'}"
        matching = [n for n, s in enumerate(sizes) if asked_bytes in (s.temporaries, s.results)]
        largest = max(range(len(sizes)), key=lambda n: sizes[n].needed)
        is_found = asked_bytes > 0 and len(matching) > 0
        memory = program_memory.of_loaded(loaded[matching[0] if is_found else largest])
        arguments = ("parameters", "optimizer state", "inputs")
        given = [b for b in compiled_report(memory).buffers if b.kind in arguments]
        self.report = compiled_report(memory, elsewhere=held_elsewhere(given, caller))
        asked = format_bytes(asked_bytes) if asked_bytes else "what it needs"
        which = "The program that asked for it" if is_found else "The largest program loaded"
        return f"coop_jax: XLA could not allocate {asked}. {which}:\n{self.report}"


def explain_oom() -> OutOfMemory:
    """Explains XLA's RESOURCE_EXHAUSTED, under `jax.jit` too: a context manager.

    The error goes on, with a note that says where the memory of the program goes that failed, and
    what else the process holds. JAX returns before results are there: wait for them within the
    context (`jax.block_until_ready`), or their errors come later.

    Returns:
      The context. Its `report` is that of the note.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> with coop_jax.explain_oom() as oom:
      ...     x = jax.block_until_ready(jax.jit(jnp.tanh)(jnp.ones(8)))
      >>> oom.report is None
      True
    """
    return OutOfMemory()
