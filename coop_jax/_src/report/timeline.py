"""Timelines of memory: what users make, ask and save.

Thread rule: values. Cost: linear in what happened.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from coop_jax._src.report import figure, memory_viz, perfetto, plan_timeline, timeline_page
from coop_jax._src.report.timeline_data import (
    Ending,
    Kind,
    Label,
    Labels,
    Launches,
    Residences,
    TimelineData,
)
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.util import options


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
        ending = file_ending(name)
        if beside is not None and ending != ".html":
            raise ValueError("beside= is for a page: give a name that ends in .html")
        shown = [self] if beside is None else [self, beside]
        _WRITERS[ending](shown, name)


def _save_alone(write: Callable[[TimelineData, str], None]) -> _Writer:
    return lambda timelines, path: write(timelines[0], path)


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


def timeline(source: Simulation, *, title: str | None = None) -> Timeline:
    """The timeline of a simulated step.

    Args:
      source: what `coop_jax.simulate` or `step.simulate` returned.
      title: for people; what was simulated if not given.

    Raises:
      TypeError: it is something else.
      ValueError: it was planned for `coop_jax.jit`, where XLA places buffers.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> x = jax.ShapeDtypeStruct((1024,), jnp.float32)
      >>> simulation = coop_jax.simulate(lambda x: jnp.tanh(x).sum(), x)
      >>> timeline = coop_jax.timeline(simulation)
      >>> timeline.moments, timeline.peak_bytes == simulation.peak_bytes
      (1, True)
    """
    if not isinstance(source, Simulation):
        raise TypeError(f"source must be a coop_jax.Simulation, got {options.shown(source)}")
    basis = source.basis
    if basis is None:
        raise ValueError(
            "this simulation was made for coop_jax.jit: XLA places its buffers when it compiles"
        )
    title = title or f"{basis.name}, {source.policy.heuristic}"
    data = plan_timeline.timeline_of(source.plan, basis, source.budget_bytes, title)
    return Timeline(*(getattr(data, f.name) for f in dataclasses.fields(data)))
