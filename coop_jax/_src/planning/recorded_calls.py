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

Invariants: no result depends on it. Thread rule: under the runtime's lock. Cost: recording takes
O(1) for each operand; a search some seconds, for each state in which a program repeats.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from coop_jax import _core
from coop_jax._src.planning import constants, policies
from coop_jax._src.planning.local_search import Hints, Kinds, Start, is_good_enough
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.planning.portfolio import Candidates, PlanSettings

Blocks = tuple[tuple[int, int], ...]  # (offset, bytes)


@dataclasses.dataclass(frozen=True, eq=False)
class _Way:
    """How a call may go.

    Attributes:
      policy: of its engine; None for the one of a call of which nothing is known.
      hints: what the engine is told.
    """

    policy: _core.Policy | None = None
    hints: Hints = dataclasses.field(default_factory=Hints)


class _State:
    """What is known of calls that find the pool in one state."""

    def __init__(self, workspace_bytes: int) -> None:
        """Of calls that keep so much free for workspace from the beginning on."""
        self.workspace_bytes = workspace_bytes
        self.way: _Way | None = None  # of the next call; None: the plain one
        self.plain: _Way | None = None  # nothing is known, but where results go
        self.measured: dict[_Way | None, float] = {}  # most seconds of recomputation, by way
        self.calls = 0
        self.searched = False
        self.reserved_bytes = 0  # that the last call had to keep from the pool


