"""Which operations XLA can fuse with others.

Heavy ones (a matrix product, a convolution, random bits) can be followed by loops; loops (element
by element, reductions, rearrangements) can be fused with each other; cheap ones cost about as much
as reading what they compute. Everything else runs by itself: updates of a part of an array,
gathers, sorts, programs with a body, effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coop_jax._src.compat import equation_keys
from coop_jax._src.ir import primitives

if TYPE_CHECKING:
    from collections.abc import Container

    from coop_jax._src.ir.equations import Equation
    from coop_jax._src.ir.kernels import Kernel
    from coop_jax._src.ir.raw_operations import RawOperation

_HEAVY = frozenset(("dot_general", "conv_general_dilated", "random_bits", "threefry2x32"))

# Loops that XLA fuses with others, and that cost about as much as reading what they compute.
_CHEAP = frozenset(
    """
    add add_any sub mul neg one_minus_square max min abs sign square and or xor not select_n
    clamp eq ne lt le gt ge floor ceil round is_finite convert_element_type broadcast_in_dim
    reshape squeeze expand_dims transpose iota slice split rev copy copy_p stop_gradient real imag
    conj integer_pow shift_left shift_right_logical shift_right_arithmetic reduce_precision
    bitcast_convert_type
    """.split()
)
REDUCTIONS = frozenset(
    """
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin
    """.split()
)
SUMS = frozenset(("add", "add_any"))

# XLA's CPU compiler aborts the process on some operations on these that it can do among others (a
# `concatenate` of int2 by itself), so how the user grouped them is left as it is.
_NARROW = frozenset(("int1", "uint1", "int2", "uint2", "int4", "uint4"))
_NARROW_FLOATS = ("float4", "float6", "float8")

_LOOPS = _CHEAP | REDUCTIONS | primitives.ELEMENTWISE | {"pad", "concatenate"}


def may_be_absorbed(op: RawOperation) -> bool:
    """Whether an operation can run inside others."""
    return not op.effectful and is_loop(op.kernel)


def is_heavy(kernel: Kernel) -> bool:
    """Whether a kernel is a matrix product or something like it, which others may follow."""
    names = [e.primitive.name for e in kernel.equations]
    return (
        sum(name in _HEAVY for name in names) == 1
        and all(name in _HEAVY or name in _LOOPS for name in names)
        and not kernel.touches_part
        and not has_narrow(kernel)
    )


def is_loop(kernel: Kernel) -> bool:
    """Whether XLA can fuse all of a kernel with others."""
    return (
        all(e.primitive.name in _LOOPS for e in kernel.equations)
        and kernel.recomputable
        and not kernel.touches_part
        and not has_narrow(kernel)
    )


def has_narrow(kernel: Kernel) -> bool:
    """Whether a kernel has anything to do with values of a few bits each."""
    inside = (aval for e in kernel.equations for aval in e.out_avals)
    return any(map(is_narrow, (*kernel.in_avals, *inside)))


def is_narrow(aval: Any) -> bool:
    """Whether values are of a few bits each."""
    name = equation_keys.type_name(getattr(aval, "dtype", ""))
    return name in _NARROW or name.startswith(_NARROW_FLOATS)


def is_cheap(kernel: Kernel) -> bool:
    """Whether XLA computes a kernel again where it is read, rather than store it."""
    return all(e.primitive.name in _CHEAP for e in kernel.equations)


def only_equation(op: RawOperation, names: Container[str]) -> Equation | None:
    """The one equation of an operation, if it is of one of these primitives."""
    equations = op.kernel.equations
    return equations[0] if len(equations) == 1 and equations[0].primitive.name in names else None
