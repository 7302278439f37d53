"""Arrays over pool memory: what coop_jax needs of jaxlib's buffers, in one place.

Known of both supported versions of JAX (0.10 to 0.12): a DLPack capsule imported with `copy=True`
is on CPU a *mutable* view without a copy; donated to a compiled function it is where XLA writes the
output; the capsule's deleter runs when the last user of that memory is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import array as _array
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src import xla_bridge as _xla_bridge
from jax._src.lib import jaxlib_extension_version as _jaxlib_extension_version
from jax._src.random import prng as _prng
from jaxlib import _jax

from coop_jax._core import ensure_signal_stack
from coop_jax._src.compat.devices import dlpack_device

_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED_DLPACK = {  # (type code, bits) of dtypes that NumPy has no kind for
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}


@functools.cache
def dlpack_type(dtype: Any) -> tuple[int, int] | None:
    """The DLPack (type code, bits) of a dtype, None where views of it cannot be imported.

    That of typed random keys is their data's. Types of fewer than 8 bits have none: DLPack packs
    them in a way of its own, or not at all.
    """
    if is_keys(dtype):
        return _DLPACK_CODES["u"], 32
    if _dtypes.issubdtype(dtype, _dtypes.extended):
        return None
    dtype = np.dtype(dtype)
    if dtype.name in _NAMED_DLPACK:
        return _NAMED_DLPACK[dtype.name]
    if dtype.kind not in _DLPACK_CODES or (dtype.kind == "b" and dtype.itemsize != 1):
        return None
    return _DLPACK_CODES[dtype.kind], 8 * dtype.itemsize


def is_keys(dtype: Any) -> bool:
    """Whether this is the dtype of typed random keys."""
    return bool(_dtypes.issubdtype(dtype, _dtypes.prng_key))


def stored_aval(aval: Any) -> Any:
    """The shape and dtype of the memory of a value: for typed random keys that of their data."""
    return _core.physical_aval(aval) if is_keys(aval.dtype) else aval


def stored(value: Any) -> Any:
    """The array that holds the data of typed random keys; anything else as it is."""
    return value._base_array if isinstance(value, _prng.PRNGKeyArray) else value


def as_keys(value: Any, aval: Any) -> Any:
    """The operand of an operation that reads typed random keys, given their data or them."""
    if value.dtype == aval.dtype:
        return value
    return _prng.random_wrap(value, impl=aval.dtype._impl)


def as_stored(value: Any) -> Any:
    """The data of typed random keys, inside an operation; anything else as it is."""
    return _prng.random_unwrap(value) if is_keys(value.dtype) else value


def importer(device: jax.Device) -> tuple[Callable[..., jax.Array], tuple[Any, ...]]:
    """A function from a DLPack capsule to an array on `device` that may be donated.

    Returned as the function and what it takes after the capsule, for callers in C++.
    """
    load = _jax.dlpack_managed_tensor_to_buffer
    if device.platform == "cpu":
        return load, (device, None, True)
    # Elsewhere a plain view is mutable. No stream: whatever was enqueued before comes before it.
    kind = dlpack_device(device)[0]
    if _jaxlib_extension_version >= 467:
        return load, (device, None, None, kind)
    return load, (device, None, None)


def zero_bytes(count: int, device: jax.Device) -> jax.Array:
    """An array of this many bytes on the device, whatever trace is current."""
    with _core.set_current_trace(_core.eval_trace):
        array: jax.Array = jax.numpy.zeros(count, jax.numpy.uint8, device=device)
        array.block_until_ready()
        return array


def disable_async_dispatch() -> None:
    """Makes CPU operations run in order on the caller's thread, if the backend is not up yet."""
    if not _xla_bridge.backends_are_initialized():
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def _shield_from_signals() -> None:
    """Lets no handler of a signal run where XLA computes (see cc/python/guard/signal_stack.h).

    XLA's own threads take no signals, if the backend is not up yet; this one runs handlers on a
    stack of their own, as do other threads from their first call on.
    """
    ensure_signal_stack()
    registered = _xla_bridge._backend_factories.get("cpu")
    if registered is None or _xla_bridge.backends_are_initialized():
        return
    make = registered.factory

    def made() -> Any:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        try:
            return make()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    shielded = dataclasses.replace(registered, factory=made)
    _xla_bridge._backend_factories["cpu"] = shielded


# What a thread does itself: to block it would end the process without a word.
_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}


def runs_synchronously(device: jax.Device) -> bool:
    """Whether an operation is done when its call returns.

    The flag is read when the CPU backend starts; coop_jax clears it on import. Where something else
    had started the backend before, the flag may say less than the truth, so that is not trusted.
    """
    return device.platform == "cpu" and _flag_was_cleared_in_time


def compiling() -> contextlib.AbstractContextManager[None]:
    """A context in which compiled operations run compiled, also where the user disabled `jit`.

    Else what they return would lie anywhere but in the pool.
    """
    if not _config.disable_jit.value:
        return _NOTHING
    context: contextlib.AbstractContextManager[None] = jax.disable_jit(False)
    return context


