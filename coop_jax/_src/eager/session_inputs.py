"""What a session reads from outside: arguments and arrays closed over, as values.

Model: at the start every block of the pool that somebody holds is a foreign storage; an array that
lies there is a value over it. Any other array is a storage outside the pool, counted.
Invariants: the session holds memory by array objects of its own, so that the caller's may go at any
time; the same array is the same value as long as the caller has it. An array that was donated is
nobody's but the session's.
Thread rule: the session's. Cost: O(1) per array.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from coop_jax import _core
from coop_jax._src.compat import arrays, jaxprs, transfers
from coop_jax._src.eager.values import Value, key_of
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.ir import cost_model

# Makes room for bytes outside the pool, or raises.
Reserve = Callable[[int], None]


class Externals:
    """Values of arrays from outside."""

    __slots__ = ("_core", "_foreign", "_forget", "_known", "_memory")

    def __init__(self, core: _core.SessionCore, memory: PoolMemory, donated: Sequence[jax.Array]):
        self._core = core
        self._memory = memory
        known: dict[int, tuple[weakref.ref[Any], Value]] = {}
        self._known = known
        # One for all of them: Python's collector looks at every closure.
        self._forget: Callable[[Any], Any] = lambda ref: known.pop(ref.key, None)
        self._foreign: dict[int, Value] = {}
        memory.pool.drain_freed()
        given_up = set(map(memory.offset_of, donated))
        for offset, nbytes in memory.pool.live_blocks():
            mine = offset in given_up and memory.pool.live_count(offset) == 1
            storage = core.add_foreign(offset, nbytes, mine)
            self._foreign[offset] = core.new_value(storage, None, -1)

    def value_of(self, x: Any, reserve: Reserve) -> Value:
        """A value for an array, NumPy array or scalar."""
        known = self._known.get(id(x))
        if known is not None and known[0]() is x:
            return known[1]
        core = self._core
        array = transfers.on_device(x, self._memory.device) if isinstance(x, jax.Array) else x
        offset = self._memory.offset_of(array)
        aval = jaxprs.aval_of(x)
        key = key_of(aval)
        foreign = self._foreign.get(offset) if offset >= 0 else None
        if foreign is not None:
            value = core.alias(foreign.storage, aval, key)
            if not core.holds(foreign.storage):
                core.put(foreign.storage, self._own(array), key, offset)
        else:
            nbytes = cost_model.nbytes(aval)
            if core.live_operations:  # before that there is nothing to make room of
                reserve(-(-nbytes // 64) * 64)
            storage = core.add_outside(nbytes)
            core.note_outside(storage, nbytes)
            value = core.new_value(storage, aval, key)
            core.put(storage, self._own(array), key)
        if isinstance(x, jax.Array):
            self._known[id(x)] = (weakref.KeyedRef(x, self._forget, id(x)), value)
        return value

    def donated_value_of(self, x: jax.Array, reserve: Reserve) -> Value:
        """As `value_of`, but the array is given up: deleted when nothing reads it any more.

        Nobody else may read its memory.
        """
        offset = self._memory.offset_of(x)
        value = self.value_of(x, reserve)
        self._known.pop(id(x), None)
        if offset >= 0:
            del self._foreign[offset]
        self._core.donate(value.storage)
        return value

    def _own(self, x: Any) -> Any:
        """The same memory as an object of the session's own, so that `x` itself may go."""
        if not isinstance(x, jax.Array):
            x = np.array(x, jaxprs.aval_of(x).dtype)  # a copy: the caller may write into it
            if not x.ndim:
                return x
            x = transfers.put(x, self._memory.device)
            return x if arrays.dlpack_type(x.dtype) else arrays.uncommitted(x)
        if x.is_deleted():
            raise RuntimeError(f"an array of shape {x.shape} that the function reads was deleted")
        arrays.wait(x)
        x = arrays.stored(x)
        if arrays.dlpack_type(x.dtype) is None:
            return arrays.uncommitted(x)
        return arrays.with_aval(
            x, weak_type=False, committed=arrays.is_committed(x), shape=x.shape, dtype=x.dtype
        )

    def storages(self) -> set[int]:
        """Those of the values, as far as somebody outside still has the arrays; for messages."""
        known = (value for _, value in list(self._known.values()))
        return {value.storage for value in (*self._foreign.values(), *known)}

    def clear(self) -> None:
        """Lets go of everything; the session has ended."""
        self._known.clear()
        self._foreign.clear()
