"""What a function that runs operation by operation did in its last calls, and how it goes on.

Model: a session records what it does (`_core.History`, see cc/core/planner/call_history.h). What is
recorded is a program. Once a call has done the same as the one before, it is planned like any
other: by the forms of the policy, and if it comes again by a search. A later call goes the best
way: its engine has that plan's policy and is told what the plan was told, as long as the call does
what was recorded; at the first difference it goes on as it would have without. A way that turns out
worse than another is not gone again.

A plan is one for a state of the pool. A function that is given what it returned the last time finds
its arguments where it left them, so results are put side by side, before or behind the arguments:
after some calls every other call finds the same state.

A call that goes by what is known must find room where one that knows nothing does. So a way is gone
only where its plan is feasible, and what is planned is what the call will do: results are permanent
from the moment they are handed out, room beside the pool is kept for all that lies there, the
runtime's limit of recomputations holds. Where a call finds no room all the same (it did something
else on the way, or went as was not planned), no later one that finds the same state goes by what
is known.

Invariants: no result depends on it. Thread rule: under the runtime's lock. Cost: recording takes
O(1) for each operand; a search some seconds, for each state in which a program repeats.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence

from coop_jax import _core
from coop_jax._src.planning import constants, policies
from coop_jax._src.planning.local_search import Hints, Kinds, Start, is_good_enough
from coop_jax._src.planning.pool_state import OUTSIDE, Residency
from coop_jax._src.planning.portfolio import Candidates, PlanSettings
from coop_jax._src.planning.result_layout import layout, rounded

# So often a plan is made again that has more beside the pool than was kept for it.
_MOST_RESERVATIONS = 3

Blocks = tuple[tuple[int, int], ...]  # (offset, bytes)


@dataclasses.dataclass(frozen=True, eq=False)
class _Way:
    """How a call may go.

    Attributes:
      policy: of its engine; None for the one of a call of which nothing is known.
      hints: what the engine is told.
      reserved_bytes: kept from the pool from the beginning on; 0: room is taken as it is needed.
    """

    policy: _core.Policy | None = None
    hints: Hints = dataclasses.field(default_factory=Hints)
    reserved_bytes: int = 0


class _State:
    """What is known of calls that find the pool in one state."""

    def __init__(self, workspace_bytes: int) -> None:
        """Of calls that keep so much free for workspace from the beginning on."""
        self.workspace_bytes = workspace_bytes
        self.way: _Way | None = None  # of the next call; None: the plain one
        self.plain: _Way | None = None  # with the policy of a call of which nothing is known
        self.plain_follows = False  # it goes by what is known, which was found to have room
        self.measured: dict[_Way | None, float] = {}  # most seconds of recomputation, by way
        self.calls = 0
        self.searched = False


class Lesson:
    """What is known of the calls with arguments of one kind."""

    def __init__(self) -> None:
        self.history = _core.History()
        self._states: collections.OrderedDict[Blocks, _State] = collections.OrderedDict()
        # States in which a call found no room: what is known is not followed there.
        self._refused: collections.OrderedDict[Blocks, None] = collections.OrderedDict()
        self._blocks: Blocks = ()
        self._searches = 0
        self._way = _Way()  # of this call
        self._follows = True  # it goes by what is known
        self._is_tight = False  # of the last call
        self._needed_bytes = 0  # that it had to keep free for workspace in the end
        self._reserved_bytes = 0  # likewise, for all that was beside the pool
        # That this call keeps free for workspace from the beginning on.
        self.workspace_bytes = 0

    def begin(
        self, blocks: Iterable[tuple[int, int]], settings: PlanSettings, capacity_bytes: int
    ) -> _core.Policy | None:
        """Decides how a call goes, and tells the history.

        Args:
          blocks: (offset, bytes) of what is taken in the pool.
          settings: the policy and what costs are.
          capacity_bytes: the budget.

        Returns:
          What its engine goes by; None for the policy of a call of which nothing is known.
        """
        self._blocks = tuple(blocks)
        self._way = _Way()
        self.workspace_bytes = 0
        self._follows = self._blocks not in self._refused
        if not self._follows:
            return None
        known = self._states.get(self._blocks)
        if known is None:
            self.workspace_bytes = 0 if self._is_tight else self._needed_bytes
            if not self.history.storage_count:
                return None
            known = self._states[self._blocks] = _State(self.workspace_bytes)
            known.plain = self._plain(settings, capacity_bytes)
            known.plain_follows = bool(known.plain.hints.places)
            if not known.plain_follows:
                self._try_plain(known, self._anywhere(), settings, capacity_bytes)
        self.workspace_bytes = known.workspace_bytes  # a call that went through goes through again
        self._way = known.way or known.plain or self._way
        self._follows = self._way.policy is not None or known.plain_follows
        hints = self._way.hints
        self.history.advise(hints.worth, hints.sides, hints.places, hints.held_for)
        return self._way.policy

    @property
    def follows(self) -> bool:
        """Whether the call that has begun goes by what is known, as long as it does the same."""
        return self._follows

    @property
    def reserved_bytes(self) -> int:
        """What the call keeps from the pool from the beginning on; 0: what it needs as it goes."""
        return self._way.reserved_bytes

    def refuse(self) -> bool:
        """After a call without room: no later one in that state goes by what is known.

        Returns whether this one did: another may find room then.
        """
        known_something = self._follows and self.history.storage_count > 0
        if known_something:
            self._states.pop(self._blocks, None)
            self._refused[self._blocks] = None
            if len(self._refused) > constants.TUNED.kept_calls:
                self._refused.popitem(last=False)
        return known_something

    def learn(
        self,
        settings: PlanSettings,
        capacity_bytes: int,
        reserved: Sequence[tuple[int, int]],
        workspace_bytes: int,
        stats: _core.EngineStats,
    ) -> None:
        """After a complete call: decides how the next one goes that finds the same state.

        Args:
          settings: the policy and what costs are.
          capacity_bytes: the budget.
          reserved: (offset, bytes) of what the call kept from the pool.
          workspace_bytes: that it needed of that for operations.
          stats: of the call's engine.
        """
        tuned, history = constants.TUNED, self.history
        if not history.finish():  # an operation failed, and the function went on
            return
        if not history.repetitions:
            self._states.clear()
        state = self._states.setdefault(self._blocks, _State(self.workspace_bytes))
        self._needed_bytes = workspace_bytes
        self._reserved_bytes = sum(nbytes for _, nbytes in reserved)
        state.plain = state.plain or _Way()
        if not (state.calls or state.plain_follows):
            self._try_plain(state, self._as_recorded(), settings, capacity_bytes)
        self._is_tight = stats.recompute_seconds > tuned.tight_share * stats.compute_seconds
        self._states.move_to_end(self._blocks)
        if len(self._states) > tuned.kept_calls:
            self._states.popitem(last=False)
        state.calls += 1
        seconds = stats.recompute_seconds
        if history.gave_up:  # what it took then is not what this way takes
            seconds = math.inf
        state.measured[state.way] = max(seconds, state.measured.get(state.way, 0.0))
        if self._blocks in self._refused:
            return
        if not history.repetitions or (not history.gave_up and is_good_enough(stats)):
            return
        may_search = not state.searched and self._searches < tuned.most_call_searches
        search = state.calls > 1 and may_search
        if state.calls == 1 or search:
            self._searches += search
            state.searched = search
            if not search:
                plain = policies.without_search(settings.policy)
                settings = dataclasses.replace(settings, policy=plain)
            found = self._planned(settings, capacity_bytes, reserved, workspace_bytes)
            plan = found.plan
            reserved_bytes = sum(nbytes for _, nbytes in plan.reserved)
            fits = plan.feasible and _beside(plan, workspace_bytes) <= reserved_bytes
            if fits and plan.stats.recompute_seconds < min(state.measured.values()):
                state.way = _Way(found.policy, found.hints, reserved_bytes)
                return
        state.way = min(state.measured, key=lambda way: state.measured[way])

    def _plain(self, settings: PlanSettings, capacity_bytes: int) -> _Way:
        """How a call goes in a state of which nothing is known but where results had better lie."""
        if self._is_tight:
            return _Way()
        reserved_bytes = rounded(self._reserved_bytes, settings.alignment_bytes)
        at_the_end = [(capacity_bytes - reserved_bytes, reserved_bytes)] if reserved_bytes else []
        taken = [*self._blocks, *at_the_end]
        hints = layout(self.history, taken, capacity_bytes, settings.alignment_bytes)
        if not hints.places:
            return _Way()
        way = _Way(hints=hints, reserved_bytes=reserved_bytes)
        found = self._finds_room(way, self._anywhere(), settings, capacity_bytes)
        return way if found else _Way()

    def _try_plain(
        self, state: _State, residency: Residency, settings: PlanSettings, capacity_bytes: int
    ) -> None:
        """Has the plain way go by what is known, and as it is planned, if that finds room."""
        plain = state.plain or _Way()
        reserved_bytes = rounded(self._reserved_bytes, settings.alignment_bytes)
        planned = dataclasses.replace(plain, reserved_bytes=reserved_bytes)
        if self._finds_room(planned, residency, settings, capacity_bytes):
            state.plain, state.plain_follows = planned, True

    def _finds_room(
        self, way: _Way, residency: Residency, settings: PlanSettings, capacity_bytes: int
    ) -> bool:
        """Whether a call does that goes by what is known, with the policy of any session."""
        candidates = Candidates(
            self.history.program,
            lambda: Kinds((), ()),
            residency,
            dataclasses.replace(
                settings, policy=policies.of_a_session(settings.policy), alternatives=False
            ),
            capacity_bytes=capacity_bytes,
            reserve_bytes=way.reserved_bytes,
            hints=way.hints,
        )
        return bool(candidates.own_plan().plan.feasible)

    def _anywhere(self) -> Residency:
        """Arguments may lie elsewhere than they did: whatever lies in the pool stays there."""
        count = len(self.history.input_where)
        return Residency((OUTSIDE,) * count, (-1,) * count, (), self._blocks)

    def _as_recorded(self) -> Residency:
        """Where arguments were in the call that was recorded, and what else was in the pool."""
        offsets = tuple(self.history.input_offsets)
        read = set(offsets)
        return Residency(
            where=tuple(self.history.input_where),
            offsets=offsets,
            donated=(),
            others=tuple(block for block in self._blocks if block[0] not in read),
        )

    def _planned(
        self,
        settings: PlanSettings,
        capacity_bytes: int,
        reserved: Sequence[tuple[int, int]],
        workspace_bytes: int,
    ) -> Start:
        history = self.history
        storage_bytes = history.storage_bytes
        worth = [1.0] * len(storage_bytes)
        for storage in history.outputs:
            worth[storage] = constants.TUNED.results_worth
        reserved_bytes = sum(nbytes for _, nbytes in reserved)
        taken = [*self._blocks, *reserved]
        hints = layout(history, taken, capacity_bytes, settings.alignment_bytes)
        for _ in range(_MOST_RESERVATIONS):
            candidates = Candidates(
                history.program,
                lambda: Kinds(storage_bytes, history.kinds),
                self._as_recorded(),
                settings,
                capacity_bytes=capacity_bytes,
                reserve_bytes=reserved_bytes,
                hints=dataclasses.replace(hints, worth=worth),
                never_held=history.overwritten,
            )
            own = candidates.own_plan()
            # Values outside live for as long as recipes need them: in another plan more of them
            # may be there at once than in the call that was recorded.
            needed_bytes = _beside(own.plan, workspace_bytes)
            if not own.plan.feasible or needed_bytes <= reserved_bytes:
                break
            reserved_bytes = needed_bytes
        return candidates.improved(own, reserved_bytes - workspace_bytes)


def _beside(plan: _core.Plan, workspace_bytes: int) -> int:
    """Bytes beside the pool at the fullest moment of a plan."""
    return plan.stats.peak_outside_bytes + workspace_bytes


def is_worthwhile(policy: _core.Policy, budget_bytes: int | None) -> bool:
    """Whether there is anything to learn: the policy looks ahead, and memory is short."""
    return policies.looks_ahead(policy) and not policy.evict_always and budget_bytes is not None
