"""Instructions of an optimised module of XLA's: what they read, how, and in which shapes.

The fields of `HloInstructionProto` that say what work an instruction is. Zeros and defaults are
left out where messages are written.

Thread rule: functions of their arguments. Cost: linear in the module's bytes.
"""

from __future__ import annotations

import dataclasses
import math

from coop_jax._src.compat import hlo_messages as messages
from coop_jax._src.compat.protobuf import fields, numbers

# HloInstructionProto.
_WINDOW, _NUMBERS, _DOT, _GROUPS = 15, 16, 30, 50
_ALONG, _TARGET, _LENGTHS, _BACKEND, _IS_STABLE = 14, 28, 32, 43, 60
# ShapeProto, DotDimensionNumbers, Window and WindowDimension, ConvolutionDimensionNumbers.
_TYPE = 2
LHS_CONTRACTING, LHS_BATCH = 1, 3
_WINDOW_DIMENSIONS = 1
STRIDE, PADDING_LOW, PADDING_HIGH, WINDOW_DILATION, BASE_DILATION = 2, 3, 4, 5, 6
KERNEL_INPUT, KERNEL_OUTPUT = 3, 4
IMAGE_SPATIAL = 11

# Numbers of `PrimitiveType`; on narrower floats no library works.
_TYPES_BY_BYTES = {1: (1, 2, 6), 2: (3, 7, 10, 16), 4: (4, 8, 11), 8: (5, 9, 12, 15), 16: (18,)}
ITEM_BYTES = {kind: n for n, kinds in _TYPES_BY_BYTES.items() for kind in kinds}


@dataclasses.dataclass(slots=True)
class Instruction:
    """An instruction.

    Attributes:
      opcode: its name in HLO.
      number: by which others name it.
      item_type, shape: of its result if that is one array.
      nbytes: of its result or results.
      operands, waits_for: numbers of the instructions that come before it.
      called: numbers of computations.
      window, groups: of a convolution; one for each spatial dimension.
      dimensions: of a convolution or a product, by what they are.
      is_ynn: whether YNNPACK computes the fusion.
      along, is_stable: of a sort.
      lengths: of a Fourier transform.
      target: of a custom call.
    """

    opcode: str = ""
    number: int = -1
    item_type: int = 0
    shape: list[int] = dataclasses.field(default_factory=list)
    nbytes: int = 0
    operands: list[int] = dataclasses.field(default_factory=list)
    waits_for: list[int] = dataclasses.field(default_factory=list)
    called: list[int] = dataclasses.field(default_factory=list)
    window: list[dict[int, int]] = dataclasses.field(default_factory=list)
    groups: int = 1
    dimensions: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    is_ynn: bool = False
    along: int = 0
    is_stable: bool = False
    lengths: list[int] = dataclasses.field(default_factory=list)
    target: str = ""

    def feature(self, which: int) -> int:
        """A dimension's number; 0 is left out where messages are written."""
        return self.dimensions.get(which, [0])[0]


def read(content: bytes) -> Instruction:
    """An instruction of its `HloInstructionProto`."""
    made = Instruction()
    for field, value in fields(content):
        if field == messages.OPCODE:
            made.opcode = value.decode()
        elif field == messages.NUMBER:
            made.number = value
        elif field == messages.SHAPE:
            _read_shape(value, made)
        elif field == messages.OPERANDS:
            made.operands += numbers(value)
        elif field == messages.CONTROL:
            made.waits_for += numbers(value)
        elif field == messages.CALLED:
            made.called += numbers(value)
        elif field == _ALONG:
            made.along = (numbers(value) or [0])[0]
        elif field == _LENGTHS:
            made.lengths += numbers(value)
        elif field == _TARGET:
            made.target = value.decode()
        elif field == _IS_STABLE:
            made.is_stable = bool(value)
        elif field == _GROUPS:
            made.groups = max(1, value)
        elif field == _WINDOW:
            made.window = [
                {part: _signed(n) for part, n in fields(one) if isinstance(n, int)}
                for kind, one in fields(value)
                if kind == _WINDOW_DIMENSIONS
            ]
        elif field in (_NUMBERS, _DOT):
            for part, inner in fields(value):
                made.dimensions.setdefault(part, []).extend(numbers(inner))
        elif field == _BACKEND:
            made.is_ynn = b"__ynn_fusion" in value
    return made


def _read_shape(content: bytes, made: Instruction) -> None:
    for part, inner in fields(content):
        if part == _TYPE:
            made.item_type = inner
        elif part == messages.DIMENSIONS:
            made.shape += numbers(inner)
        elif part == messages.TUPLE_SHAPES:
            one = Instruction()
            _read_shape(inner, one)
            made.nbytes += one.nbytes
    made.nbytes += math.prod(made.shape) * ITEM_BYTES.get(made.item_type, 0)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
