"""What coop_jax knows of JAX's primitives, by name.

One table for both front ends: which equations are views, which are worth an operation of their own,
which may write their output over an input, which must never run twice, which cannot run here.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from coop_jax._src.compat import jaxprs

# Super-linear work: a nested call that holds one of these is taken apart, so that its parts can be
# kept or recomputed one by one.
HEAVY = frozenset(
    """
    dot_general ragged_dot ragged_dot_general conv_general_dilated cholesky lu qr eigh eig svd
    schur hessenberg triangular_solve tridiagonal tridiagonal_solve householder_product geqrf
    fft custom_linear_solve pallas_call ffi_call
    """.split()
)
CONTROL_FLOW = frozenset(("scan", "while", "cond", "custom_linear_solve"))

# Same size, same shape in and out, element by element: XLA can compute these over an input.
ELEMENTWISE = frozenset(
    """
    add add_any sub mul div rem max min pow atan2 nextafter neg sign floor ceil round exp exp2
    log log1p expm1 tanh sin cos tan asin acos atan sinh cosh asinh acosh atanh sqrt rsqrt cbrt
    square integer_pow logistic erf erfc erf_inv lgamma digamma abs and or xor not clamp
    one_minus_square log2 polynomial complex
    select_n shift_left shift_right_logical shift_right_arithmetic is_finite population_count
    clz real imag conj
    """.split()
)
# Updates of a part of their first operand.
UPDATES = frozenset(
    ("dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "scatter_mul")
)

# Never replayed: they reach outside, or may answer differently the second time.
IMPURE = frozenset(
    """
    pure_callback io_callback debug_callback debug_print outside_call infeed outfeed rng_uniform
    host_callback
    """.split()
)

UNSUPPORTED = frozenset(
    """
    shard_map pmap xla_pmap psum pmax pmin pmean ppermute all_to_all all_gather reduce_scatter
    psum_invariant psum2 axis_index
    """.split()
)

# The result is the operand itself.
_IDENTITIES = frozenset(
    """
    name sharding_constraint mesh_cast reshard layout_constraint pvary pcast copy_p
    coop_jax_guard
    """.split()
)


_MAY_CHANGE_NOTHING = frozenset(
    ("convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "transpose", "slice")
)


# Of them those that say how an array lies on several devices.
_LAYS_OUT = frozenset(("sharding_constraint", "mesh_cast", "reshard", "pvary", "pcast"))


def is_identity(
    primitive: Any,
    params: dict[str, Any],
    operand: Any,
    result: Any,
    *,
    keeps_shardings: bool = False,
) -> bool:
    """Whether the result's bits, shape and dtype are the operand's.

    `keeps_shardings`: and, of programs over several devices, where they lie.
    """
    name = primitive.name
    if name in _IDENTITIES:
        return not (keeps_shardings and name in _LAYS_OUT)
    if keeps_shardings and jaxprs.is_on_mesh(result) and operand.sharding != result.sharding:
        return False
    if name in _MAY_CHANGE_NOTHING:
        return bool(operand.shape == result.shape and operand.dtype == result.dtype) and (
            name != "transpose" or is_view(primitive, params, operand, result)
        )
    return False


def is_replacement(primitive: Any, operands: Sequence[Any]) -> bool:
    """Whether the result is the second operand, which is written over all of the first."""
    return bool(primitive.name == "dynamic_update_slice" and operands[0].shape == operands[1].shape)


def is_view(primitive: Any, params: dict[str, Any], operand: Any, result: Any) -> bool:
    """Whether the result is the operand's memory, read in row-major order as another shape."""
    name = primitive.name
    if name == "reshape":
        return params.get("dimensions") is None
    if name == "squeeze":
        return True
    if name == "broadcast_in_dim":
        return bool(operand.size == result.size and operand.size > 0)
    if name == "transpose":
        order = [d for d in params["permutation"] if operand.shape[d] != 1]
        return order == sorted(order)
    if name == "bitcast_convert_type":
        return bool(operand.dtype.itemsize == result.dtype.itemsize)
    return False


def is_recomputable(primitive: Any, params: dict[str, Any], effects: Any) -> bool:
    """Whether running the operation again gives the same bits and does nothing else."""
    if effects or primitive.name in IMPURE:
        return False
    return all(
        is_recomputable(e.primitive, e.params, e.effects)
        for nested in jaxprs.nested_jaxprs(params)
        for e in nested.eqns
    )


# What they hold is not run by JAX's own rules.
_OPAQUE = frozenset(("pallas_call",))
_checked: weakref.WeakSet[Any] = weakref.WeakSet()


def _over_devices(primitive: Any, params: dict[str, Any]) -> bool:
    """Whether an operation works over several devices.

    A collective that `jax.vmap` resolved does not: its axes are positions within one array.
    """
    axes = params.get("axes", ("?",))
    return primitive.name in UNSUPPORTED and any(not isinstance(a, int) for a in axes)


def _is_spread(place: Any) -> bool:
    return len(getattr(place, "device_set", ())) > 1


def check_program(jaxpr: Any, info: Any = None) -> None:
    """Raises for what cannot run here anywhere in a program, also in branches that may not run.

    `info` tells where the program is used, for equations that do not say where they are.
    """
    if jaxpr in _checked:
        return
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in UNSUPPORTED or eqn.primitive.name == "device_put":
            source = jaxprs.source_of(eqn.source_info, jaxprs.source_of(info))
            check_supported(eqn.primitive, eqn.params, (), source)
        check_nested(eqn.primitive, eqn.params, eqn.source_info)
    _checked.add(jaxpr)


def check_nested(primitive: Any, params: dict[str, Any], info: Any = None) -> None:
    """As `check_program`, for the programs that an equation holds."""
    if primitive.name not in _OPAQUE:
        for nested in jaxprs.nested_jaxprs(params):
            if nested not in _checked:  # to find where this is takes long
                check_program(nested, info or jaxprs.current_source())


def check_supported(primitive: Any, params: dict[str, Any], avals: Any, source: str) -> None:
    """Raises for what cannot run here, naming the primitive and the user's source line."""
    where = f" at {source}" if source else ""
    if _over_devices(primitive, params):
        raise NotImplementedError(
            f"coop_jax runs on one device: the primitive '{primitive.name}'{where} works over"
            " several. Call coop_jax inside the mapped function, or map without it."
        )
    if primitive.name == "device_put" and any(map(_is_spread, params.get("devices", ()))):
        raise NotImplementedError(
            f"coop_jax runs on one device: the primitive 'device_put'{where} spreads an array over"
            " several."
        )
    for aval in avals:
        if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
            raise NotImplementedError(
                f"coop_jax cannot place a value of type {aval} (primitive"
                f" '{primitive.name}'{where}): mutable references are not supported yet."
            )
