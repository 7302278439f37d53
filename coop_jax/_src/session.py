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
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax import _core
from coop_jax._src import costs, flattening, primitives
from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.executor import launch
from coop_jax._src.interrupts import DeferredInterrupts
from coop_jax._src.kernels import OUTSIDE, SLOT, Executable, Kernel, KernelBuilder, LiteralValue
from coop_jax._src.flattening import SMALL_BYTES
from coop_jax._src.runtime import Runtime

_PREPARED_KEPT = 8192


class Value:
    """One value of a session: a shape and dtype over a storage."""

    __slots__ = ("_dead", "aval", "storage")

    def __init__(self, dead: collections.deque[int], storage: int, aval: Any):
        self._dead = dead
        self.storage = storage
        self.aval = aval

    def __del__(self) -> None:
        # Only noted here: this may run in the middle of anything, even of an engine call.
        self._dead.append(self.storage)


class _Prepared:
    """A primitive on operands of given shapes: what to run and what to tell the engine."""

    __slots__ = ("executable", "identity", "kernel", "out_avals", "selection", "spec", "view")

    def __init__(self) -> None:
        self.view: Any = None  # the result's aval, where it is a view of the first operand
        self.identity = False  # the result is the first operand
        self.kernel: Kernel
        self.executable: Executable
        self.spec: _core.OperationSpec
        self.out_avals: tuple[Any, ...] = ()
        self.selection: tuple[int, ...] = ()  # which operands the kernel takes, in its order


