"""Timelines of memory: what users make, ask and save.

Thread rule: values. Cost: linear in what happened.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from coop_jax._src.execution.call_recording import RecordedSession
from coop_jax._src.report import (
    figure,
    memory_viz,
    perfetto,
    plan_timeline,
    session_timeline,
    timeline_page,
)
from coop_jax._src.report.memory_report import MemoryReport
from coop_jax._src.report.program_timeline import BufferRow, timeline_of, timeline_of_rows
from coop_jax._src.report.timeline_data import TimelineData
from coop_jax._src.simulate.simulation import FailedPlan, Simulation
from coop_jax._src.util import options
from coop_jax._src.util.errors import BudgetExceededError, BudgetReport


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Timeline(TimelineData):
    """What lies where in memory during a step, and when: made by `coop_jax.timeline`.

    Time is a row of moments, one for each launch of an operation. A residence is the time that a
    storage stays at one address; what is evicted and computed again has several. Equal only to
    itself.
    """

    @classmethod
    def from_buffers(
        cls,
        buffers: Iterable[BufferRow],
        *,
        moments: int,
        pool_bytes: int,
        title: str = "XLA's buffer assignment",
    ) -> Timeline:
        """The timeline of a compiled program.

        Args:
          buffers: where each buffer lies, and from which instruction to which it is needed.
          moments: how many instructions there are.
          pool_bytes: of all allocations.
          title: for people.

        Raises:
          ValueError: a buffer is needed at no moment, or lies beyond the allocations.
        """
        return _public(timeline_of_rows(buffers, moments, pool_bytes, title))

    def save(self, path: Any, *, beside: Timeline | None = None) -> None:
        """Writes a file; the ending of its name says which.

        - ``.html``: a page to look at it, complete in itself
        - ``.pickle``: a snapshot for PyTorch's memory_viz
        - ``.json``: a trace for Perfetto and chrome://tracing
        - ``.png``, ``.svg``: a figure; needs matplotlib (``coop-jax[plots]``)

        Args:
          path: of the file.
          beside: for a page: another timeline, shown beside this one.

        Raises:
          ValueError: another ending, or `beside` for another file than a page.
          ImportError: a figure, without matplotlib.
        """
        name = options.file_path(path)
        ending = file_ending(name)
        if beside is not None and ending != ".html":
            raise ValueError("beside= is for a page: give a name that ends in .html")
        shown = [self] if beside is None else [self, beside]
        _WRITERS[ending](shown, name)


def _save_alone(write: Callable[[TimelineData, str], None]) -> _Writer:
    return lambda timelines, path: write(timelines[0], path)


_PLACED_BY_XLA = (
    "XLA places its buffers when it compiles; take coop_jax.timeline(coop_jax.memory(step, *args))"
)
_Writer: TypeAlias = Callable[[Sequence[TimelineData], str], None]
_WRITERS: dict[str, _Writer] = {
    ".html": timeline_page.save,
    ".pickle": _save_alone(memory_viz.save),
    ".json": _save_alone(perfetto.save),
    ".png": _save_alone(figure.save),
    ".svg": _save_alone(figure.save),
}


def file_ending(name: str) -> str:
    """The ending of a file's name, which says what `save` writes.

    Raises:
      ValueError: there is no such file of a timeline.
    """
    ending = pathlib.Path(name).suffix.lower()
    if ending not in _WRITERS:
        raise ValueError(
            f"the name of a timeline's file ends in {', '.join(_WRITERS)}, got {name!r}"
        )
    return ending


def timeline(
    source: Simulation | MemoryReport | BudgetExceededError, *, title: str | None = None
) -> Timeline:
    """The timeline of a simulated step, a compiled program, or a call that its budget stopped.

    Args:
      source: what `coop_jax.simulate` or `step.simulate` returned; what `coop_jax.memory` returned
        of a program that XLA compiles: then a moment is an instruction of it; or a
        `BudgetExceededError`: up to where the budget did not suffice. Of `remat_eager`, and of
        `run` where the program depends on values, one that is raised while
        `coop_jax.record_timeline` records.
      title: for people; what was simulated or compiled if not given.

    Raises:
      TypeError: it is something else.
      ValueError: it says nothing of addresses: it was planned for `coop_jax.jit`, where XLA places
        buffers (take `coop_jax.memory`), or the platform does not tell them; or it is an error of
        a call that was not recorded, or a copy of one.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> x = jax.ShapeDtypeStruct((1024,), jnp.float32)
      >>> simulation = coop_jax.simulate(lambda x: jnp.tanh(x).sum(), x)
      >>> timeline = coop_jax.timeline(simulation)
      >>> timeline.moments, timeline.peak_bytes == simulation.peak_bytes
      (1, True)
      >>> of_xla = coop_jax.timeline(coop_jax.memory(lambda x: jnp.tanh(x).sum(), x))
      >>> of_xla.pool_bytes >= x.size * 4
      True
    """
    data: TimelineData
    if isinstance(source, MemoryReport):
        data = timeline_of(source, title or source.name)
    elif isinstance(source, BudgetExceededError):
        data = _of_error(source, title)
    elif isinstance(source, Simulation):
        if source.basis is None:
            raise ValueError(f"this simulation was made for coop_jax.jit: {_PLACED_BY_XLA}")
        title = title or f"{source.basis.name}, {source.policy.heuristic}"
        budget_bytes = source.budget_bytes
        data = plan_timeline.timeline_of(source.plan, source.basis, budget_bytes, title)
    else:
        raise TypeError(
            "source must be a coop_jax.Simulation, MemoryReport or BudgetExceededError, got"
            f" {options.shown(source)}"
        )
    return _public(data)


def _public(data: TimelineData) -> Timeline:
    return Timeline(*(getattr(data, f.name) for f in dataclasses.fields(data)))


def _of_error(error: BudgetExceededError, title: str | None) -> TimelineData:
    report, evidence = error.report, error.evidence
    if not isinstance(report, BudgetReport):
        raise ValueError(f"this error is of coop_jax.jit: {_PLACED_BY_XLA}")
    title = title or "up to where the budget does not suffice"
    if isinstance(evidence, FailedPlan):
        basis = evidence.basis
        return plan_timeline.timeline_of_failed(evidence.plan, basis, report.budget_bytes, title)
    if isinstance(evidence, RecordedSession):
        return session_timeline.timeline_of(evidence, report.budget_bytes, title)
    raise ValueError(
        "nothing is known of what the call did before this error: make the call within"
        " coop_jax.record_timeline(runtime); copies of errors do not know it"
    )
