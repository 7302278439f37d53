"""What profilers show of evictions and recomputations: `jax.profiler` annotations.

Model: while a profiler traces, each launch that runs an operation again is within an annotation
"coop_jax: run again LABEL", and each eviction of what comes back later is one of no length,
"coop_jax: evict LABEL". What runs within a segment is not told apart.

Invariant: nothing is asked but whether a profiler traces, once a call, while none does.
Thread rule: under the runtime's lock. Cost: linear in a plan, once, when it is first traced.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.execution.instructions import CompiledPlan, Run

_Annotation = jax.profiler.TraceAnnotation


def of_plan(compiled: CompiledPlan) -> Callable[[int], Any] | None:
    """What makes the annotations of a plan's launches; None while no profiler traces."""
    if not _Annotation.is_enabled():
        return None
    if compiled.annotate is None:
        compiled.annotate = _PlanAnnotations(compiled)
    return compiled.annotate


def of_launch(
    annotate: Callable[[int], Any] | None, number: int
) -> contextlib.AbstractContextManager[Any]:
    """What to be in while Python carries out a launch of a plan."""
    annotation = None if annotate is None else annotate(number)
    return contextlib.nullcontext() if annotation is None else annotation


def annotate_session(core: _core.SessionCore) -> None:
    """Has a session show what it evicts and runs again, if a profiler traces."""
    if _Annotation.is_enabled():
        core.annotate(_of_session)


def _of_session(prepared: _core.Prepared | None, nbytes: int) -> Any:
    """The annotation of what a session runs again, or of an eviction of so many bytes."""
    if prepared is None:
        return _Annotation("coop_jax: evict", bytes=nbytes)
    return _Annotation(f"coop_jax: run again {prepared.kernel.label}")


class _PlanAnnotations:
    """Annotations of a plan's launches, by their numbers among its instructions."""

    __slots__ = ("_again", "_evicted")

    def __init__(self, compiled: CompiledPlan):
        self._evicted: dict[int, list[str]] = collections.defaultdict(list)
        self._again: dict[int, str] = {}
        launches = (
            (number, instruction)
            for number, instruction in enumerate(compiled.instructions)
            if type(instruction) is Run and not instruction.settles
        )
        gone: dict[int, int] = {}  # storages: the launch before which their memory went
        before: list[int] = []
        for action in compiled.plan.actions:
            if not isinstance(action, _core.Run):
                before.append(action.storage)
                continue
            number, run = next(launches)
            gone.update(dict.fromkeys(before, number))
            before = []
            label = run.operation.kernel.label
            if run.recompute:
                self._again[number] = label
            for placement in action.placements:
                if placement.storage in gone:  # it comes back
                    self._evicted[gone.pop(placement.storage)].append(label)

    def __call__(self, number: int) -> Any:
        """What to enter while a launch is carried out, None for nothing; shows what goes before."""
        for label in self._evicted.get(number, ()):
            with _Annotation(f"coop_jax: evict {label}"):
                pass
        if number not in self._again:
            return None
        return _Annotation(f"coop_jax: run again {self._again[number]}")
