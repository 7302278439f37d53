"""Lowered programs on disk, beside JAX's persistent compilation cache.

A function that was traced and lowered once is kept as `jax.export` writes it, and is called in
another process without tracing what it was made of. JAX keeps what XLA compiles; its cache tells
programs by their text, and so does `key_of`: of equal text and constants, under the same versions,
on the same kind of device, they are the same program.

Known of both supported versions of JAX (0.10 to 0.12): the text of a lowered program has neither
source lines nor the values of constants that JAX passes as arguments; memory and results of an
exported program are those of the function. What calls back into Python cannot be exported.
Thread rule: functions of their arguments and JAX's configuration.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jaxlib import version as jaxlib_version

from coop_jax._src.compat import arrays, jaxprs, refs

# The text of a program holds its constants, and so does what is kept of it.
_MOST_CONSTANT_BYTES = 16 << 20


def directory() -> pathlib.Path | None:
    """Where JAX keeps what it compiles; None where it does not, or elsewhere than in files."""
    name = _setting("jax_compilation_cache_dir")
    if not name or "://" in str(name) or not _setting("jax_enable_compilation_cache"):
        return None
    if _setting("jax_debug_nans") or _setting("jax_debug_infs"):
        return None  # JAX looks into the function for what makes them
    return pathlib.Path(name)


def least_seconds() -> float:
    """What takes less time to compile JAX does not keep."""
    return float(_setting("jax_persistent_cache_min_compile_time_secs"))


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def key_of(
    traced: jax.stages.Traced, lowered: jax.stages.Lowered, device: jax.Device, *others: str
) -> str | None:
    """A digest that tells a program and what else it is made with; None if it is not to be kept.

    Args:
      traced: the program, as JAX traced it.
      lowered: the same, lowered.
      device: one that it runs on.
      *others: what else decides.
    """
    constants = list(_constants(traced.jaxpr))
    if not all(map(_is_plain, constants)):
        return None
    if sum(c.nbytes for c in constants) > _MOST_CONSTANT_BYTES:
        return None
    digest = hashlib.sha256()
    environment = (os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    backend = device.client.platform_version
    versions = (jax.__version__, jaxlib_version.__version__, backend, device.device_kind)
    for text in (*versions, *environment, *others, lowered.as_text()):
        digest.update(hashlib.sha256(text.encode()).digest())
    for constant in constants:
        digest.update(f"{constant.dtype} {constant.shape}".encode())
        digest.update(np.ascontiguousarray(constant).tobytes())
    return digest.hexdigest()


def exported(function: Callable[..., Any], args: Sequence[Any], device: jax.Device) -> bytes | None:
    """A function of arrays as bytes; None where JAX cannot write it.

    Args:
      function: to be traced.
      args: arrays or `jax.ShapeDtypeStruct`s.
      device: one that it will run on.
    """
    try:
        program = export.export(jax.jit(function), platforms=[device.platform])(*args)
        return bytes(program.serialize())
    except Exception:  # of many kinds, from callbacks to types without a number in its format
        return None


def loaded(serialized: bytes) -> Callable[..., Any]:
    """The function that `exported` wrote."""
    call: Callable[..., Any] = export.deserialize(bytearray(serialized)).call
    return call


def _constants(closed: Any) -> Iterator[Any]:
    """Constants of a program and of those in it."""
    jaxpr, constants = jaxprs.open_closed(closed)
    yield from constants
    for equation in jaxpr.eqns:
        for inner in jaxprs.bodies(equation.params):
            yield from _constants(inner)


def _is_plain(constant: Any) -> bool:
    """Whether this is an array of numbers that can be read here."""
    if isinstance(constant, jax.Array):
        is_numbers = not (
            refs.is_ref_aval(jaxprs.aval_of(constant)) or arrays.is_keys(constant.dtype)
        )
        return is_numbers and constant.is_fully_addressable and not constant.is_deleted()
    return isinstance(constant, (np.ndarray, np.generic))
