"""What calls in a runtime did, kept while somebody records.

Model: a call by plan does what the plan says, so it is kept with when its launches began. A call
that runs operation by operation keeps a log (`_core.SessionLog`). What is made of both is the
recorder's business, later.

Invariant: without a recording nothing is asked but whether there is one.
Thread rule: under the runtime's lock.
"""

from __future__ import annotations

import dataclasses
import time

from coop_jax import _core
from coop_jax._src.compat.sources import Sources
from coop_jax._src.execution.instructions import CompiledPlan
from coop_jax._src.ir.program import Program


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedPlan:
    """A call by plan.

    Attributes:
      plan: what was carried out.
      program: what it is of.
      begin_seconds, end_seconds: as `time.perf_counter`.
      launch_seconds: likewise, when each instruction began that C++ carried out; NaN for others,
        and empty where Python carried out all of them.
    """

    plan: CompiledPlan
    program: Program
    begin_seconds: float
    end_seconds: float
    launch_seconds: list[float]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedSession:
    """A call that ran operation by operation.

    Attributes:
      log: what it did.
      sources: where the user's code was at each first launch.
      alignment_bytes: what blocks of the pool are rounded up to.
      begin_seconds, end_seconds: as `time.perf_counter`.
    """

    log: _core.SessionLog
    sources: Sources
    alignment_bytes: int
    begin_seconds: float
    end_seconds: float


@dataclasses.dataclass(slots=True)
class CallRecording:
    """Calls in order, as they come to an end."""

    calls: list[RecordedPlan | RecordedSession] = dataclasses.field(default_factory=list)

    def begin_plan(self, plan: CompiledPlan) -> float:
        """Before a plan is carried out; returns the time."""
        if plan.replay is not None:
            plan.replay.time_launches()
        return time.perf_counter()

    def end_plan(self, plan: CompiledPlan, program: Program, begin_seconds: float) -> None:
        """After that."""
        end_seconds = time.perf_counter()
        seconds = [] if plan.replay is None else plan.replay.take_launch_seconds()
        self.calls.append(RecordedPlan(plan, program, begin_seconds, end_seconds, seconds))

    def begin_session(self, core: _core.SessionCore, alignment_bytes: int) -> OpenRecording:
        """Has a session keep a log, until its end."""
        sources = Sources()
        log = _core.SessionLog(sources.noter())
        core.log(log)
        return OpenRecording(self, log, sources, alignment_bytes, time.perf_counter())


@dataclasses.dataclass(frozen=True, slots=True)
class OpenRecording:
    """Of a session that goes on.

    Attributes:
      calls: where it goes at its end.
      log, sources, alignment_bytes, begin_seconds: as of `RecordedSession`.
    """

    calls: CallRecording
    log: _core.SessionLog
    sources: Sources
    alignment_bytes: int
    begin_seconds: float

    def so_far(self) -> RecordedSession:
        """What the session has done up to now; what it does later is not timed."""
        return RecordedSession(
            self.log,
            self.sources,
            self.alignment_bytes,
            self.begin_seconds,
            time.perf_counter(),
        )

    def end(self) -> None:
        """The session has come to its end."""
        self.calls.calls.append(self.so_far())
