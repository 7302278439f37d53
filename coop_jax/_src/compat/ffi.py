"""XLA custom calls: copies into a slot, where and when XLA's own work runs, and scratch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat.number_checks import keeping_donation

TARGET = "coop_copy"
STORE_TARGET = "coop_store"
SCRATCH_TARGET = "coop_scratch"


@functools.cache
def _register(target: str) -> None:
    for platform, handler in _core.ffi_targets(target).items():
        jax.ffi.register_ffi_target(target, handler, platform=platform)


@functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
def _copy(slot: jax.Array, source: jax.Array) -> Any:
    out = jax.ShapeDtypeStruct(source.shape, source.dtype)
    return jax.ffi.ffi_call(TARGET, out, input_output_aliases={1: 0})(source, slot)


def copy_into(slot: jax.Array, source: jax.Array) -> jax.Array:
    """Copies `source` into the memory of `slot` (same shape and dtype, donated).

    Returns:
      The array that now lies in the slot's memory.
    """
    _register(TARGET)
    with keeping_donation():
        result: jax.Array = _copy(slot, source)
    return result


@functools.partial(jax.jit, keep_unused=True)
def _store(slot: jax.Array, source: jax.Array) -> Any:
    done = jax.ShapeDtypeStruct((1,), jax.numpy.uint8)
    return jax.ffi.ffi_call(STORE_TARGET, done, has_side_effect=True)(source, slot)


def store(slot: jax.Array, source: jax.Array) -> jax.Array:
    """Writes `source` into the memory of `slot` (same shape and dtype), donating nothing.

    Nobody may have read `slot` before: JAX takes arrays for constant.

    Returns:
      `slot`, which holds the values of `source` from now on.
    """
    _register(STORE_TARGET)
    # Who reads the slot later waits for what made the slot, not for what wrote it: so wait here.
    jax.block_until_ready(_store(slot, source))
    return slot


def scratch(results: Sequence[Any], blocks: Sequence[Any]) -> list[Any]:
    """Arrays (`blocks`: shape, dtype) that a function returns beside all its results, to work in.

    Where arguments are donated for them, XLA keeps there what it hands on inside, instead of in
    memory of its own, from when nothing reads those any more. What they hold in the end means
    nothing.
    """
    if not blocks:
        return []
    _register(SCRATCH_TARGET)
    made = [jax.ShapeDtypeStruct(b.shape, b.dtype) for b in blocks]
    return list(jax.ffi.ffi_call(SCRATCH_TARGET, made)(*results))