class Session:
    """Executes operations at once in the pool of a runtime. Used for one call, then closed."""

    def __init__(self, runtime: Runtime, interrupts: DeferredInterrupts | None = None):
        self._interrupts = interrupts
        self._consumed = False  # a donated array is gone: from here on the call has to finish
        self._runtime = runtime
        self._memory = runtime.memory()
        self._cache = runtime._cache
        settings = runtime._settings
        self._engine = _core.Engine(
            runtime.capacity_bytes(),
            settings.alignment_bytes,
            settings.policy,
            settings.profile.expensive_seconds_per_byte,
            True,
        )
        self._dead: collections.deque[int] = collections.deque()
        self._arrays: dict[int, Any] = {}
        self._views: dict[int, dict[Hashable, jax.Array]] = {}
        self._recipes: dict[int, tuple[Executable, tuple[Any, ...], tuple[int, ...]]] = {}
        self._outside: dict[int, int] = {}
        self._hints: dict[int, int] = {}
        self._donated: set[int] = set()
        self._outside_bytes = 0
        self._workspace_bytes = max(runtime._workspace_bytes, runtime._counters.workspace_bytes)
        self._reserved_bytes = 0
        self._peak_outside = 0
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
            self._engine.retain(foreign.storage)
            self._arrays[foreign.storage] = self._own(x)
        else:
            nbytes = costs.nbytes(aval)
            storage = self._engine.add_outside(nbytes)
            self._note_outside(storage, nbytes)
            value = Value(self._dead, storage, aval)
            self._arrays[storage] = self._own(x)
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
        self._donated.add(value.storage)
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
            if not state and value.storage not in self._outside:
                self._drop(self._engine.make_permanent(value.storage))
            array = self._array(value.storage, value.aval)
            if isinstance(array, jax.Array):
                out.append(self._memory.lent(array, value.aval))
            else:
                out.append(jnp.asarray(array))
        return out

    def concrete(self, value: Value) -> jax.Array:
        """The contents, as an array that does not depend on the pool."""
        self._bring(value)
        array = self._array(value.storage, value.aval)
        if value.storage in self._outside:
            return array if isinstance(array, jax.Array) else jnp.asarray(array)
        return jnp.array(np.asarray(array), copy=True)

    def release_hint(self, value: Value) -> None:
        """The value is most likely not read again: its memory goes, its recipe stays."""
        storage = value.storage
        hints = self._hints[storage] = self._hints.get(storage, 0) + 1
        if hints < self._engine.refs_of(storage):
            return  # a view of it may still be read
        self._collect()
        if self._engine.discard(storage):
            self._drop(self._engine.freed())

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
            results = self._control_flow(name, operands, params)
        else:
            prepared = self._prepare(primitive, operands, params, None, ())
            if prepared is not None:
                return self._apply_prepared(prepared, operands)
            body = jaxprs.call_body(primitive, params)
            assert body is not None
            results = self.call(body[0], body[1], list(operands))
        return [self.as_value(x) for x in results]

    def call(self, jaxpr: Any, constants: Sequence[Any], operands: list[Any]) -> list[Any]:
        """Runs a jaxpr equation by equation; values go at their last use.

        The list of operands is emptied, so that it does not keep values alive.
        """
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))
        operands.clear()
        last, used = _last_uses(jaxpr)
        for eqn, dead in zip(jaxpr.eqns, last, strict=True):
            ins = [
                LiteralValue(x.val, x.aval) if isinstance(x, jaxprs.Literal) else env[x]
                for x in eqn.invars
            ]
            for variable in dead:
                del env[variable]
            results = self._equation(eqn, ins)
            ins.clear()
            for variable, result in zip(eqn.outvars, results, strict=True):
                if variable in used:
                    env[variable] = result
            results.clear()
        return [
            _plain(LiteralValue(x.val, x.aval)) if isinstance(x, jaxprs.Literal) else env[x]
            for x in jaxpr.outvars
        ]

    def _equation(self, eqn: Any, operands: list[Any]) -> list[Any]:
        primitive, params = eqn.primitive, eqn.params
        if primitive.name in primitives.CONTROL_FLOW:
            plain = [_plain(x) for x in operands]
            operands.clear()
            return self._control_flow(primitive.name, plain, params)
        prepared = self._prepare(primitive, operands, params, eqn.ctx, eqn.effects, eqn)
        if prepared is None:
            jaxpr, constants = jaxprs.call_body(primitive, params) or (None, ())
            plain = [_plain(x) for x in operands]
            operands.clear()
            return self.call(jaxpr, constants, plain)
        return self._apply_prepared(prepared, operands)

    def _control_flow(self, name: str, given: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        operands = list(given)
        if isinstance(given, list):
            given.clear()
        if name == "cond":
            index = int(self._scalar(operands[0]))
            branches = params["branches"]
            body, constants = jaxprs.open_closed(branches[min(max(index, 0), len(branches) - 1)])
            arguments = operands[1:]
            operands.clear()
            return self.call(body, constants, arguments)
        if name == "while":
            count, body_count = params["cond_nconsts"], params["body_nconsts"]
            test, test_constants = jaxprs.open_closed(params["cond_jaxpr"])
            body, constants = jaxprs.open_closed(params["body_jaxpr"])
            test_fixed, fixed = operands[:count], operands[count : count + body_count]
            carry = list(operands[count + body_count :])
            operands.clear()
            while bool(self._scalar(self.call(test, test_constants, [*test_fixed, *carry])[0])):
                arguments = [*fixed, *carry]
                carry.clear()
                carry = self.call(body, constants, arguments)
            return carry
        return self._scan(operands, params)

    def _scan(self, operands: list[Any], params: dict[str, Any]) -> list[Any]:
        scan = jaxprs.scan_parts(params)
        fixed = operands[: scan.num_consts]
        carry = list(operands[scan.num_consts : scan.num_consts + scan.num_carry])
        stacked = operands[scan.num_consts + scan.num_carry :]
        operands.clear()
        columns: list[list[Any]] = [[] for _ in scan.body.outvars[scan.num_carry :]]
        order = range(scan.length)
        for i in reversed(order) if scan.reverse else order:
            xs = [self._function(_index, [x, np.int32(i)]) for x in stacked]
            arguments = [*fixed, *carry, *xs]
            carry.clear()
            xs.clear()
            outs = self.call(scan.body, scan.constants, arguments)
            carry = outs[: scan.num_carry]
            for column, y in zip(columns, outs[scan.num_carry :], strict=True):
                column.append(y)
            outs.clear()
        results = []
        for column, variable in zip(columns, scan.body.outvars[scan.num_carry :], strict=True):
            if scan.reverse:
                column.reverse()
            if column:
                results.append(self._function(_stack, column))
            else:
                results.append(np.zeros((0, *variable.aval.shape), variable.aval.dtype))
        return [*carry, *results]

    def _scalar(self, x: Any) -> Any:
        return np.asarray(self.concrete(x) if isinstance(x, Value) else x)

    def _function(self, function: Any, operands: Sequence[Any]) -> Any:
        """Runs a small JAX function as one operation."""
        key = (function, tuple(_operand_key(x) for x in operands))
        prepared = self._cache.prepared.get(key)
        if prepared is None:
            avals = [_aval(x) for x in operands]
            prepared = self._finish(self._cache.from_function(function, avals))
            prepared.selection = tuple(range(len(operands)))
            self._cache.prepared[key] = prepared
        return self._apply_prepared(prepared, operands)[0]

    # --- Preparing: once per primitive, parameters and shapes ---

    def _prepare(
        self,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        effects: Any,
        eqn: Any = None,
    ) -> _Prepared | None:
        """What to do for this primitive; None for a call that is to be taken apart."""
        shapes = tuple(_operand_key(x) for x in operands)
        positions = _positions(operands)
        quick: Hashable
        try:
            quick = (primitive, tuple(params.items()), shapes, positions, context)
            known = self._cache.prepared.get(quick, quick)
        except TypeError:
            quick = (primitive, jaxprs.params_key(params), shapes, positions, context)
            known = self._cache.prepared.get(quick, quick)
        if known is not quick:
            found: _Prepared | None = known
            return found
        prepared = self._prepare_new(primitive, operands, params, context, effects, eqn)
        if len(self._cache.prepared) > _PREPARED_KEPT:
            self._cache.prepared.clear()
        self._cache.prepared[quick] = prepared
        return prepared

    def _prepare_new(
        self,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        effects: Any,
        eqn: Any,
    ) -> _Prepared | None:
        body = jaxprs.call_body(primitive, params)
        if body is not None and not flattening.is_group_body(*body):
            return None
        in_avals = [_aval(x) for x in operands]
        out_avals = (
            [v.aval for v in eqn.outvars]
            if eqn is not None
            else jaxprs.abstract_eval(primitive, in_avals, params)
        )
        source = jaxprs.source_of(jaxprs.current_source())
        primitives.check_supported(primitive, [*in_avals, *out_avals], source)
        first = operands[0] if operands else None
        if body is None and isinstance(first, Value) and len(out_avals) == 1:
            if primitives.is_identity(primitive, params, first.aval, out_avals[0]):
                prepared = _Prepared()
                prepared.identity = True
                prepared.out_avals = tuple(out_avals)
                return prepared
            large = costs.nbytes(first.aval) > SMALL_BYTES
            viewable = arrays.dlpack_type(out_avals[0].dtype) is not None
            if (
                large
                and viewable
                and arrays.dlpack_type(first.aval.dtype) is not None
                and primitives.is_view(primitive, params, first.aval, out_avals[0])
            ):
                prepared = _Prepared()
                prepared.view = out_avals[0]
                prepared.out_avals = tuple(out_avals)
                # An operand outside the pool cannot be viewed: then it is an operation after all.
                self._kernelise(prepared, primitive, operands, params, context, effects, out_avals)
                return prepared
        prepared = _Prepared()
        self._kernelise(prepared, primitive, operands, params, context, effects, out_avals)
        return prepared

    def _kernelise(
        self,
        prepared: _Prepared,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        effects: Any,
        out_avals: Sequence[Any],
    ) -> None:
        selection: list[int] = []
        local: list[int | LiteralValue] = []
        seen: dict[int, int] = {}
        for position, x in enumerate(operands):
            if isinstance(x, LiteralValue):
                local.append(x)
            elif isinstance(x, Value) and id(x) in seen:
                local.append(seen[id(x)])
            else:
                seen[id(x)] = len(selection)
                local.append(len(selection))
                selection.append(position)
        in_avals = [_aval(operands[p]) for p in selection]
        builder = KernelBuilder(in_avals)
        body = jaxprs.call_body(primitive, params)
        if body is None:
            results: Sequence[Any] = range(len(selection), len(selection) + len(out_avals))
            builder.add(primitive, params, context, effects, out_avals, local, results)
        else:
            results = builder.inline(body[0], body[1], local)
        kernel = self._cache.kernel(builder.equations, list(results), in_avals, list(out_avals))
        self._finish(kernel, prepared)
        prepared.selection = tuple(selection)

    def _finish(self, kernel: Kernel, prepared: _Prepared | None = None) -> _Prepared:
        prepared = prepared or _Prepared()
        sizes = [costs.nbytes(a) for a in kernel.out_avals]
        outside = [
            n <= SMALL_BYTES or arrays.dlpack_type(a.dtype) is None
            for n, a in zip(sizes, kernel.out_avals, strict=True)
        ]
        modes = tuple(OUTSIDE if o else SLOT for o in outside)
        prepared.kernel = kernel
        prepared.out_avals = kernel.out_avals
        prepared.executable = kernel.executable(modes, self._memory.device, self._cache)
        prepared.spec = _core.OperationSpec(
            sizes, outside, [-1] * len(sizes), kernel.cost_seconds, kernel.recomputable
        )
        return prepared

    # --- Carrying out ---

    def _apply_prepared(self, prepared: _Prepared, operands: Sequence[Any]) -> list[Any]:
        if prepared.identity:
            first = operands[0]
            if first.aval is prepared.out_avals[0]:
                return [first]
            return [self._alias(first, prepared.out_avals[0])]
        if prepared.view is not None and operands[0].storage not in self._outside:
            return [self._alias(operands[0], prepared.view)]
        if self._interrupts is not None and not self._consumed:
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
                    refs.append(x)  # a scalar: given as it is, every time
                    continue
            refs.append((x.storage, x.aval))
            storages.append(x.storage)
        if self._dead:
            self._collect()
        executable = prepared.executable
        if executable.workspace_bytes > self._workspace_bytes:
            self._count_peak()
            self._workspace_bytes = executable.workspace_bytes
            self._reserve()
            self._engine.reset_peak()  # what the reservation evicted was not beside this workspace
        else:
            self._reserve()
        try:
            op, outputs, offsets, actions, _ = self._engine.submit(storages, prepared.spec)
        except _core.NoSpaceError as error:
            source = jaxprs.source_of(jaxprs.current_source())
            label = f"operation '{prepared.kernel.label}'"
            raise self._runtime.exceeded(error.failure, label, source) from None
        done = 0
        recipe = (executable, tuple(refs), outputs)
        for retired in self._engine.retired() or ():
            self._recipes.pop(retired, None)
        self._recipes[op] = recipe
        try:
            if actions is not None:
                for action in actions:
                    self._act(action)
                    done += 1
            self._run(recipe, offsets, recompute=False, scratch=())
        except BaseException:
            self._engine.abort(done)
            self._drop(self._engine.forget(op))
            raise
        spec_outside = self._outside
        values = []
        for storage, offset, aval in zip(outputs, offsets, prepared.out_avals, strict=True):
            if offset < 0 and storage not in spec_outside:
                self._note_outside(storage, costs.nbytes(aval))
            values.append(Value(self._dead, storage, aval))
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
            self._drop_one(action[1])

    def _run(
        self, recipe: Any, offsets: Sequence[int], *, recompute: bool, scratch: Sequence[int]
    ) -> None:
        executable, refs, outputs = recipe
        memory = self._memory
        slots = [
            (offsets[k], memory.spec(executable.kernel.out_avals[k]))
            for k in executable.slot_results
        ]
        operands = [self._array(*r) if type(r) is tuple else r for r in refs]
        first = not executable.checked
        begin = time.perf_counter()
        results = launch(executable, slots, operands, (), memory)
        seconds = executable.kernel.cost_seconds if first else time.perf_counter() - begin
        counters = self._runtime._counters
        if recompute:
            counters.recompute_seconds += seconds
            for k, result in zip(executable.order, results, strict=True):
                storage = scratch[k]
                if storage >= 0 and (offsets[k] >= 0 or storage not in self._arrays):
                    self._arrays[storage] = result
        else:
            counters.compute_seconds += seconds
            for k, result in zip(executable.order, results, strict=True):
                self._arrays[outputs[k]] = result

    def _bring(self, value: Value) -> None:
        if value.storage in self._arrays:
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

    def _array(self, storage: int, aval: Any) -> Any:
        base = self._arrays[storage]
        if base.shape == aval.shape and base.dtype == aval.dtype:
            return base
        views = self._views.setdefault(storage, {})
        key = (aval.shape, aval.dtype)
        view = views.get(key)
        if view is None:
            # Where it lies now: the engine is already past the actions being carried out.
            offset = self._memory.offset_of(base)
            view = views[key] = self._memory.view(offset, self._memory.spec(aval))
        return view

    def _alias(self, value: Value, aval: Any) -> Value:
        self._engine.retain(value.storage)
        return Value(self._dead, value.storage, aval)

    # --- Keeping books ---

    def _collect(self) -> None:
        """Tells the engine of values that nothing refers to any more."""
        dead = self._dead
        while dead:
            self._drop(self._engine.release(dead.popleft()))

    def _drop(self, storages: Sequence[int] | None) -> None:
        for storage in storages or ():
            self._drop_one(storage)

    def _drop_one(self, storage: int) -> None:
        array = self._arrays.pop(storage, None)
        if storage in self._donated:
            self._donated.remove(storage)
            self._consumed = True
            self._memory.pool.reclaim(self._memory.offset_of(array))
            array.delete()
        self._views.pop(storage, None)
        self._hints.pop(storage, None)
        nbytes = self._outside.pop(storage, None)
        if nbytes is not None:
            self._outside_bytes -= nbytes

    def _note_outside(self, storage: int, nbytes: int) -> None:
        rounded = -(-nbytes // 64) * 64
        self._outside[storage] = rounded
        self._outside_bytes += rounded
        self._peak_outside = max(self._peak_outside, self._outside_bytes)

    def _reserve(self) -> None:
        """Keeps room for what lies outside the pool; in steps, so that it is seldom asked for."""
        needed = self._outside_bytes + self._workspace_bytes
        if needed <= self._reserved_bytes or self._runtime.budget_bytes is None:
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
            outside_bytes=self._peak_outside,
            workspace_bytes=self._workspace_bytes,
        )
        self._arrays.clear()
        self._views.clear()
        self._recipes.clear()
        self._externals.clear()
        self._foreign.clear()
        self._dead.clear()


def _index(x: Any, i: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _stack(*xs: Any) -> Any:
    return jnp.stack(xs)


def _plain(x: Any) -> Any:
    return np.asarray(x.value, x.aval.dtype) if isinstance(x, LiteralValue) else x


def _aval(x: Any) -> Any:
    return x.aval if isinstance(x, (Value, LiteralValue)) else jaxprs.aval_of(x)


def _operand_key(x: Any) -> Hashable:
    kind = type(x)
    if kind is Value:
        return x.aval.shape, x.aval.dtype, True
    if kind is LiteralValue:
        return jaxprs.literal_key(x.value), str(x.aval.dtype)
    aval = jaxprs.aval_of(x)
    return aval.shape, aval.dtype, False


def _positions(operands: Sequence[Any]) -> Hashable:
    """Which operands are the same value: a kernel takes each once."""
    if len(operands) < 2:
        return None
    ids = [id(x) for x in operands]
    return None if len(set(ids)) == len(ids) else tuple(ids.index(i) for i in ids)


def _last_uses(jaxpr: Any) -> tuple[list[list[Any]], set[Any]]:
    """For each equation the variables that nothing reads after it; and all that are read."""
    used = {x for x in jaxpr.outvars if not isinstance(x, jaxprs.Literal)}
    dead: list[list[Any]] = []
    for eqn in reversed(jaxpr.eqns):
        here = []
        for x in eqn.invars:
            if not isinstance(x, jaxprs.Literal) and x not in used:
                used.add(x)
                here.append(x)
        dead.append(here)
    return dead[::-1], used
