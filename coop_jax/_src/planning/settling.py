"""Where the results of a step go back to: the places of the arguments that they replace.

Model: a training loop gives back what it was given. Most results are written over what they replace
(see `program`); others lie where the plan had room, and the next call would find its arguments in
new places: another plan, and so at every step. So at the end of a plan, when little is left in the
pool, such results move to the place of the argument that they replace: that of the same shape and
dtype, first to first. A call that finds its arguments where this one did leaves them there.

Arguments that are not donated are still where they were. What replaces them goes where those of an
earlier call lay, which are gone by then (`InputPlaces`): so a loop without donation goes to and fro
between two places, with a plan for each.

Invariant: nothing moves to where something lies, its own old place included; what cannot move home
stays.
Thread rule: functions of their arguments. Cost: results out of place times what is left in the
pool; their bytes are copied at each step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from coop_jax._src.ir.cost_model import ALIGNMENT_BYTES
from coop_jax._src.ir.program import Program
from coop_jax._src.ir.replaced_inputs import replaced_inputs


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A result goes to another place of the pool.

    Attributes:
      storage: of the result.
      offset: where to.
    """

    storage: int
    offset: int


class InputPlaces:
    """Where the arguments of a function lay in its last calls, whatever their signatures."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: list[InputPlace] = []  # two that differ, the older one first

    def note(self, program: Program, offsets: Sequence[int]) -> None:
        """Remembers where the inputs of a call lay, -1 outside the pool."""
        kinds = (_kind(program, value)[1] for value in program.inputs)
        place = dict(enumerate(zip(kinds, offsets, strict=True)))
        others = [x for x in self._last if not _is_same(x, place)]
        self._last = [*others[-1:], place]

    def before(self, offsets: Sequence[int]) -> InputPlace:
        """The last place but these; empty if there is none."""
        for place in reversed(self._last):
            if tuple(offset for _, offset in place.values()) != tuple(offsets):
                return place
        return {}


# For the number of each input its shape and dtype, and where it lay.
InputPlace = Mapping[int, tuple[Any, int]]


def _is_same(first: InputPlace, second: InputPlace) -> bool:
    return [at for _, at in first.values()] == [at for _, at in second.values()]


def _kind(program: Program, value: int) -> tuple[int, Any]:
    record = program.values[value]
    return record.storage, (record.aval.shape, record.aval.dtype)


def homes(
    program: Program, donated: Sequence[bool], input_offsets: Sequence[int], earlier: InputPlace
) -> dict[int, int]:
    """Storages of outputs -> the offsets of the inputs they replace.

    Args:
      program: what runs.
      donated: for each input whether this call disposes of it.
      input_offsets: where inputs lie, -1 outside the pool.
      earlier: where those of an earlier call lay.
    """
    inputs = [_kind(program, v) for v in program.inputs]
    outputs = [_kind(program, v) for v in program.outputs]
    replaced = replaced_inputs(inputs, program.donated, outputs)
    found = {
        storage: input_offsets[number]
        for storage, number in replaced.items()
        if donated[number] and input_offsets[number] >= 0
    }
    others = [output for output in outputs if output[0] not in replaced] if earlier else []
    kept = replaced_inputs(inputs, [not d for d in program.donated], others)
    for storage, number in kept.items():
        kind, home = earlier.get(number, (None, -1))
        if home >= 0 and kind == inputs[number][1] and home not in found.values():
            found[storage] = home
    return found


class _Ranges:
    """What lies where at the end of a plan."""

    def __init__(self, walls: Sequence[tuple[int, int]], movable: Mapping[int, tuple[int, int]]):
        self._walls = [(begin, begin + n) for begin, n in walls]
        self.movable = {s: (begin, begin + n) for s, (begin, n) in movable.items()}

    def in_the_way(self, begin: int, end: int) -> list[int] | None:
        """The movable storages in a range; None if anything else is."""
        if any(b < end and begin < e for b, e in self._walls):
            return None
        return [s for s, (b, e) in self.movable.items() if b < end and begin < e]

    def room(self, nbytes: int, capacity_bytes: int) -> int:
        """The first free offset for so many bytes, -1 if there is none."""
        begin = 0
        for b, e in sorted((*self._walls, *self.movable.values())):
            if b - begin >= nbytes:
                break
            begin = max(begin, -(-e // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        return begin if begin + nbytes <= capacity_bytes else -1


def moves(
    homes_of: Mapping[int, int],
    results: Mapping[int, tuple[int, int]],
    walls: Sequence[tuple[int, int]],
    capacity_bytes: int,
) -> list[Move]:
    """What to move, in order, so that results come home.

    Args:
      homes_of: storage -> where it should end.
      results: storage -> (offset, bytes) of all results in the pool that may move.
      walls: (offset, bytes) of all else that stays there.
      capacity_bytes: of the pool.
    """
    ranges = _Ranges(walls, results)
    # Places of earlier calls may be those of a larger pool.
    pending = [
        s
        for s, home in homes_of.items()
        if s in results and results[s][0] != home and home + results[s][1] <= capacity_bytes
    ]
    found: list[Move] = []
    aside: set[int] = set()

    def move(storage: int, offset: int) -> None:
        found.append(Move(storage, offset))
        ranges.movable[storage] = offset, offset + results[storage][1]

    while pending:
        blocked: list[tuple[int, list[int]]] = []
        for storage in pending:
            home = homes_of[storage]
            others = ranges.in_the_way(home, home + results[storage][1])
            if others == []:
                move(storage, home)
            elif others is not None:
                blocked.append((storage, others))
        if len(blocked) == len(pending):
            # All wait for each other, or for what has no home: some of that goes aside.
            storage, others = blocked.pop()
            room = -1 if others[0] in aside else ranges.room(results[others[0]][1], capacity_bytes)
            if room >= 0:
                aside.add(others[0])
                move(others[0], room)
                blocked.append((storage, others))
        pending = [storage for storage, _ in blocked]
    return found
