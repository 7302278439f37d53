"""The values of a plan, numbered without gaps.

A segment is one operation of a program that may have thousands of values; a plan of it mentions
those that go in and come out. What carries it out keeps a list of its values, made anew by every
call, so only those that are mentioned have a place there.

Thread rule: functions of their arguments. Cost: linear in the instructions, once for each plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from coop_jax._src.execution.instructions import Forget, Instruction, Run, View


class Places:
    """Gives values their places, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, value: int) -> int:
        return self._places.setdefault(value, len(self._places))

    def of(self, values: Iterable[int]) -> tuple[int, ...]:
        """Places of values; what is negative is none, and stays."""
        return tuple(v if v < 0 else self[v] for v in values)

    def within(self, instruction: Instruction) -> Instruction:
        """An instruction on the places of its values."""
        if type(instruction) is Run:
            return dataclasses.replace(
                instruction,
                operands=self.of(instruction.operands),
                results=self.of(instruction.results),
                forget=self.of(instruction.forget),
            )
        if type(instruction) is View:
            return dataclasses.replace(instruction, value=self[instruction.value])
        assert type(instruction) is Forget
        return dataclasses.replace(instruction, values=self.of(instruction.values))
