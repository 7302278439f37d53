"""What XLA made of a computation: its optimised HLO as hashes that leave names out.

XLA hands the module out as a serialised `HloModuleProto` (`xla/service/hlo.proto`), of which the
few fields needed are read here. Equal hashes mean the same instructions in the same dependence with
the same shapes, layouts, literals and backend configurations, so the same kernels; order of
execution, names and source lines do not count, nor which buffers are shared, nor copies from one
buffer to another, nor where a layout has a dimension of size 1, which is nowhere in memory.

Thread rule: functions of their arguments. Cost: linear in the module's bytes.
"""

from __future__ import annotations

import hashlib

import jax

from coop_jax._src.compat import hlo_messages as messages
from coop_jax._src.compat.protobuf import fields, numbers

# HloInstructionProto
_NAME, _METADATA, _PARAMETER, _SHARDING, _FRONTEND = 1, 7, 9, 40, 68
# ShapeProto, LayoutProto
_LAYOUT, _MINOR_TO_MAJOR = 5, 1

# What says nothing about what is computed.
_LEFT_OUT = frozenset({_NAME, _METADATA, messages.CONTROL, _SHARDING})


class Module:
    """An optimised module, read; computations by their numbers.

    Attributes:
      entry: the number of the computation where it begins.
    """

    __slots__ = ("_computations", "_hashes", "entry")

    def __init__(self, serialized: bytes):
        self._computations, self.entry = messages.computations_of(serialized, _Instruction)
        self._hashes: dict[tuple[int, bool], str] = {}

    def structure(self, number: int) -> str:
        """A hash of what a computation makes, whatever the order of its operands and results."""
        return self._hash(number, inner=False)

    def calls(self, attribute: str) -> dict[str, int]:
        """Computations that the entry calls, by the value of a frontend attribute of the call."""
        found = {}
        for instruction in self._computations[self.entry].instructions:
            if instruction.opcode == "call" and attribute in instruction.attributes:
                found[instruction.attributes[attribute]] = instruction.called[0]
        return found

    def _hash(self, number: int, *, inner: bool) -> str:
        key = number, inner
        if key not in self._hashes:
            self._hashes[key] = self._compute(number, inner=inner)
        return self._hashes[key]

    def _compute(self, number: int, *, inner: bool) -> str:
        computation = self._computations[number]
        instructions, root = computation.instructions, computation.root
        copied = self._copied(number)
        root = copied.get(root, root)
        hashes: dict[int, str] = {}
        made = []
        for instruction in instructions:  # operands come before their users
            if instruction.id in copied:
                hashes[instruction.id] = hashes[copied[instruction.id]]
                continue
            outermost = not inner and instruction.id == root and instruction.opcode == "tuple"
            digest = hashlib.sha256(instruction.opcode.encode())
            for operand in instruction.operands:
                digest.update(hashes[operand].encode())
            for called in instruction.called:
                digest.update(self._hash(called, inner=True).encode())
            if inner:
                digest.update(b"%d" % instruction.parameter)
                digest.update(b"root" if instruction.id == root else b"")
            digest.update(instruction.rest)
            hashes[instruction.id] = digest.hexdigest()
            # The outermost parameters and the tuple of results differ with who calls.
            if not outermost and (inner or instruction.opcode != "parameter"):
                made.append(hashes[instruction.id])
        return hashlib.sha256("".join(sorted(made)).encode()).hexdigest()

    def _copied(self, number: int) -> dict[int, int]:
        """Copies that change whose memory a value has, not what is in it; of which instruction."""
        copied: dict[int, int] = {}
        shapes: dict[int, bytes] = {}
        for instruction in self._computations[number].instructions:
            shapes[instruction.id] = instruction.shape
            if self._is_copy(instruction):
                (operand,) = instruction.operands
                if shapes[operand] == instruction.shape:
                    copied[instruction.id] = copied.get(operand, operand)
        return copied

    def _is_copy(self, instruction: _Instruction) -> bool:
        if instruction.opcode == "copy":
            return True
        if instruction.opcode != "fusion" or len(instruction.operands) != 1:
            return False
        (called,) = instruction.called
        return [x.opcode for x in self._computations[called].instructions] == ["parameter", "copy"]


class _Instruction:
    __slots__ = ("attributes", "called", "id", "opcode", "operands", "parameter", "rest", "shape")

    def __init__(self, content: bytes):
        self.id = 0
        self.opcode = ""
        self.parameter = 0
        self.shape = b""
        self.operands: list[int] = []
        self.called: list[int] = []
        self.attributes: dict[str, str] = {}
        rest = []
        for field, value in fields(content):
            if field == messages.OPCODE:
                self.opcode = value.decode()
            elif field == messages.NUMBER:
                self.id = value
            elif field == _PARAMETER:
                self.parameter = value
            elif field == messages.OPERANDS:
                self.operands += numbers(value)
            elif field == messages.CALLED:
                self.called += numbers(value)
            elif field == messages.SHAPE:
                self.shape = _in_memory(value)
            elif field == _FRONTEND:
                self.attributes = dict(map(_entry, (v for _, v in fields(value))))
            elif field not in _LEFT_OUT:
                rest.append(b"%d:" % field + (value if isinstance(value, bytes) else b"%d" % value))
        self.rest = b";".join((self.shape, *rest))


def _in_memory(shape: bytes) -> bytes:
    """A shape, told by how it lies in memory."""
    dimensions: list[int] = []
    rest, layouts = [], []
    for field, value in fields(shape):
        if field == messages.DIMENSIONS:
            dimensions += numbers(value)
        elif field == _LAYOUT:
            layouts.append(value)
        elif field == messages.TUPLE_SHAPES:
            rest.append(b"(%s)" % _in_memory(value))
        else:
            rest.append(b"%d:" % field + (value if isinstance(value, bytes) else b"%d" % value))
    for layout in layouts:
        order: list[int] = []
        for field, value in fields(layout):
            if field == _MINOR_TO_MAJOR:
                order += numbers(value)
            else:
                rest.append(b"%d;" % field + (value if isinstance(value, bytes) else b"%d" % value))
        rest.append(str([d for d in order if dimensions[d] != 1]).encode())
    return b",".join((str(dimensions).encode(), *rest))


def _entry(content: bytes) -> tuple[str, str]:
    """A key and a value of a map of strings."""
    parts = dict(fields(content))
    return parts.get(1, b"").decode(), parts.get(2, b"").decode()


def module_of(compiled: jax.stages.Compiled) -> Module | None:
    """The optimised module of a `jax.stages.Compiled`; None where there is none to see."""
    try:
        return Module(serialized(compiled))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        # Another backend, an executable from a cache that does not keep its module.
        return None


def serialized(compiled: jax.stages.Compiled) -> bytes:
    """The optimised module of a `jax.stages.Compiled` as its `HloModuleProto`.

    Raises:
      ValueError: the backend has none.
    """
    executable = compiled.runtime_executable()
    if executable is None:
        raise ValueError("the backend shows no executable")
    (module,) = executable.hlo_modules()
    return bytes(module.as_serialized_hlo_module_proto())
