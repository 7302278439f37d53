"""Instructions of an optimised module of XLA's: what they read, how, and in which shapes.

The fields of `HloInstructionProto` that say what work an instruction is, and where it comes from.
Zeros and defaults are left out where messages are written.

Thread rule: functions of their arguments. Cost: linear in the module's bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from coop_jax._src.compat import hlo_messages as messages
from coop_jax._src.compat.protobuf import fields, numbers

# HloInstructionProto.
_NAME, _METADATA, _PARAMETER, _TUPLE_INDEX = 1, 7, 9, 13
_WINDOW, _NUMBERS, _DOT, _GROUPS = 15, 16, 30, 50
_ALONG, _TARGET, _LENGTHS, _BACKEND, _IS_STABLE = 14, 28, 32, 43, 60
# OpMetadata.
_OP_NAME, _SOURCE_FILE, _SOURCE_LINE, _STACK_FRAME = 2, 3, 4, 15
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

# Of `PrimitiveType`, as NumPy and ml_dtypes call them, by number.
_DTYPES = dict(
    enumerate(
        "- bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 tuple"
        " opaque complex64 bfloat16 token complex128 float8_e5m2 float8_e4m3fn int4 uint4"
        " float8_e4m3b11fnuz float8_e5m2fnuz float8_e4m3fnuz int2 uint2 float8_e4m3 float8_e3m4"
        " int1 uint1 float4_e2m1fn float8_e8m0fnu".split()
    )
)


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
      name: of the instruction.
      parameter: of a parameter, its number.
      tuple_index: of a part taken out of a tuple, which one.
      op_name: JAX's name stack and primitive; of an argument its name.
      stack_frame: the number of the call that it comes from; 0 for none.
      source: "file:line" where the module says it without call stacks; "" for none.
      shape_message: the `ShapeProto` of its result.
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
    name: str = ""
    parameter: int = 0
    tuple_index: int = 0
    op_name: str = ""
    stack_frame: int = 0
    source: str = ""
    shape_message: bytes = b""

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
            made.shape_message = value
            _read_shape(value, made)
        elif field == _NAME:
            made.name = value.decode()
        elif field == _METADATA:
            _read_metadata(value, made)
        elif field == _PARAMETER:
            made.parameter = value
        elif field == _TUPLE_INDEX:
            made.tuple_index = value
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


def _read_metadata(content: bytes, made: Instruction) -> None:
    said = dict(fields(content))
    made.op_name = said.get(_OP_NAME, b"").decode()
    made.stack_frame = said.get(_STACK_FRAME, 0)
    if said.get(_SOURCE_LINE):
        made.source = f"{said.get(_SOURCE_FILE, b'').decode()}:{said[_SOURCE_LINE]}"


def array_at(shape_message: bytes, index: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of an array in a `ShapeProto`, of a tuple the part with an index.

    Returns:
      As NumPy writes them; "tuple" and no shape for a table of pointers.
    """
    for part in index:
        parts = [v for field, v in fields(shape_message) if field == messages.TUPLE_SHAPES]
        if part >= len(parts):
            return (), "-"
        shape_message = parts[part]
    found = Instruction()
    _read_shape(shape_message, found)
    return tuple(found.shape), _DTYPES.get(found.item_type, "-")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
