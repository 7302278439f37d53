"""Values of a session, and how operands of an operation look to the caches.

A `Value` is the one handle of a result: it holds one reference in the engine. When the last Python
reference to it goes, that is noted, and the session tells the engine before the next operation.
Shapes and dtypes are known by number, process-wide, so that looking an operation up hashes numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import numpy as np

from coop_jax import _core
from coop_jax._src.compat import equation_keys, jaxprs
from coop_jax._src.ir.equations import LiteralValue
from coop_jax._src.ir.refs import RefCell
from coop_jax._src.ir.stacks import Stack

Value = _core.Value

_numbers: dict[Hashable, int] = {}
_avals: list[Any] = []
_lock = threading.Lock()


def key_of(aval: Any) -> int:
    """The number of a shape, dtype and weak type; -1 for none."""
    if aval is None:
        return -1
    kind = (aval.shape, aval.dtype, getattr(aval, "weak_type", False))
    found = _numbers.get(kind)
    if found is None:
        with _lock:
            found = _numbers.get(kind)
            if found is None:
                _avals.append(aval)
                found = _numbers[kind] = len(_avals) - 1
    return found


def aval_of_key(key: int) -> Any:
    """An abstract value with that number."""
    return _avals[key]


def plain(x: Any) -> Any:
    """An operand as it is outside a kernel: a literal becomes a scalar."""
    return np.asarray(x.value, x.aval.dtype) if isinstance(x, LiteralValue) else x


def aval_of(x: Any) -> Any:
    """The abstract value of an operand of any kind."""
    return x.aval if isinstance(x, (Value, LiteralValue, Stack)) else jaxprs.aval_of(x)


def operand_key(x: Any) -> Hashable:
    """What a compiled operation depends on of an operand that is no value."""
    if type(x) is LiteralValue:
        return equation_keys.literal_key(x.value), str(x.aval.dtype)
    if type(x) in jaxprs.WEAK_LITERALS:
        return (), x.dtype, True  # as below, sooner
    if type(x) in (Stack, RefCell):
        return type(x).__name__  # nothing is prepared for these: see `interpreter.apply`
    aval = jaxprs.aval_of(x)
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)
