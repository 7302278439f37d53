"""Timelines of memory: what users make, ask and save.

Thread rule: values. Cost: linear in what happened.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from coop_jax._src.execution.call_recording import RecordedSession
from coop_jax._src.report import (
    figure,
    memory_viz,
    perfetto,
    plan_timeline,
    session_timeline,
    timeline_page,
)
from coop_jax._src.report.timeline_data import (
    Ending,
    Kind,
    Label,
    Labels,
    Launches,
    Residences,
    TimelineData,
)
from coop_jax._src.simulate.simulation import FailedPlan, Simulation
from coop_jax._src.util import options
from coop_jax._src.util.errors import BudgetExceededError, BudgetReport


@dataclasses.dataclass(frozen=True, slots=True)
class BufferRow:
    """A buffer of a compiled program, as XLA's buffer assignment has it.

    Attributes:
      address: in bytes, from the begin of all allocations; -1 for outside them.
      nbytes: of the buffer.
      first: the number of the instruction that makes it; 0 for what is there before.
      last: the number of the last instruction that needs it.
      kind: what it is for.
      label: what is said of it.
    """

    address: int
    nbytes: int
    first: int
    last: int
    kind: Kind
    label: Label


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
        labels, rows = Labels(), []
        runs = np.full(moments, -1, np.int32)
        for storage, b in enumerate(buffers):
            if not 0 <= b.first <= b.last < moments:
                raise ValueError(f"no such moments: {b.first} to {b.last} of {moments}")
            if b.address + b.nbytes > pool_bytes:
                raise ValueError(f"a buffer ends at {b.address + b.nbytes}, after {pool_bytes}")
            number = labels.number(b.label)
            ending = Ending.KEPT if b.last == moments - 1 else Ending.DROPPED
            place = b.address, b.nbytes, b.nbytes
            rows.append([b.first, b.last + 1, *place, b.kind, ending, number, storage, 0])
            runs[b.first] = number
        again = np.zeros(moments, bool)
        return cls(title, pool_bytes, Residences.of_rows(rows), Launches(runs, again), labels.all())

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
        suffix = pathlib.Path(name).suffix.lower()
        if suffix not in _WRITERS:
            raise ValueError(
                f"the name of a timeline's file ends in {', '.join(_WRITERS)}, got {name!r}"
            )
        if beside is not None and suffix != ".html":
            raise ValueError("beside= is for a page: give a name that ends in .html")
        shown = [self] if beside is None else [self, beside]
        _WRITERS[suffix](shown, name)


def _save_alone(write: Callable[[TimelineData, str], None]) -> _Writer:
    return lambda timelines, path: write(timelines[0], path)


_PLACED_BY_XLA = "XLA places its buffers when it compiles"
_Writer: TypeAlias = Callable[[Sequence[TimelineData], str], None]
_WRITERS: dict[str, _Writer] = {
    ".html": timeline_page.save,
    ".pickle": _save_alone(memory_viz.save),
    ".json": _save_alone(perfetto.save),
    ".png": _save_alone(figure.save),
    ".svg": _save_alone(figure.save),
}


def timeline(source: Simulation | BudgetExceededError, *, title: str | None = None) -> Timeline:
    """The timeline of a simulated step, or of a call up to where its budget did not suffice.

    Args:
      source: what `coop_jax.simulate` or `step.simulate` returned; or a `BudgetExceededError`. Of
        `remat_eager`, and of `run` where the program depends on values, that is raised while
        `coop_jax.record_timeline` records.
      title: for people; what was simulated if not given.

    Raises:
      TypeError: it is something else.
      ValueError: it was planned for `coop_jax.jit`, where XLA places buffers; or it is an error of
        a call that was not recorded, or a copy of one.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> x = jax.ShapeDtypeStruct((1024,), jnp.float32)
      >>> simulation = coop_jax.simulate(lambda x: jnp.tanh(x).sum(), x)
      >>> timeline = coop_jax.timeline(simulation)
      >>> timeline.moments, timeline.peak_bytes == simulation.peak_bytes
      (1, True)
    """
    if isinstance(source, BudgetExceededError):
        data = _of_error(source, title)
    elif isinstance(source, Simulation):
        if source.basis is None:
            raise ValueError(f"this simulation was made for coop_jax.jit: {_PLACED_BY_XLA}")
        title = title or f"{source.basis.name}, {source.policy.heuristic}"
        budget_bytes = source.budget_bytes
        data = plan_timeline.timeline_of(source.plan, source.basis, budget_bytes, title)
    else:
        raise TypeError(
            "source must be a coop_jax.Simulation or a coop_jax.BudgetExceededError, got"
            f" {options.shown(source)}"
        )
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
