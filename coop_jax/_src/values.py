"""Values of a session, and how operands of an operation look to the caches.

A `Value` is the one handle of a result: it holds one reference in the engine. When the last Python
reference to it goes, that is noted, and the session tells the engine before the next operation.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from coop_jax._src.compat import jaxprs
from coop_jax._src.equations import LiteralValue


class Value:
    """One value of a session: a shape and dtype over a storage."""

    __slots__ = ("_dead", "aval", "key", "storage")

    def __init__(self, dead: collections.deque[int], storage: int, aval: Any, key: Hashable = None):
        self._dead = dead
        self.storage = storage
        self.aval = aval
        self.key = key if key is not None else key_of(aval)

    def __del__(self) -> None:
        # Only noted here: this may run in the middle of anything, even of an engine call.
        self._dead.append(self.storage)


def key_of(aval: Any) -> Hashable:
    """What compiled operations depend on of a value."""
    return None if aval is None else (aval.shape, aval.dtype, True)


def plain(x: Any) -> Any:
    """An operand as it is outside a kernel: a literal becomes a scalar."""
    return np.asarray(x.value, x.aval.dtype) if isinstance(x, LiteralValue) else x


def aval_of(x: Any) -> Any:
    """The abstract value of an operand of any kind."""
    return x.aval if isinstance(x, (Value, LiteralValue)) else jaxprs.aval_of(x)


def operand_key(x: Any) -> Hashable:
    """What a compiled operation depends on of an operand."""
    kind = type(x)
    if kind is Value:
        return x.key  # type: ignore[no-any-return]
    if kind is LiteralValue:
        return jaxprs.literal_key(x.value), str(x.aval.dtype)
    aval = jaxprs.aval_of(x)
    return aval.shape, aval.dtype, False


def repetitions(operands: Sequence[Any]) -> Hashable:
    """Which operands are the same value: a kernel takes each once."""
    if len(operands) < 2:
        return None
    if len(operands) == 2:
        return (0, 0) if operands[0] is operands[1] else None
    ids = [id(x) for x in operands]
    return None if len(set(ids)) == len(ids) else tuple(ids.index(i) for i in ids)
