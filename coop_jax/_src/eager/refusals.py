"""The error for a request of a session that finds no room: what it holds then, in words.

Model: values are known by the recipes that would make them again; what cannot be made again has a
shape, but no name. Lines are not noted for each operation: a session that is recorded has them.

Invariant: what is listed sums up to what the engine says is in use, and is pinned.
Thread rule: the session's. Cost: linear in what the session knows, where a request fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from coop_jax import _core
from coop_jax._src.compat import jaxprs
from coop_jax._src.eager.session_inputs import Externals
from coop_jax._src.eager.values import aval_of_key
from coop_jax._src.execution.call_recording import OpenRecording
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir import cost_model
from coop_jax._src.util import held_memory
from coop_jax._src.util.errors import BudgetExceededError
from coop_jax._src.util.held_memory import HeldKind, HeldStorage, Why, typed

_LARGEST_ALIGNMENT = 256  # of blocks, on any device

# Of a session's log (see session_log.h): rows, and events.
_ROW = np.dtype([("other", "V24"), ("id", np.int32), ("event", np.int16), ("index", np.int16)])
_LAUNCH, _BEGIN = 0, 1


class Refusals:
    """Makes the errors of one session."""

    __slots__ = ("_core", "_externals", "_recording", "_runtime")

    def __init__(
        self,
        runtime: Runtime,
        core: _core.SessionCore,
        externals: Externals,
        recording: OpenRecording | None,
    ):
        self._runtime, self._core = runtime, core
        self._externals, self._recording = externals, recording

    def of_operation(
        self, failure: _core.Failure, prepared: _core.Prepared | None
    ) -> BudgetExceededError:
        """For an operation, or for what is read where that is None."""
        enough = None
        if failure.reason in ("thrashing", "limit"):
            enough = enough_bytes(self._core, self._runtime, failure.requested_bytes)
        operation, source = "reading a value", ""
        if prepared is not None:
            operation = f"operation '{prepared.kernel.label}'"
            source = jaxprs.source_of(jaxprs.current_source())
        held = self._held(self._core.workspace_bytes)
        found = held.beside(failure, 0)[0]
        return self._exceeded(failure, operation, source, enough, found, [])

    def beside(self, workspace_bytes: int) -> BudgetExceededError:
        """For what lies beside the pool, which found no room; with so much workspace."""
        failure = self._core.failure()
        held, requested = self._held(workspace_bytes).beside(failure, failure.requested_bytes)
        operation = "arguments, small values and workspace"
        return self._exceeded(failure, operation, "", None, held, requested)

    def _held(self, workspace_bytes: int) -> _Held:
        lines = {} if self._recording is None else _lines(self._recording)
        return _Held(self._core, self._externals.storages(), lines, workspace_bytes)

    def _exceeded(
        self,
        failure: _core.Failure,
        operation: str,
        source: str,
        enough: int | None,
        held: list[HeldStorage],
        requested: list[HeldStorage],
    ) -> BudgetExceededError:
        recording = self._recording
        return self._runtime.exceeded(
            failure,
            operation,
            source,
            enough_bytes=enough,
            held=held,
            requested=requested,
            evidence=None if recording is None else recording.so_far(),
        )


class _Held:
    """What a session held when its last request failed."""

    def __init__(
        self,
        core: _core.SessionCore,
        sources: Set[int],
        lines: dict[int, str],
        workspace_bytes: int,
    ):
        """Sets what is asked.

        Args:
          core: of the session.
          sources: storages that no operation of the session made, as far as they are known.
          lines: of storages that operations made, as far as they are known.
          workspace_bytes: of the room beside the pool.
        """
        self._core, self._sources, self._lines = core, sources, lines
        self._makers = core.makers()
        self._workspace_bytes = workspace_bytes

    def beside(
        self, failure: _core.Failure, missing_bytes: int
    ) -> tuple[list[HeldStorage], list[HeldStorage]]:
        """What was in memory; and of what was to lie beside the pool, what found no room.

        Args:
          failure: of the request.
          missing_bytes: of the request, for what was to lie there.
        """
        held = [
            self._block(why, storage, nbytes)
            for why, storage, _, nbytes in failure.held
            if why != "reservation"
        ]
        reserved = failure.in_use_bytes - sum(block.nbytes for block in held)
        parts = held_memory.of_total(self._outside(), reserved + missing_bytes)
        room, missing = held_memory.split(parts, reserved)
        return held + room, missing

    def _block(self, why: _core.HoldReason, storage: int, nbytes: int) -> HeldStorage:
        if why == "output":
            return HeldStorage(nbytes, "values", "a result of the operation", why="output")
        if self._core.is_donated(storage):
            return self._typed(storage, nbytes, "donated arguments", "argument", "donated argument")
        if storage in self._sources:
            if self._core.key_of(storage) < 0:
                return HeldStorage(nbytes, "other arrays", "array in the pool", why="other array")
            return self._typed(storage, nbytes, "arguments", "argument or constant", "argument")
        if why == "permanent":
            return self._typed(storage, nbytes, "results", "a result", "result")
        reasons: dict[_core.HoldReason, Why] = {"read": "operand", "no_recipe": "never repeated"}
        return self._typed(storage, nbytes, "values", self._label(storage), reasons.get(why, ""))

    def _label(self, storage: int) -> str:
        maker = self._makers.get(storage)
        return "a value" if maker is None else str(maker.kernel.label)

    def _typed(self, storage: int, nbytes: int, kind: HeldKind, what: str, why: Why) -> HeldStorage:
        key = self._core.key_of(storage)
        said = typed(aval_of_key(key)) if key >= 0 else {}
        source = self._lines.get(storage, "") if kind in ("values", "results") else ""
        return HeldStorage(nbytes, kind, what, source=source, why=why, **said)

    def _outside(self) -> Iterator[HeldStorage]:
        core = self._core
        for storage in sorted(self._sources):
            key = core.key_of(storage)
            if key >= 0 and core.state_of(storage) == "resident" and core.is_outside(storage):
                nbytes = cost_model.nbytes(aval_of_key(key))
                yield self._typed(storage, nbytes, "arguments", "argument or constant", "argument")
        if self._workspace_bytes:
            what = "XLA's temporary memory"
            yield HeldStorage(self._workspace_bytes, "workspace", what, why="workspace")


def _lines(recording: OpenRecording) -> dict[int, str]:
    """The user's line that made each storage, as far as the session has come."""
    lines: dict[int, str] = {}
    launches = -1
    again = False
    for _, number, event, index in np.frombuffer(recording.log.rows, _ROW).tolist():
        if event == _LAUNCH:
            again = bool(index)
            launches += not again
        elif event == _BEGIN and not again:
            lines[number] = recording.sources.at(launches)[0]
    return lines


def enough_bytes(core: _core.SessionCore, runtime: Runtime, requested_bytes: int) -> int | None:
    """A budget for all that is held now, whether it is there or not, and one request.

    None where that is less than there is: what was needed at once is not held any more.
    """
    held = seen = storage = 0
    while seen < core.live_storages:
        state = core.state_of(storage)
        seen += state != "dead"
        if state in ("resident", "evicted") and core.refs_of(storage) > 0:
            held += _rounded(core.bytes_of(storage))
        storage += 1
    enough = held + _rounded(requested_bytes) + core.workspace_bytes
    return enough if enough > runtime.capacity_bytes() else None


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _LARGEST_ALIGNMENT) * _LARGEST_ALIGNMENT
