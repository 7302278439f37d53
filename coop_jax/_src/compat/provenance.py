"""Where a value of an optimised module comes from: the user's line, the module, the operation.

Model: XLA's instruction that makes a value is often one of its own (a copy, a fusion, a loop that
fills a stack), so it is followed to the one that JAX wrote: into a fusion, through copies, from a
loop to the operation of its body whose result the loop writes into the stack. What XLA makes of
nothing (positions of a pooling's gradient, zeros) comes from where the one that reads it does.

Thread rule: functions of their arguments. Cost: the instructions followed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import sysconfig

from coop_jax._src.compat import name_stacks
from coop_jax._src.compat.buffer_assignment import Place
from coop_jax._src.compat.buffer_lifetimes import ScheduledProgram, Value
from coop_jax._src.compat.hlo_instructions import Instruction
from coop_jax._src.compat.hlo_messages import Frame
from coop_jax._src.compat.name_stacks import Phase

# What says little of the values that it makes.
_TRIVIAL = frozenset("broadcast constant copy iota parameter tuple while bitcast call".split())
_FOLLOWED = 64
# What is inside or before it says more; if there is nothing, its own name counts.
_FOLLOWED_THOUGH_NAMED = ("fusion", "bitcast", "dynamic-update-slice")

_METHOD = re.compile(r"(?:.*\.)?([A-Za-z]\w*)\.(?!<)\w+$")
_INSTALLED = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"])


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from. "" is for what is not known.

    Attributes:
      instruction: the name of XLA's instruction.
      operation: JAX's primitive; XLA's name for it where JAX wrote none.
      source: "file:line (function)": the innermost line that is not in an installed package.
      modules: names of modules and scopes joined by "/"; of a program without names the classes
        whose methods were called.
      phase: whether it is part of what a differentiation computes forward or backward.
      parameter: the number of the argument that it is, or is a copy of; None: of none.
    """

    instruction: str = ""
    operation: str = ""
    source: str = ""
    modules: str = ""
    phase: Phase = "other"
    parameter: int | None = None


