"""Recordings of what calls do: `coop_jax.record_timeline`.

A call by plan is told apart from a simulated one by its times: those at which its launches began.
Where Python carried out some of them (the first time, on the whole), they are spread between those
that are known as the cost model has them.

Thread rule: a recording belongs to one runtime; ask it after the calls. Cost: at most some 1 us a
launch, while recording; linear in what happened, to make a timeline.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from coop_jax._src.execution.call_recording import CallRecording, RecordedPlan, RecordedSession
from coop_jax._src.execution.instructions import Run
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.report import plan_timeline, session_timeline
from coop_jax._src.report.timeline import Timeline
from coop_jax._src.report.timeline_data import Labels, Launches, Residences, TimelineData
from coop_jax._src.simulate.simulation import PlanBasis
from coop_jax._src.util import options


class Recording:
    """What calls in a runtime did: made by `coop_jax.record_timeline`."""

    __slots__ = ("_calls", "_runtime")

    def __init__(self, runtime: Runtime, calls: CallRecording):
        self._runtime = runtime
        self._calls = calls

    def __len__(self) -> int:
        """How many calls were recorded."""
        return len(self._calls.calls)

    def timeline(self, call: int | None = None, *, title: str | None = None) -> Timeline:
        """The timeline of recorded calls.

        Args:
          call: which, from 0 on, or from -1 backwards; all, one after the other, if None.
          title: for people.

        Raises:
          IndexError: there is no such call.
          ValueError: nothing was recorded.
        """
        calls = self._calls.calls
        if call is not None:
            if not -len(calls) <= call < len(calls):
                raise IndexError(f"there is no call {call}: {len(calls)} were recorded")
            calls = [calls[call]]
        if not calls:
            raise ValueError("no call was recorded: call a function of the runtime meanwhile")
        title = title or f"{len(calls)} recorded calls, {self._runtime.policy.heuristic}"
        data = joined([self._of(c, title) for c in calls], [c.begin_seconds for c in calls])
        return Timeline(*(getattr(data, f.name) for f in dataclasses.fields(data)))

    def _of(self, call: RecordedPlan | RecordedSession, title: str) -> TimelineData:
        runtime = self._runtime
        alignment, budget = runtime.settings.alignment_bytes, runtime.budget_bytes
        if isinstance(call, RecordedSession):
            return session_timeline.timeline_of(call, budget, title)
        program, plan = call.program, call.plan
        costs = [op.kernel.cost_seconds for op in program.operations]
        basis = PlanBasis(title, program, plan.residency, plan.provision, alignment, costs)
        data = plan_timeline.timeline_of(plan.plan, basis, budget, title)
        launches = dataclasses.replace(data.launches, seconds=_seconds(call, data.launches.seconds))
        return dataclasses.replace(data, launches=launches, seconds_are_measured=True)


def _seconds(
    call: RecordedPlan, expected: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    """When each launch of a plan began, from its begin; one more for the end."""
    assert expected is not None
    whole = call.end_seconds - call.begin_seconds
    spread = expected * (whole / expected[-1]) if expected[-1] else expected
    runs = [n for n, x in enumerate(call.plan.instructions) if type(x) is Run and not x.settles]
    if not call.launch_seconds or len(runs) != len(expected) - 1:
        return spread
    begun = np.append(np.array(call.launch_seconds)[runs] - call.begin_seconds, whole)
    begun[0] = 0.0
    known = np.flatnonzero(~np.isnan(begun))
    return np.interp(spread, spread[known], begun[known]) if len(known) < len(begun) else begun


def joined(parts: Sequence[TimelineData], begins: Sequence[float]) -> TimelineData:
    """Timelines one after the other, as one.

    Args:
      parts: in order, of one pool.
      begins: the second in which each begins.
    """
    if len(parts) == 1:
        return parts[0]
    labels, moment, storages = Labels(), 0, 0
    columns: list[Residences] = []
    launched: list[NDArray[np.int32]] = []
    seconds: list[NDArray[np.float64]] = []
    for part, begin in zip(parts, begins, strict=True):
        numbers = np.array([labels.number(label) for label in part.labels], np.int32)
        rows, launches = part.residences, part.launches
        columns.append(
            dataclasses.replace(
                rows,
                begin=rows.begin + np.int32(moment),
                end=rows.end + np.int32(moment),
                label=numbers[rows.label],
                storage=np.where(rows.storage < 0, -1, rows.storage + storages).astype(np.int32),
            )
        )
        launched.append(numbers[launches.label])
        assert launches.seconds is not None
        seconds.append(launches.seconds + (begin - begins[0]))
        moment += part.moments
        storages += int(rows.storage.max(initial=-1)) + 1
    return dataclasses.replace(
        parts[0],
        pool_bytes=max(part.pool_bytes for part in parts),
        residences=Residences(
            *(
                np.concatenate([getattr(c, field.name) for c in columns])
                for field in dataclasses.fields(Residences)
            )
        ),
        launches=Launches(
            np.concatenate(launched),
            np.concatenate([part.launches.recompute for part in parts]),
            np.concatenate([*(s[:-1] for s in seconds), seconds[-1][-1:]]),
        ),
        labels=labels.all(),
    )


@contextlib.contextmanager
def record_timeline(runtime: Runtime) -> Iterator[Recording]:
    """Records what calls in a runtime do meanwhile, of `run` and of `remat_eager`.

    A call in segments shows these, not the operations that are in them. Times of operations are
    those at which they were launched: on a GPU, when they were enqueued.

    Args:
      runtime: `step.runtime`, or any `Runtime`.

    Yields:
      The recording, which grows with each call.

    Raises:
      TypeError: it is no runtime.
      ValueError: it is recorded already.

    Example:
      >>> import coop_jax, jax.numpy as jnp
      >>> runtime = coop_jax.Runtime("64MiB")
      >>> step = coop_jax.run(lambda x: (jnp.tanh(x) @ x).sum(), runtime=runtime)
      >>> x = jnp.ones((64, 64))
      >>> with coop_jax.record_timeline(runtime) as recording:
      ...     values = [step(x), step(x)]
      >>> timeline = recording.timeline(-1)
      >>> len(recording), timeline.peak_bytes == runtime.stats().last_call.peak_bytes
      (2, True)
    """
    if not isinstance(runtime, Runtime):
        raise TypeError(f"expected a coop_jax.Runtime, got {options.shown(runtime)}")
    if runtime.recording is not None:
        raise ValueError("this runtime is being recorded already")
    calls = CallRecording()
    runtime.recording = calls
    try:
        yield Recording(runtime, calls)
    finally:
        runtime.recording = None