class Lesson:
    """What is known of the calls with arguments of one kind."""

    def __init__(self) -> None:
        self.history = _core.History()
        self._states: collections.OrderedDict[Blocks, _State] = collections.OrderedDict()
        self._blocks: Blocks = ()
        self._searches = 0
        self._is_tight = False  # of the last call
        self._needed_bytes = 0  # that it had to keep free for workspace in the end
        # That this call keeps free for workspace from the beginning on.
        self.workspace_bytes = 0

    def begin(self, blocks: Iterable[tuple[int, int]]) -> _core.Policy | None:
        """What a call goes by that finds these blocks of the pool taken; None: nothing is known."""
        self._blocks = tuple(blocks)
        known = self._states.get(self._blocks)
        if known is not None:  # a call that went through goes through again
            self.workspace_bytes = known.workspace_bytes
        else:
            self.workspace_bytes = 0 if self._is_tight else self._needed_bytes
        return known.way.policy if known is not None and known.way is not None else None

    @property
    def reserved_bytes(self) -> int:
        """What the plan keeps from the pool that the call goes by; 0 where it has none."""
        known = self._states.get(self._blocks)
        return 0 if known is None or known.way is None else known.reserved_bytes

    def advise(
        self, settings: PlanSettings, capacity_bytes: int, reserved: Sequence[tuple[int, int]]
    ) -> None:
        """What the engine is told in the call that has begun.

        Args:
          settings: the policy and what costs are.
          capacity_bytes: the budget.
          reserved: (offset, bytes) of what is kept from the pool.
        """
        if not self.history.storage_count:
            return
        state = self._states.setdefault(self._blocks, _State(self.workspace_bytes))
        if state.plain is None:
            layout = self._layout(settings.alignment_bytes, capacity_bytes, reserved)
            state.plain = _Way() if self._is_tight else _Way(hints=layout)
        hints = (state.way or state.plain).hints
        self.history.advise(hints.worth, hints.sides, hints.places, hints.held_for)

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
        state.reserved_bytes = sum(nbytes for _, nbytes in reserved)
        self._needed_bytes = workspace_bytes
        state.plain = state.plain or _Way()  # as it went is how it goes again
        self._is_tight = stats.recompute_seconds > tuned.tight_share * stats.compute_seconds
        self._states.move_to_end(self._blocks)
        if len(self._states) > tuned.kept_calls:
            self._states.popitem(last=False)
        state.calls += 1
        seconds = stats.recompute_seconds
        if history.gave_up:  # what it took then is not what this way takes
            seconds = math.inf
        state.measured[state.way] = max(seconds, state.measured.get(state.way, 0.0))
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
            found = self._planned(settings, capacity_bytes, reserved)
            promised = found.plan.stats.recompute_seconds
            if found.plan.feasible and promised < min(state.measured.values()):
                state.way = _Way(found.policy, found.hints)
                return
        state.way = min(state.measured, key=lambda way: state.measured[way])

    def _planned(
        self,
        settings: PlanSettings,
        capacity_bytes: int,
        reserved: Sequence[tuple[int, int]],
    ) -> Start:
        history = self.history
        storage_bytes, offsets = history.storage_bytes, history.input_offsets
        worth = [1.0] * len(storage_bytes)
        for storage in history.outputs:
            worth[storage] = constants.TUNED.results_worth
        read = set(offsets)
        reserved_bytes = sum(nbytes for _, nbytes in reserved)
        layout = self._layout(settings.alignment_bytes, capacity_bytes, reserved)
        candidates = Candidates(
            history.program,
            lambda: Kinds(storage_bytes, history.kinds),
            Residency(
                where=tuple(history.input_where),
                offsets=tuple(offsets),
                donated=(),
                others=tuple(block for block in self._blocks if block[0] not in read),
            ),
            settings,
            capacity_bytes=capacity_bytes,
            reserve_bytes=reserved_bytes,
            hints=dataclasses.replace(layout, worth=worth),
            never_held=history.overwritten,
        )
        return candidates.improved(candidates.own_plan(), reserved_bytes)

    def _layout(
        self, alignment_bytes: int, capacity_bytes: int, reserved: Sequence[tuple[int, int]]
    ) -> Hints:
        """Where results go, and that what they meet there goes elsewhere."""
        history = self.history
        storage_bytes, made_by = history.storage_bytes, history.made_by
        in_pool = {storage for kind in history.kinds for storage in kind}
        results = sorted(in_pool.intersection(history.outputs))
        if not results:
            return Hints()
        sizes = [_rounded(storage_bytes[s], alignment_bytes) for s in results]
        taken = [*self._blocks, *reserved]
        places, sides = [-1] * len(storage_bytes), [0] * len(storage_bytes)
        offsets = _side_by_side(sizes, taken, capacity_bytes, alignment_bytes)
        if not offsets:
            return Hints()
        for storage, offset in zip(results, offsets, strict=True):
            places[storage] = offset
        made = itertools.accumulate(sizes)
        begun = constants.TUNED.first_results_share * sum(sizes)
        first = next(s for s, n in zip(results, made, strict=True) if n >= begun)
        there = set(history.alive_at(made_by[first]))
        there.update(s for s in in_pool if made_by[s] >= made_by[first])
        for storage in there.intersection(in_pool).difference(results):
            sides[storage] = 1
        return Hints(sides=sides, places=places)


def _side_by_side(
    sizes: Sequence[int], taken: Sequence[tuple[int, int]], capacity_bytes: int, alignment: int
) -> list[int]:
    """Offsets for blocks in that order beside what is taken; none if there is little room.

    They go near the left end of a pool. There lie the results of expensive operations; most of them
    are gone when a call ends, but for small ones at the very end.
    """
    tuned, total = constants.TUNED, sum(sizes)
    if total > tuned.results_share * (capacity_bytes - sum(nbytes for _, nbytes in taken)):
        return []
    at = _rounded(int(capacity_bytes * tuned.clear_share), alignment)
    for offset, nbytes in sorted(taken):
        if offset >= at + total:
            break
        at = max(at, _rounded(offset + nbytes, alignment))
    if at + total > capacity_bytes:
        return []
    return [at + before for before in itertools.accumulate(sizes, initial=0)][:-1]


def _rounded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def is_worthwhile(policy: _core.Policy, budget_bytes: int | None) -> bool:
    """Whether there is anything to learn: the policy looks ahead, and memory is short."""
    return policies.looks_ahead(policy) and not policy.evict_always and budget_bytes is not None
