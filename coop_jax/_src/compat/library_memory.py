"""Memory that XLA's CPU libraries take beside what XLA's buffer assignment knows of.

Convolutions, some matrix products, sorts and Fourier transforms copy what they read into blocks
from malloc: padded images, patches of them, packed panels, rows. `memory_analysis` does not tell of
it. How much it is follows from shapes and from which library XLA chose, so it is computed, not
measured: a plan is then the same in every process. Each rule is an upper bound of what was seen of
resident memory (`tests/unit/compat/test_library_memory.py` looks again):

- YNNPACK (a fusion of kind `__ynn_fusion`): the padded image and the kernel, once each; all patches
  where channels are in groups of several.
- Eigen's transposed convolution (a dilated image): the patches' products, all of them.
- Eigen's other convolutions: patches of as many pixels as threads work at, or all of them where
  there are few; all of them and a copy of the result where channels are in groups. A copy of the
  result in three dimensions.
- Eigen's matrix products: panels of both operands, as deep as a cache is.
- A stable sort (`std::stable_sort`): a row, with 16 bytes for each element of each operand.
- LAPACK: what its drivers ask for, some copies of the matrix.
- Callbacks to Python: what they read and return, as arrays of NumPy's.
- The largest of a row: the places of all of them.
- Fourier transforms: what the longest one is multiplied by and a copy of it; where it has a large
  prime factor, that is transformed in a length of twice as much.

Eigen and YNNPACK work while XLA goes on, so what does not wait for another instruction of theirs
counts beside it; everything else is done one after the other, and the largest counts.

Executables that need less than `LEAST_BYTES` count as needing none: malloc's arenas hold that.

Thread rule: functions of their arguments. Cost: linear in the module's bytes, where it holds such
an instruction; else one search in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coop_jax._src.compat import hlo_instructions
from coop_jax._src.compat.hlo_instructions import ITEM_BYTES, Instruction
from coop_jax._src.compat.hlo_messages import Computation, computations_of

LEAST_BYTES = 1 << 20

# Packed panels of an Eigen product: two slices, each as deep as its first-level cache allows.
_PANEL_BYTES = 3328

# Eigen's threads pack by themselves where there is enough to do for each; the patches that all of
# them hold, or all there are where there is less to do, are no more than this.
_PATCHES_BYTES = 1 << 24

# Of LAPACK's drivers: copies of the matrix. Other functions work in place.
_LAPACK_COPIES = {
    "gesdd": 2.0,
    "gesvd": 6.0,
    "syevd": 3.0,
    "heevd": 3.0,
    "geev": 3.0,
    "gees": 2.0,
    "gehrd": 2.0,
    "geqrf": 1.0,
    "orgqr": 1.0,
    "ungqr": 1.0,
    "getrf": 0.5,
}

# Above this Eigen takes its general way for transposed convolutions.
_MOST_TRANSPOSED_BYTES = 8 << 30

# XLA does not wait for those that Eigen computes.
_ASYNCHRONOUS = ("convolution", "dot")

# More that may run at one time than can be compared one by one: all of them count.
_COMPARED = 20

_DOUBLE = 12
_CONVOLVED_TYPES = {10, 11, 16}  # f16, f32, bf16
_LOOKED_FOR = (b"convolution", b"dot", b"sort", b"fft", b"opK", b"topk", b"lapack_", b"callback")

# What the largest type takes, which all are sorted as.
_SORTED_ITEM_BYTES = 16
_PLACE_BYTES = 4

# Longer prime factors of a Fourier transform are not done one product after the other.
_LARGE_PRIME = 50


def unreported_bytes(serialized: bytes, *, one_by_one: bool = False) -> int:
    """What libraries take at most at one time while an optimised module runs.

    Args:
      serialized: its `HloModuleProto`.
      one_by_one: as if nothing ran beside anything: what they take in any case.
    """
    if not any(word in serialized for word in _LOOKED_FOR):
        return 0
    computations, entry = computations_of(serialized, hlo_instructions.read)
    needed = _Needs(computations, one_by_one=one_by_one).of(entry)
    return needed if needed >= LEAST_BYTES else 0


class _Needs:
    """What computations need, each looked at once."""

    def __init__(self, computations: dict[int, Computation[Instruction]], *, one_by_one: bool):
        self._computations = computations
        self._one_by_one = one_by_one
        self._known: dict[int, int] = {}

    def of(self, number: int) -> int:
        """What may be taken at one time while a computation runs."""
        if number not in self._known:
            instructions = self._computations[number].instructions
            by_number = {i.number: i for i in instructions}
            needed = [self._of(i, by_number) for i in instructions]
            goes_on = [i.opcode in _ASYNCHRONOUS or i.is_ynn for i in instructions]
            beside = [n if g else 0 for n, g in zip(needed, goes_on, strict=True)]
            alone = [n for n, g in zip(needed, goes_on, strict=True) if not g]
            self._known[number] = (
                max(needed, default=0)
                if self._one_by_one
                else _at_once(instructions, beside) + max(alone, default=0)
            )
        return self._known[number]

    def _of(self, instruction: Instruction, others: dict[int, Instruction]) -> int:
        operands = [others[n] for n in instruction.operands]
        if instruction.opcode == "convolution":
            return _eigen_convolution(instruction, *operands)
        if instruction.opcode == "dot":
            return _eigen_product(instruction, *operands)
        if instruction.opcode == "sort":
            row = operands[0].shape[instruction.along]
            return row * len(operands) * _SORTED_ITEM_BYTES if instruction.is_stable else 0
        if instruction.opcode == "topk" or instruction.target == "TopK":
            return operands[0].shape[-1] * _PLACE_BYTES
        if instruction.opcode == "custom-call":
            return _custom_call(instruction, operands)
        if instruction.opcode == "fft":
            return _transform(instruction.lengths, operands[0].item_type)
        if instruction.opcode == "fusion" and instruction.is_ynn:
            return sum(map(self._fused, instruction.called))
        if instruction.opcode in ("call", "while", "conditional"):  # one of them at a time
            return max((self.of(number) for number in instruction.called), default=0)
        return 0

    def _fused(self, number: int) -> int:
        by_number = {i.number: i for i in self._computations[number].instructions}
        return sum(
            _ynn_convolution(i, *(by_number[n] for n in i.operands))
            for i in self._computations[number].instructions
            if i.opcode == "convolution"
        )


def _ynn_convolution(made: Instruction, image: Instruction, kernel: Instruction) -> int:
    nbytes = image.nbytes
    for at, window in zip(
        made.dimensions[hlo_instructions.IMAGE_SPATIAL], made.window, strict=True
    ):
        size = image.shape[at]
        dilated = (size - 1) * window.get(hlo_instructions.BASE_DILATION, 1) + 1
        padded = dilated + sum(
            max(0, window.get(p, 0))
            for p in (hlo_instructions.PADDING_LOW, hlo_instructions.PADDING_HIGH)
        )
        nbytes = nbytes // max(1, size) * padded
    channels = kernel.shape[made.feature(hlo_instructions.KERNEL_INPUT)]
    filters = kernel.shape[made.feature(hlo_instructions.KERNEL_OUTPUT)]
    if made.groups > 1 and (channels > 1 or filters > made.groups):
        nbytes += made.groups * _patches_bytes(made, image, kernel)
    return nbytes + kernel.nbytes


def _patches_bytes(made: Instruction, image: Instruction, kernel: Instruction) -> int:
    """Of all patches, of one group of channels."""
    filters = kernel.shape[made.feature(hlo_instructions.KERNEL_OUTPUT)]
    patches = math.prod(made.shape) // max(1, filters)
    return patches * math.prod(kernel.shape) // max(1, filters) * ITEM_BYTES[image.item_type]


def _eigen_convolution(made: Instruction, image: Instruction, kernel: Instruction) -> int:
    if image.item_type not in _CONVOLVED_TYPES or not made.nbytes or not image.nbytes:
        return 0
    rank = len(made.window)
    if rank < 3 and _is_transposed(made):
        channels = kernel.shape[made.feature(hlo_instructions.KERNEL_INPUT)]
        nbytes = image.nbytes * math.prod(kernel.shape) // max(1, channels) ** 2
        if nbytes <= _MOST_TRANSPOSED_BYTES:
            return nbytes
    patches = _patches_bytes(made, image, kernel)
    if made.groups > 1:
        return made.groups * patches + made.nbytes
    return min(patches, _PATCHES_BYTES) + (made.nbytes if rank > 2 else 0)


def _is_transposed(made: Instruction) -> bool:
    return (
        made.groups == 1
        and any(w.get(hlo_instructions.BASE_DILATION, 1) > 1 for w in made.window)
        and all(
            w.get(hlo_instructions.WINDOW_DILATION, 1) == w.get(hlo_instructions.STRIDE, 1) == 1
            for w in made.window
        )
    )


def _eigen_product(made: Instruction, left: Instruction, right: Instruction) -> int:
    item_bytes = ITEM_BYTES.get(left.item_type, 0)
    if not item_bytes or not made.nbytes:
        return 0
    depth = math.prod(
        left.shape[d] for d in made.dimensions.get(hlo_instructions.LHS_CONTRACTING, ())
    )
    batch = math.prod(left.shape[d] for d in made.dimensions.get(hlo_instructions.LHS_BATCH, ()))
    rows = math.prod(left.shape) // max(1, depth * batch)
    columns = math.prod(right.shape) // max(1, depth * batch)
    if min(rows, columns) <= 1:  # a vector: nothing is packed
        return 0
    return (rows + columns) * min(depth * item_bytes, _PANEL_BYTES)


def _custom_call(made: Instruction, operands: Sequence[Instruction]) -> int:
    if "python" in made.target and "callback" in made.target:
        return made.nbytes + sum(x.nbytes for x in operands)
    for driver, copies in _LAPACK_COPIES.items():
        if made.target.startswith("lapack_") and driver in made.target:
            return int(copies * operands[0].nbytes)
    return 0


def _transform(lengths: Sequence[int], item_type: int) -> int:
    item_bytes = 16 if ITEM_BYTES.get(item_type) == 16 or item_type == _DOUBLE else 8
    most = 0
    for length in lengths:
        factor = _largest_factor(length)
        beside = 4 * factor if factor > _LARGE_PRIME else 0
        most = max(most, (2 * length + beside) * item_bytes)
    return most


def _largest_factor(number: int) -> int:
    factor, largest = 2, 1
    while factor * factor <= number:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return max(largest, number)


def _at_once(instructions: Sequence[Instruction], weights: Sequence[int]) -> int:
    """The most that instructions weigh of which none waits for another: they may run together."""
    places = {i.number: n for n, i in enumerate(instructions)}
    heavy = [n for n, weight in enumerate(weights) if weight]
    if len(heavy) <= 1:
        return sum(weights)
    after: list[int] = []  # for each instruction: those heavy ones that it waits for, as bits
    bits = {n: 1 << k for k, n in enumerate(heavy)}
    for instruction in instructions:  # operands come before their users
        mask = 0
        for number in (*instruction.operands, *instruction.waits_for):
            n = places.get(number, -1)
            if 0 <= n < len(after):
                mask |= after[n] | bits.get(n, 0)
        after.append(mask)
    apart = [0] * len(heavy)  # those that neither waits for
    everything = (1 << len(heavy)) - 1
    for k, n in enumerate(heavy):
        apart[k] |= everything & ~after[n] & ~bits[n]
        for j in range(len(heavy)):
            if after[n] >> j & 1:
                apart[j] &= ~bits[n]
    return _heaviest([weights[n] for n in heavy], apart, everything)


def _heaviest(weights: Sequence[int], apart: Sequence[int], allowed: int) -> int:
    """The most that instructions weigh of which each is apart from each other one."""
    rest = [k for k in range(len(weights)) if allowed >> k & 1]
    best = 0
    total = sum(weights[k] for k in rest)
    for k in sorted(rest, key=lambda k: -weights[k]):
        if best >= total:
            break
        others = allowed & apart[k]
        if others.bit_count() > _COMPARED:
            return sum(weights[j] for j in rest)
        best = max(best, weights[k] + _heaviest(weights, apart, others))
        allowed &= ~(1 << k)  # seen with it: from here on without
        total -= weights[k]
    return best
