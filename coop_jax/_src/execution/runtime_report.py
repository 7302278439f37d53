"""`Runtime.report()`: where the time of a runtime's calls went.

Model: calls are timed as a whole, and so are operations, compiling and planning in them. What is
left is the runtime's own time: looking at arguments, launching, keeping books.

Thread rule: values. Cost: linear in the operations that were run again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator

from coop_jax._src.execution.recomputations import RecomputedOperation
from coop_jax._src.execution.stats import Counters, Stats
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.util.options import format_seconds

_SHOWN = 8


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeReport:
    """Where the time of a runtime's calls went, and what was computed again. Seconds are measured.

    Attributes:
      stats: the statistics that the report is made of.
      total_seconds: of all calls, from the arguments to the results; tracing is not part of it. Of
        `remat_eager` it is the time of the function, the user's Python included. It is the sum of
        the five that follow.
      compute_seconds: in operations that ran for the first time.
      recompute_seconds: in operations that were run again.
      search_seconds: making plans; where operations run one by one, choosing what to evict.
      compile_seconds: calls that waited for XLA to compile.
      dispatch_seconds: the rest.
      operations: what was run again, with its estimated seconds, most first; the counts add up to
        `stats.rematerialisations`.
      not_measured: what these numbers leave out, in words.
    """

    stats: Stats
    total_seconds: float
    compute_seconds: float
    recompute_seconds: float
    search_seconds: float
    compile_seconds: float
    dispatch_seconds: float
    operations: tuple[RecomputedOperation, ...]
    not_measured: tuple[str, ...]

    @property
    def lines(self) -> tuple[RecomputedOperation, ...]:
        """The same by source line: each has all operations of its line that were run again."""
        by_source: dict[str, list[RecomputedOperation]] = collections.defaultdict(list)
        for operation in self.operations:
            by_source[operation.source].append(operation)
        found = [
            RecomputedOperation(
                ", ".join(dict.fromkeys(op.operation for op in group)),
                source,
                sum(op.count for op in group),
                sum(op.seconds for op in group),
            )
            for source, group in by_source.items()
        ]
        return tuple(sorted(found, key=lambda x: (-x.seconds, -x.count, x.source)))

    def to_json(self) -> str:
        """The report as JSON, an object with the attributes as keys."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        total = self.total_seconds
        parts = {
            "compute": self.compute_seconds,
            "recompute": self.recompute_seconds,
            "search": self.search_seconds,
            "compile": self.compile_seconds,
            "dispatch": self.dispatch_seconds,
        }
        text = [f"{self.stats.calls} calls in {format_seconds(total)}:"]
        text += [
            f"  {name:<9} {format_seconds(seconds):>10}  {seconds / total if total else 0.0:6.1%}"
            for name, seconds in parts.items()
        ]
        text.append(
            f"{self.stats.evictions} evictions, {self.stats.rematerialisations} operations run"
            f" again; fragmentation {self.stats.fragmentation:.1%} on average,"
            f" {self.stats.max_fragmentation:.1%} at most"
        )
        lines = self.lines
        text += [
            f"  {op.count:>7} times, about {format_seconds(op.seconds):>9}: {_shortened(op)}"
            for op in lines[:_SHOWN]
        ]
        if len(lines) > _SHOWN:
            count = sum(op.count for op in lines[_SHOWN:])
            text.append(f"  {count:>7} times at {len(lines) - _SHOWN} more lines")
        return "\n".join(text + [f"not measured: {what}" for what in self.not_measured])


def _shortened(op: RecomputedOperation) -> str:
    labels = op.operation.split(", ")
    shown = ", ".join(labels[:2]) + (f" and {len(labels) - 2} more" if len(labels) > 2 else "")
    return f"{op.source or 'unknown source'}: {shown}"


def report_of(
    stats: Stats,
    call_seconds: float,
    search_seconds: float,
    compile_seconds: float,
    operations: tuple[RecomputedOperation, ...],
    *,
    ordered: bool,
) -> RuntimeReport:
    """The report of a runtime.

    Args:
      stats: of it.
      call_seconds: of all calls.
      search_seconds: of making plans, and of choosing what to evict in sessions.
      compile_seconds: that calls waited for.
      operations: that were run again.
      ordered: whether the device runs behind the caller.
    """
    parts = stats.compute_seconds, stats.recompute_seconds, search_seconds, compile_seconds
    spent = sum(parts)
    left_out = ["tracing of a function's first call; compiling beside calls"]
    if ordered:
        left_out.append("compute and recompute apart: their sum is shared out by estimated costs")
    if any(not op.source for op in operations):
        left_out.append("lines of operations that ran one by one; coop_jax.record_timeline does")
    return RuntimeReport(
        stats,
        max(call_seconds, spent),
        *parts,
        max(call_seconds - spent, 0.0),
        operations,
        tuple(left_out),
    )


@contextlib.contextmanager
def planning(counters: Counters, cache: KernelCache) -> Iterator[None]:
    """Counts what making a plan takes; compiling in it is counted apart."""
    compiled, begin = cache.compile_seconds, time.perf_counter()
    try:
        yield
    except BaseException:  # no call will count it
        counters.call_seconds += time.perf_counter() - begin
        raise
    finally:
        compiling = cache.compile_seconds - compiled
        counters.plan_seconds += max(0.0, time.perf_counter() - begin - compiling)
