"""A session: operations executed as they are called, over the engine that plans them.

The eager front end gives it primitives; programs that branch on values give it their jaxprs. Each
operation goes to the engine, which answers with what must happen first (evictions, recomputations)
and where the outputs go; the session carries that out at once.

Invariants: a `Value` holds one reference in the engine; when the last Python reference to it goes,
the engine learns it before the next operation. An array is held for a storage exactly while that is
resident. When an operation fails, the engine is told how far its actions were carried out.
Thread rule: one thread, under the runtime's lock.
"""

from __future__ import annotations

import collections
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax import _core
from coop_jax._src import costs, interpreter, primitives
from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.executor import launch
from coop_jax._src.holdings import Holdings
from coop_jax._src.interrupts import DeferredInterrupts
from coop_jax._src.kernels import Executable
from coop_jax._src.preparing import Prepared, Preparer
from coop_jax._src.runtime import Runtime
from coop_jax._src.values import Value


class Session:
    """Executes operations at once in the pool of a runtime. Used for one call, then closed."""

    def __init__(self, runtime: Runtime, interrupts: DeferredInterrupts | None = None):
        self._interrupts = interrupts
        self._runtime = runtime
        self._memory = runtime.memory()
        self._cache = runtime._cache
        self._preparer = Preparer(runtime._cache, self._memory.device)
        settings = runtime._settings
        self._engine = _core.Engine(
            runtime.capacity_bytes(),
            settings.alignment_bytes,
            settings.policy,
            settings.profile.expensive_seconds_per_byte,
            True,
        )
        self._dead: collections.deque[int] = collections.deque()
        self._held = Holdings(self._memory)
        self._recipes: dict[int, tuple[Executable, tuple[Any, ...], tuple[int, ...]]] = {}
        self._workspace_bytes = max(runtime._workspace_bytes, runtime._counters.workspace_bytes)
        unlimited = runtime.budget_bytes is None
        self._reserved_bytes = runtime.capacity_bytes() if unlimited else 0
        self._peak_bytes = 0
        self._externals: dict[int, tuple[weakref.ref[Any], Value]] = {}
        self._memory.pool.drain_freed()
        self._foreign: dict[int, Value] = {}
        for offset, nbytes in self._memory.pool.live_blocks():
            storage = self._engine.add_foreign(offset, nbytes, False)
            self._foreign[offset] = Value(self._dead, storage, None)

    # --- Values in and out ---

    def value_of(self, x: Any) -> Value:
        """A value for an array, NumPy array or scalar from outside."""
        known = self._externals.get(id(x))
        if known is not None and known[0]() is x:
            return known[1]
        offset = self._memory.offset_of(x)
        aval = jaxprs.aval_of(x)
        foreign = self._foreign.get(offset) if offset >= 0 else None
        if foreign is not None:
            value = Value(self._dead, foreign.storage, aval)
            self._held.note_shapes(foreign.storage)
            self._engine.retain(foreign.storage)
            self._held.put(foreign.storage, self._own(x))
        else:
            nbytes = costs.nbytes(aval)
            storage = self._engine.add_outside(nbytes)
            self._held.note_outside(storage, nbytes)
            value = Value(self._dead, storage, aval)
            self._held.put_new(storage, self._own(x))
        if isinstance(x, jax.Array):
            key = id(x)
            gone = self._externals
            self._externals[key] = (weakref.ref(x, lambda _: gone.pop(key, None)), value)
        return value

    def donated_value_of(self, x: jax.Array) -> Value:
        """As `value_of`, but the array is given up: deleted when nothing reads it any more."""
        offset = self._memory.offset_of(x)
        if offset >= 0 and (
            self._memory.pool.live_count(offset) > 1 or not arrays.drop_numpy_view(x)
        ):
            return self.value_of(x)
        value = self.value_of(x)
        self._externals.pop(id(x), None)
        if offset >= 0:
            del self._foreign[offset]
        self._held.donate(value.storage)
        return value

    def as_value(self, x: Any) -> Value:
        """A value, whatever a jaxpr returned: a value, an argument or a constant."""
        return x if type(x) is Value else self.value_of(x)

    def _own(self, x: Any) -> Any:
        """The same memory as an object of the session's own, so that `x` itself may go."""
        if not isinstance(x, jax.Array):
            x = np.asarray(x, jaxprs.aval_of(x).dtype)
            return arrays.put(x, self._memory.device) if x.ndim else x
        if x.is_deleted():
            raise RuntimeError(f"an array of shape {x.shape} that the function reads was deleted")
        arrays.wait(x)
        return arrays.with_aval(
            x, weak_type=False, committed=arrays.is_committed(x), shape=x.shape, dtype=x.dtype
        )

    def take(self, values: Sequence[Value]) -> list[jax.Array]:
        """Brings values back, for good, as arrays that outlive the session."""
        out = []
        for value in values:
            self._bring(value)
            state = self._engine.is_permanent(value.storage)
            if not state and not self._held.is_outside(value.storage):
                self._held.drop_all(self._engine.make_permanent(value.storage))
            array = self._held.array(value.storage, value.aval)
            if isinstance(array, jax.Array):
                out.append(self._memory.lent(array, value.aval))
            else:
                out.append(jnp.asarray(array))
        return out

    def concrete(self, value: Value) -> jax.Array:
        """The contents, as an array that does not depend on the pool."""
        self._bring(value)
        array = self._held.array(value.storage, value.aval)
        if self._held.is_outside(value.storage):
            return array if isinstance(array, jax.Array) else jnp.asarray(array)
        return jnp.array(np.asarray(array), copy=True)

    def release_hint(self, value: Value) -> None:
        """The value is most likely not read again: its memory goes, its recipe stays."""
        storage = value.storage
        if self._held.hint(storage) < self._engine.refs_of(storage):
            return  # a view of it may still be read
        self._collect()
        if self._engine.discard(storage):
            self._held.drop_all(self._engine.freed())

    # --- Running ---

    def apply(
        self,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
    ) -> list[Value]:
        """Runs a primitive on values, arrays and scalars."""
        name = primitive.name
        if name in primitives.CONTROL_FLOW:
            results = interpreter.control_flow(self, name, operands, params)
        else:
            prepared = self._preparer.prepare(primitive, operands, params, None, ())
            if prepared is not None:
                return self.run(prepared, operands)
            body = jaxprs.call_body(primitive, params)
            assert body is not None
            results = interpreter.call(self, body[0], body[1], list(operands))
        return [self.as_value(x) for x in results]

    # --- Carrying out ---

    def prepare(self, eqn: Any, operands: Sequence[Any]) -> Prepared | None:
        """What to run for an equation; None for a call that is to be taken apart."""
        return self._preparer.prepare(
            eqn.primitive, operands, eqn.params, eqn.ctx, eqn.effects, eqn
        )

    def function(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """Runs a small JAX function of arrays as one operation with one result."""
        return self.run(self._preparer.function(function, operands), operands)[0]

    def run(self, prepared: Prepared, operands: Sequence[Any]) -> list[Any]:
        """Runs a prepared operation: engine first, then what it asks for, then the operation."""
        if prepared.identity:
            first = operands[0]
            if first.aval is prepared.out_avals[0]:
                return [first]
            return [self._alias(first, prepared.out_avals[0])]
        if prepared.view is not None and not self._held.is_outside(operands[0].storage):
            return [self._alias(operands[0], prepared.view)]
        if self._interrupts is not None and not self._held.consumed:
            self._interrupts.check()
        refs: list[Any] = []
        storages: list[int] = []
        held = []  # values made here must not die before the engine has the operation
        for position in prepared.selection:
            x = operands[position]
            if type(x) is not Value:
                if isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.ndim):
                    x = self.value_of(x)
                    held.append(x)
                else:
                    refs.append((x,))  # a scalar: given as it is, every time
                    continue
            storage = x.storage
            refs.append(storage)
            storages.append(storage)
        if self._dead:
            self._collect()
        executable = prepared.executable
        if executable.workspace_bytes > self._workspace_bytes:
            self._count_peak()
            self._workspace_bytes = executable.workspace_bytes
            self._reserve()
            self._engine.reset_peak()  # what the reservation evicted was not beside this workspace
        elif self._held.outside_bytes + self._workspace_bytes > self._reserved_bytes:
            self._reserve()
        try:
            op, outputs, offsets, actions, _ = self._engine.submit(storages, prepared.spec)
        except _core.NoSpaceError as error:
            source = jaxprs.source_of(jaxprs.current_source())
            label = f"operation '{prepared.kernel.label}'"
            raise self._runtime.exceeded(error.failure, label, source) from None
        done = 0
        # Numbers, as far as possible: the garbage collector does not follow tuples of numbers.
        recipe = (executable, tuple(refs), outputs)
        retired = self._engine.retired()
        if retired is not None:
            for old in retired:
                self._recipes.pop(old, None)
        self._recipes[op] = recipe
        try:
            if actions is not None:
                for action in actions:
                    self._act(action)
                    done += 1
            self._run(recipe, offsets, recompute=False, scratch=())
        except BaseException:
            self._engine.abort(done)
            self._held.drop_all(self._engine.forget(op))
            raise
        values = []
        for k, storage in enumerate(outputs):
            aval = prepared.out_avals[k]
            if offsets[k] < 0:
                self._held.note_outside(storage, prepared.out_nbytes[k])
            values.append(Value(self._dead, storage, aval, prepared.out_keys[k]))
        return values

    def _act(self, action: Any) -> None:
        if action[0] == 1:
            recipe = self._recipes[action[1]]
            placements = action[-1]
            self._run(
                recipe,
                [p[1] for p in placements],
                recompute=True,
                scratch=[p[0] for p in placements],
            )
        else:
            self._held.drop(action[1])

    def _run(
        self, recipe: Any, offsets: Sequence[int], *, recompute: bool, scratch: Sequence[int]
    ) -> None:
        executable, refs, outputs = recipe
        memory, held = self._memory, self._held
        specs = executable.slot_specs
        if specs is None:
            specs = executable.slot_specs = [
                (k, memory.spec(executable.kernel.out_avals[k])) for k in executable.slot_results
            ]
        in_avals = executable.kernel.in_avals
        operands = [
            held.array(r, in_avals[n]) if type(r) is int else r[0] for n, r in enumerate(refs)
        ]
        slots = [(offsets[k], spec) for k, spec in specs]
        first = not executable.checked
        begin = time.perf_counter()
        results = launch(executable, slots, operands, (), memory)
        seconds = executable.kernel.cost_seconds if first else time.perf_counter() - begin
        counters = self._runtime._counters
        if recompute:
            counters.recompute_seconds += seconds
            for k, result in zip(executable.order, results, strict=True):
                storage = scratch[k]
                if storage >= 0 and (offsets[k] >= 0 or storage not in self._held):
                    self._held.put(storage, result)
        else:
            counters.compute_seconds += seconds
            for k, result in zip(executable.order, results, strict=True):
                held.put_new(outputs[k], result)

    def _bring(self, value: Value) -> None:
        if value.storage in self._held:
            return
        self._collect()
        try:
            actions = self._engine.materialize(value.storage)
        except _core.NoSpaceError as error:
            raise self._runtime.exceeded(error.failure, "reading a value") from None
        done = 0
        try:
            for action in actions or ():
                self._act(action)
                done += 1
        except BaseException:
            self._engine.abort(done)
            raise

    def _alias(self, value: Value, aval: Any) -> Value:
        self._held.note_shapes(value.storage)
        self._engine.retain(value.storage)
        return Value(self._dead, value.storage, aval)

    # --- Keeping books ---

    def _collect(self) -> None:
        """Tells the engine of values that nothing refers to any more."""
        dead, release, drop = self._dead, self._engine.release, self._held.drop
        while dead:
            gone = release(dead.popleft())
            if gone is not None:
                for storage in gone:
                    drop(storage)

    def _reserve(self) -> None:
        """Keeps room for what lies outside the pool; in steps, so that it is seldom asked for."""
        needed = self._held.outside_bytes + self._workspace_bytes
        if needed <= self._reserved_bytes:
            return
        step = min(1 << 16, self._runtime.capacity_bytes() >> 8)
        for target in (needed + step, needed):
            try:
                actions = self._engine.reserve(target)
            except _core.NoSpaceError as error:
                failure = error.failure
                continue
            for action in actions or ():
                self._act(action)
            for offset, nbytes in self._engine.reserved_blocks():
                self._memory.pool.discard(offset, nbytes)
            self._reserved_bytes = target
            return
        raise self._runtime.exceeded(failure, "arguments, small values and workspace")

    def _count_peak(self) -> None:
        """Notes the peak so far, which had the workspace so far beside it."""
        peak = self._engine.stats()["peak_in_use_bytes"] + self._workspace_bytes
        self._peak_bytes = max(self._peak_bytes, peak)
        self._engine.reset_peak()

    def close(self) -> None:
        """Ends the session: everything that was not taken goes."""
        self._count_peak()
        stats = self._engine.stats()
        self._runtime.count(
            stats,
            peak_bytes=self._peak_bytes,
            outside_bytes=self._held.peak_outside_bytes,
            workspace_bytes=self._workspace_bytes,
        )
        self._held.clear()
        self._recipes.clear()
        self._externals.clear()
        self._foreign.clear()
        self._dead.clear()
