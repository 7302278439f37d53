"""JAX's mutable references (`jax.new_ref`), as far as their private parts are needed.

Model: reading, writing and adding to a part of a reference are, on its contents, pure functions.
JAX has them for its own lowering ("discharging"). Here each is a jaxpr of contents, operand and
indices.
Invariants: the traced functions depend on shapes, dtypes and the form of the index only, so they
are kept by those. Thread rule: as JAX's caches. Cost: a trace for each form of index.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax._src.lax import lax as _lax
from jax._src.state import discharge as _discharge
from jax._src.state.types import AbstractRef, WriteEffect

from coop_jax._src.compat import caches, wide

Ref = _core.Ref


def is_ref(x: object) -> bool:
    """Whether this is a reference with contents, not a tracer of one."""
    return type(x) is Ref


def is_ref_aval(aval: Any) -> bool:
    """Whether a value of this type is a reference."""
    return isinstance(aval, AbstractRef)


def inner_aval(aval: Any) -> Any:
    """The abstract value of a reference's contents."""
    return aval.inner_aval


def contents(ref: Any) -> jax.Array:
    """What a reference holds now.

    Raises:
      NotImplementedError: the reference is of another kind than an array on a device.
    """
    if ref.aval.is_high or ref.aval.memory_space is not None:
        raise NotImplementedError(
            f"coop_jax cannot run with a reference of type {ref.aval}: only references to arrays"
            " in the device's own memory"
        )
    array: jax.Array = ref._refs._buf
    return array


def set_contents(ref: Any, array: jax.Array) -> None:
    """Lets a reference hold another array, which must not be anybody else's."""
    ref._refs._buf = array


def made_by(primitive: Any, operand_avals: Sequence[Any], params: dict[str, Any]) -> Any:
    """The type of the reference that `new_ref` or `empty_ref` makes."""
    if params.get("memory_space") is not None or params.get("pin", False):
        raise NotImplementedError(
            f"{primitive}: only references in the device's own memory can be used in coop_jax"
        )
    aval, _ = primitive.abstract_eval(*operand_avals, **params)
    return aval


def initial(aval: Any, given: Any) -> Any:
    """The function from an initial value to a reference's first contents."""
    inner = aval.inner_aval
    weak = getattr(inner, "weak_type", False)
    return _traced(_Converted(inner.dtype, weak), (given,))


def zeros(aval: Any) -> Any:
    """The function that makes contents from nothing."""
    inner = aval.inner_aval
    return _traced(_Zeros(inner.shape, inner.dtype), ())


def uninitialized(inner: Any) -> Any:
    """The function that makes what JAX puts where nothing was written yet."""
    return _traced(_Uninitialized(inner.shape, inner.dtype), ())


def inputs_written(jaxpr: Any) -> set[int]:
    """The numbers of a program's inputs that are references which it writes to."""
    effects = _core.positional_effects(jaxpr)
    return {effect.input for effect in effects if isinstance(effect, WriteEffect)}


def read(params: dict[str, Any], inner: Any, indices: Sequence[Any]) -> Any:
    """(contents, *indices) -> the part."""
    return _traced(_Part("get", params["tree"]), (inner, *indices))


def written(name: str, params: dict[str, Any], inner: Any, operands: Sequence[Any]) -> Any:
    """(contents, value, *indices) -> contents after "swap" or "addupdate"."""
    return _traced(_Part(name, params["tree"]), (inner, *operands))


def row_written(inner: Any, row: Any) -> Any:
    """(contents, row, position) -> contents."""
    position = _core.ShapedArray((), np.dtype(np.int32))
    return _traced(_Row("row", None), (inner, row, position))


class _Part:
    """Reads or writes the part of contents that an index of this form names."""

    def __init__(self, name: Any, tree: Any):
        self._key = (name, tree)

    def __call__(self, *operands: Any) -> Any:
        name, tree = self._key
        if name == "get":
            return _discharge._get_discharge(operands[0], operands[1:], tree)
        contents, value, *index = operands
        if name == "swap":
            return _discharge._swap_discharge(contents, value, index, tree)[1]
        return _discharge._addupdate_discharge(contents, value, index, tree)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Part) and self._key == other._key


class _Converted(_Part):
    def __call__(self, *operands: Any) -> Any:
        dtype, weak = self._key
        return _lax._convert_element_type(operands[0], dtype, weak_type=weak)


class _Row(_Part):
    def __call__(self, *operands: Any) -> Any:
        contents, row, position = operands
        return jax.lax.dynamic_update_index_in_dim(contents, row, position, 0)


class _Zeros(_Part):
    def __call__(self, *operands: Any) -> Any:
        shape, dtype = self._key
        return jax.numpy.zeros(shape, dtype)


class _Uninitialized(_Part):
    def __call__(self, *operands: Any) -> Any:
        return _discharge._default_initialization(jax.ShapeDtypeStruct(*self._key))


def _traced(function: _Part, avals: Sequence[Any]) -> Any:
    # Keyed by the class too: a conversion and zeros may have equal keys.
    return _trace(type(function).__name__, function, tuple(avals))


@functools.lru_cache(maxsize=4096)
def _trace(kind: str, function: _Part, avals: tuple[Any, ...]) -> Any:
    del kind
    key = function._key if isinstance(function._key, tuple) else ()
    is_wide = wide.any_wide(avals) or any(isinstance(k, np.dtype) and wide.is_wide(k) for k in key)
    with _core.set_current_trace(_core.eval_trace), wide.holding(wide=is_wide):
        specs = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False))
            for a in avals
        ]
        return jax.make_jaxpr(lambda *xs: [function(*xs)])(*specs)


caches.cleared_with_jax(_trace)


def hoisted(jaxpr: Any, constants: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
    """References that a program closes over become its last inputs.

    Returns:
      The jaxpr, the constants that are left, and those references.
    """
    refs = [c for c in constants if is_ref(c)]
    if not refs:
        return jaxpr, list(constants), []
    pairs = list(zip(jaxpr.constvars, constants, strict=True))
    moved = [v for v, c in pairs if is_ref(c)]
    kept = [(v, c) for v, c in pairs if not is_ref(c)]
    jaxpr = jaxpr.replace(
        constvars=[v for v, _ in kept],
        invars=[*jaxpr.invars, *moved],
        effects=_core.no_effects,  # they name inputs by number
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return jaxpr, [c for _, c in kept], refs
