"""What an eager call keeps beside the pool, the room for it, and the most that both have taken.

Model: small values, arguments and workspace lie outside the pool and count. Room for them is taken
from the end of the pool before they come, in steps, so that it is seldom asked for.
Invariant: what lies outside never exceeds the room, where there is a budget.
Thread rule: the session's. Cost: O(1), but for what a reservation evicts.
"""

from __future__ import annotations

from coop_jax import _core
from coop_jax._src.eager import constants
from coop_jax._src.eager.refusals import Refusals
from coop_jax._src.execution.runtime import Runtime


class Beside:
    """The room beside the pool in one call.

    Attributes:
      peak_bytes: the most that was there at once, pool and room; known once the call is over.
    """

    __slots__ = ("_core", "_refusals", "_runtime", "peak_bytes")

    def __init__(self, runtime: Runtime, core: _core.SessionCore, refusals: Refusals):
        self._runtime = runtime
        self._core = core
        self._refusals = refusals
        self.peak_bytes = 0

    def reserve(
        self, session: _core.SessionCallbacks, incoming_bytes: int = 0, workspace_bytes: int = 0
    ) -> None:
        """Keeps room for what lies outside the pool now, and for so much more.

        Where there is none by what was learned, the call goes on without that.

        Raises:
          BudgetExceededError: there is none.
        """
        core = self._core
        workspace_bytes = max(workspace_bytes, core.workspace_bytes)
        needed = core.outside_bytes + incoming_bytes + workspace_bytes
        if needed <= core.reserved_bytes:
            return
        if core.reserved_bytes:
            self.count_peak()  # from now on there is more room beside the pool
        tuned = constants.TUNED
        share = int(self._runtime.capacity_bytes() * tuned.reserve_step_fraction)
        step = min(tuned.reserve_step_bytes, share)
        if not core.reserve_room(session, needed + step) and not core.reserve_room(session, needed):
            if core.give_up():
                self.reserve(session, incoming_bytes, workspace_bytes)
                return
            raise self._refusals.beside(workspace_bytes) from None
        core.reset_peak()  # what the reservation evicted was not beside what needs the room
        for offset, nbytes in core.reserved_blocks():
            self._runtime.memory().pool.discard(offset, nbytes)

    def count_peak(self) -> None:
        """Notes the peak so far, which had the room so far beside it.

        Without a budget the room is counted that there would be, so that the peak is one.
        """
        core, alignment = self._core, self._runtime.settings.alignment_bytes
        pool_bytes = core.stats().peak_pool_bytes
        beside = core.peak_outside_bytes + core.workspace_bytes
        budget_bytes = self._runtime.budget_bytes
        if budget_bytes is not None:
            # All lies in what was reserved, which begins aligned; what does not yet is to come.
            reserved = min(core.reserved_bytes, budget_bytes - pool_bytes)
            peak = pool_bytes + (reserved if core.reserved_bytes else beside)
        else:
            if beside:
                share = constants.TUNED.reserve_step_fraction
                most = int((pool_bytes + beside) * share / (1 - share)) + alignment
                beside += min(constants.TUNED.reserve_step_bytes, most)
            peak = pool_bytes + -(-beside // alignment) * alignment
        self.peak_bytes = max(self.peak_bytes, peak)
        core.reset_peak()