class Provenance:
    """Of the values of one program."""

    def __init__(self, program: ScheduledProgram):
        self._program = program
        self._home = {
            i.number: number for number, c in program.computations.items() for i in c.instructions
        }
        self._callers: dict[int, Instruction] = {
            called: i for i in program.instructions.values() for called in i.called
        }
        self._by_place = {value.place: value for value in program.values}
        self._users: dict[int, list[Instruction]] = collections.defaultdict(list)
        for instruction in program.instructions.values():
            for operand in instruction.operands:
                self._users[operand].append(instruction)

    def of_value(self, value: Value) -> Origin:
        """Where a value comes from; of one that others become, the most telling one of them."""
        own = self._program.instructions[value.place[0]]
        if self._is_argument(own):
            return Origin(own.name, own.opcode, parameter=own.parameter)
        found = [self._made_by(place) for place in (value.place, *value.shared)]
        named = [i for i in found if i is not None]
        telling = [i for i in named if i.opcode not in _TRIVIAL]
        for instruction in (*telling, *named):
            if self._is_argument(instruction):
                return Origin(own.name, own.opcode, parameter=instruction.parameter)
            return self._origin(instruction)
        reader = self._first_named_reader(value)
        if reader is None:
            return Origin(own.name, own.opcode)
        return dataclasses.replace(
            self._origin(reader), instruction=own.name, operation=_opcode_of(own)
        )

    def _is_argument(self, instruction: Instruction) -> bool:
        home = self._home[instruction.number]
        return instruction.opcode == "parameter" and home == self._program.entry

    def _first_named_reader(self, value: Value) -> Instruction | None:
        seen, waiting = set(value.readers), collections.deque(value.readers)
        while waiting and len(seen) < _FOLLOWED:
            number = waiting.popleft()
            made = self._made_by((number, ()))
            if made is not None and not self._is_argument(made):
                return made
            onward = [u.number for u in self._users[number] if u.number not in seen]
            seen.update(onward)
            waiting.extend(onward)
        return None

    def of_instruction(self, number: int) -> Origin:
        """Where an instruction comes from."""
        found = self._made_by((number, ()))
        own = self._program.instructions[number]
        return self._origin(own if found is None or self._is_argument(found) else found)

    def is_read_backward(self, value: Value) -> bool:
        """Whether what a differentiation computes backward reads it, or what it becomes."""
        shared = [self._by_place[p] for p in value.shared if p in self._by_place]
        return any(
            self._phase(number) == "backward"
            for v in (value, *shared)
            if v.last >= value.first
            for number in v.readers
        )

    @functools.cache  # noqa: B019 - kept as long as the program is looked at, once
    def _phase(self, number: int) -> Phase:
        return self.of_instruction(number).phase

    def _made_by(self, place: Place) -> Instruction | None:
        """The instruction with JAX's name whose result a value is; None if there is none."""
        number, index = place
        named: Instruction | None = None
        for _ in range(_FOLLOWED):
            instruction = self._program.instructions[number]
            if instruction.op_name and instruction.opcode in _FOLLOWED_THOUGH_NAMED:
                named = named or instruction
            elif instruction.op_name and instruction.opcode not in ("while", "parameter"):
                return instruction
            onward = self._from(instruction, index)
            if onward is None:
                return named or (instruction if self._is_argument(instruction) else None)
            number, index = onward
        return named

    def _from(self, instruction: Instruction, index: tuple[int, ...]) -> Place | None:
        """The place of what an instruction passes on."""
        opcode, computations = instruction.opcode, self._program.computations
        if opcode in ("fusion", "call", "while") and instruction.called:
            return computations[instruction.called[0]].root, index
        if opcode == "tuple" and index and index[0] < len(instruction.operands):
            return instruction.operands[index[0]], index[1:]
        if opcode == "get-tuple-element":
            return instruction.operands[0], (instruction.tuple_index, *index)
        if opcode == "parameter":
            caller = self._callers.get(self._home[instruction.number])
            if caller is None:
                return None
            if caller.opcode in ("fusion", "call"):
                return caller.operands[instruction.parameter], index
            return (caller.number, index) if caller.opcode == "while" else None
        if opcode == "dynamic-update-slice":
            return instruction.operands[1], ()
        if instruction.operands and (opcode == "bitcast" or not instruction.op_name):
            return instruction.operands[0], ()
        return None

    def _origin(self, instruction: Instruction) -> Origin:
        stack = name_stacks.read(instruction.op_name)
        frames = self._frames(instruction)
        return Origin(
            instruction=instruction.name,
            operation=stack.operation or instruction.opcode,
            source=_source(frames) or instruction.source,
            modules=stack.modules or _classes(frames),
            phase=stack.phase,
        )

    def _frames(self, instruction: Instruction) -> list[Frame]:
        """Calls, the innermost one first."""
        found: list[Frame] = []
        number = instruction.stack_frame
        while number in self._program.frames and len(found) < _FOLLOWED:
            found.append(self._program.frames[number])
            number = found[-1].parent
        return found


def _opcode_of(instruction: Instruction) -> str:
    """XLA's word for what an instruction does; fusions of one operation are named after it."""
    if instruction.opcode == "fusion" and instruction.name.startswith("wrapped_"):
        return instruction.name.removeprefix("wrapped_").partition(".")[0]
    return instruction.opcode


def _source(frames: list[Frame]) -> str:
    own = [f for f in frames if not any(folder in f.file for folder in _INSTALLED)]
    for frame in own or frames:
        return f"{frame.file}:{frame.line} ({frame.function})"
    return ""


def _classes(frames: list[Frame]) -> str:
    """The classes whose methods were called, outermost first."""
    names: list[str] = []
    for frame in reversed(frames):
        method = _METHOD.match(frame.function)
        if method is not None and not any(folder in frame.file for folder in _INSTALLED):
            names += [method[1]] if names[-1:] != [method[1]] else []
    return "/".join(names)
