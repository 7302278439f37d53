"""JAX's configuration, as far as what is traced and compiled depends on it.

Model: `jax.jit` traces again where its trace context is another one (64-bit types, random numbers,
promotion, matrix precision, default device, meshes...), and compiles again where the compiler's
effort is. A `Context` is one such state; of equal states there is one object, so that a call in the
state of the last one is told by identity.
Thread rule: the state is that of the calling thread. Cost: `current` takes half a microsecond where
the state is the one it saw last.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import jax
from jax._src import config as _config
from jax._src import pjit as _pjit
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import lax as _lax

_trace_context = _config.trace_context
_EFFORTS = [  # of older versions
    getattr(_config, name)
    for name in ("exec_time_optimization_effort", "memory_fitting_effort")
    if hasattr(_config, name)
]
_optimization, _memory_fitting = _config.optimization_level, _config.memory_fitting_level

# What a kernel does not depend on: it is compiled for the device of its cache, always compiled, and
# never mapped.
_NOT_COMPILED = frozenset({"jax_default_device", "jax_disable_jit", "axis_env_state"})


# The operations of every day, which mean the same in any state: what they compute is in their
# parameters, and their lowering reads no setting.
_EVERYDAY = (
    "abs add and broadcast_in_dim concatenate convert_element_type div dot_general eq exp ge gt"
    " integer_pow le log lt max min mul ne neg not or pow reduce_max reduce_min reduce_sum reshape"
    " rsqrt select_n sign sqrt square squeeze sub tanh transpose xor"
)
INDEPENDENT = frozenset({_pjit.jit_p, *(getattr(_lax, f"{name}_p") for name in _EVERYDAY.split())})


class Context:
    """A state of JAX's configuration; equal to itself alone.

    Attributes:
      values: of JAX's trace context.
      levels: of the compiler's effort.
    """

    __slots__ = ("__weakref__", "_compiled", "levels", "values")

    def __init__(self, values: tuple[Any, ...], levels: tuple[Any, ...]):
        self.values, self.levels = values, levels
        self._compiled = (_without_device(values), levels)

    def of_kernels(self) -> Hashable:
        """What of it compiled operations depend on, with settings that `jax.jit` does not ask.

        A jitted function keeps what it compiled under other efforts; kernels are for all functions.
        """
        return (*self._compiled, *(state.value for state in _EFFORTS))


def _without_device(values: tuple[Any, ...]) -> tuple[Any, ...]:
    names = getattr(_config, "trace_context_names", lambda: ())()
    if len(names) != len(values):
        return values
    return tuple(v for name, v in zip(names, values, strict=True) if name not in _NOT_COMPILED)


_interned = functools.lru_cache(maxsize=256)(Context)
_last = _interned(_trace_context(), (_optimization.value, _memory_fitting.value))


def current() -> Context:
    """The state of now."""
    global _last
    last = _last
    values = _trace_context()
    if (
        values == last.values
        and _optimization.value == last.levels[0]
        and _memory_fitting.value == last.levels[1]
    ):
        return last
    _last = _interned(values, (_optimization.value, _memory_fitting.value))
    return _last


def other_than(context: Context) -> Context | None:
    """The state of now if it is another one."""
    now = current()
    return None if now is context else now


def jit_is_disabled() -> bool:
    """Whether the user has switched `jax.jit` off here (`jax.disable_jit`)."""
    return bool(_config.disable_jit.value)


def default_device() -> jax.Device:
    """The device that `jax.jit` runs on where nothing says otherwise: `jax.default_device`."""
    device: jax.Device = _pxla.get_default_device()
    return device