_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def replace_buffer(target: jax.Array, source: jax.Array) -> None:
    """Lets `target` (any holder of it) own the memory of `source`; its old memory is freed.

    Memory of which views remain is freed with them, but not held by JAX any more.
    """
    old = uncommitted(target)
    like = committed(source) if is_committed(target) else uncommitted(source)
    target._replace_with(like)  # type: ignore[attr-defined]
    old.delete()


def with_aval(
    value: jax.Array, *, weak_type: bool, committed: bool, shape: tuple[int, ...], dtype: Any
) -> jax.Array:
    """The same memory as a new array object with this weak type and commitment.

    `dtype` may be that of typed random keys, for an array of their data.
    """
    if is_keys(dtype):
        data = stored(value)
        base = with_aval(
            data, weak_type=False, committed=committed, shape=data.shape, dtype=data.dtype
        )
        keys: jax.Array = _prng.PRNGKeyArray(dtype._impl, base)
        return keys
    assert isinstance(value, _array.ArrayImpl)
    aval = aval_like(shape, dtype, weak_type)
    return _array.ArrayImpl(aval, value.sharding, [value], committed=committed, _skip_checks=True)


@functools.lru_cache(maxsize=4096)
def aval_like(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> Any:
    """The abstract value of an array; the same object for the same kind."""
    return _core.ShapedArray(shape, dtype, weak_type=weak_type)


def as_user_sees(value: jax.Array, aval: Any) -> jax.Array:
    """Typed random keys for an array of their data; any other array as it is."""
    if not is_keys(aval.dtype):
        return value
    return with_aval(
        value,
        weak_type=False,
        committed=is_committed(stored(value)),
        shape=aval.shape,
        dtype=aval.dtype,
    )


def committed(value: jax.Array) -> jax.Array:
    """The same memory as an array that was placed on its device explicitly."""
    return with_aval(value, weak_type=False, committed=True, shape=value.shape, dtype=value.dtype)


def uncommitted(value: jax.Array) -> jax.Array:
    """The same memory as an array that any compiled operation takes.

    Of committed arrays JAX 0.10 demands the layout that an operation was compiled for; those of
    types of fewer than 8 bits have it, but say another.
    """
    return with_aval(value, weak_type=False, committed=False, shape=value.shape, dtype=value.dtype)


def is_committed(value: jax.Array) -> bool:
    """Whether the array was placed on its device explicitly."""
    return bool(value.committed) if hasattr(value, "committed") else False


_backend_was_up = _xla_bridge.backends_are_initialized()
disable_async_dispatch()
_shield_from_signals()
_flag_was_cleared_in_time = not _backend_was_up or not bool(
    jax.config._read("jax_cpu_enable_async_dispatch")
)


def address_of(value: jax.Array) -> int:
    """The address of an array's memory on its device."""
    return int(value.unsafe_buffer_pointer())


def lies_as(value: jax.Array, nbytes: int) -> bool:
    """Whether an array is so many bytes in row-major order, as a slot of its shape is."""
    layout = value.format.layout  # type: ignore[attr-defined]
    return (
        value.on_device_size_in_bytes() == nbytes
        and layout.major_to_minor == tuple(range(value.ndim))
        and not layout.tiling
    )


def wait(value: Any) -> None:
    """Waits until the contents are there.

    An operation on an array that is still being made (a NumPy array on its way to the device) would
    run behind the caller, and so would everything after it.
    """
    if not hasattr(value, "is_ready") or not value.is_ready():  # typed random keys cannot say
        value.block_until_ready()


def wait_for_launch(result: jax.Array) -> None:
    """Waits for what made an array, given one of its results.

    XLA has one event for all results of an execution; to ask each of ten takes half as long again
    on a GPU.
    """
    result.block_until_ready()


def drop_numpy_view(value: jax.Array) -> bool:
    """Lets go of the NumPy view that JAX caches in an array; False where the user holds it too.

    XLA does not write over memory that a NumPy view shares: it copies instead. (What JAX caches on
    a GPU, and in newer versions on CPU, is a copy, and may stay.)
    """
    value = stored(value)
    view = getattr(value, "_npy_value", None)
    if view is None or view.ctypes.data != address_of(value):
        return True
    # Two references: the array's own and the local variable (plus getrefcount's argument).
    if sys.getrefcount(view) > 3:
        return False
    try:
        value._npy_value = None  # type: ignore[attr-defined]
    except TypeError:  # newer versions know no way back
        return False
    return True


def caching_all() -> contextlib.AbstractContextManager[Any]:
    """What is compiled in here goes into JAX's persistent cache, if there is one, however small.

    JAX keeps what takes a second to compile; the operations of a program are many that take less.
    """
    context: contextlib.AbstractContextManager[Any] = (
        _config.persistent_cache_min_compile_time_secs(0.0)
    )
    return context
