"""A session: operations executed as they are called, over the engine that plans them.

The eager front end gives it primitives; programs that branch on values give it their jaxprs. Each
operation goes to the engine, which answers with what must happen first (evictions, recomputations)
and where the outputs go; the session carries that out at once.

Model: what is done for every operation is done in C++ (`_core.SessionCore`, which holds the engine,
the arrays and the recipes); here is what is done seldom: values in and out, first launches, making
room, errors. The core calls the methods whose names begin with `_on`.
Invariants: a `Value` holds one reference in the engine; when the last Python reference to it goes,
the engine learns it before the next operation. An array is held for a storage exactly while that is
resident. When an operation fails, the engine is told how far its actions were carried out.
Thread rule: one thread, under the runtime's lock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax import _core
from coop_jax._src.compat import arrays, contexts, jaxprs, number_checks, wide
from coop_jax._src.compat import refs as compat_refs
from coop_jax._src.eager import interpreter
from coop_jax._src.eager.beside import Beside
from coop_jax._src.eager.first_launches import Launch, first_launch
from coop_jax._src.eager.operation_cache import Prepared, Preparer
from coop_jax._src.eager.refusals import Refusals
from coop_jax._src.eager.session_inputs import Externals
from coop_jax._src.eager.values import Value, aval_of_key, operand_key
from coop_jax._src.execution.executables import Executable
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.execution.stats import CallCounts
from coop_jax._src.execution.trace_annotations import annotate_session
from coop_jax._src.ir import primitives, stacks
from coop_jax._src.ir.refs import CallersRefs, RefCell
from coop_jax._src.ir.stacks import Stack
from coop_jax._src.planning import policies
from coop_jax._src.planning.portfolio import PlanSettings
from coop_jax._src.planning.recorded_calls import Lesson
from coop_jax._src.util.interrupts import Interrupts


class Session:
    """Executes operations at once in the pool of a runtime. Used for one call, then closed."""

    # Whether launches of operations that are known to obey may go past Python: not in some tests.
    fast = True

    def __init__(
        self,
        runtime: Runtime,
        interrupts: Interrupts | None = None,
        donated: Sequence[jax.Array] = (),
        lesson: Lesson | None = None,
    ):
        """Begins a call.

        Args:
          runtime: where it runs.
          interrupts: checked before each operation, until a donated array is gone.
          donated: arrays that are given up.
          lesson: what is known of such calls, and what learns from this one.
        """
        self._closed, self._begin = False, time.perf_counter()
        self._runtime, self._memory = runtime, runtime.memory()
        self._preparer = Preparer(runtime.cache, self._memory.device)
        self._context = contexts.current()
        settings, self._verifier = runtime.settings, runtime.verifier()
        self._memory.pool.drain_freed()
        self._lesson = lesson
        policy = None
        if lesson is not None:
            blocks = self._memory.pool.live_blocks()
            policy = lesson.begin(blocks, self._call_settings(), runtime.capacity_bytes())
        load, load_arguments = arrays.importer(self._memory.device)
        is_watched = self._verifier is not None or runtime.counters.recorder is not None
        goes_past_python = self.fast and self._memory.synchronous and not is_watched
        self._core = _core.SessionCore(
            runtime.capacity_bytes(),
            settings.alignment_bytes,
            policy or policies.of_a_session(settings.policy),
            settings.profile.expensive_seconds_per_byte,
            self._memory.pool,
            self._memory.cells,
            load,
            load_arguments,
            operand_key,
            self._preparer.prepared,
            goes_past_python,
            runtime.budget_bytes is None,
            0.0 if settings.policy.evict_always else runtime.max_recompute or 0.0,
        )
        number_checks.follow()
        core = self._core
        annotate_session(core)
        if interrupts is not None:
            core.interrupt_by(interrupts)
        known_bytes = 0 if lesson is None else lesson.workspace_bytes
        core.workspace_bytes = max(runtime.workspace_bytes, known_bytes)
        core.reserved_bytes = runtime.capacity_bytes() if runtime.budget_bytes is None else 0
        self._recording = runtime.record_session(core)
        self._callers_refs = CallersRefs()
        if lesson is not None:
            core.record(lesson.history, follow=lesson.follows)
        self._externals = Externals(core, self._memory, donated)
        self._refusals = Refusals(runtime, core, self._externals, self._recording)
        self._beside = Beside(runtime, core, self._refusals)
        # At once what the last call needed in the end, as its plan has it.
        if lesson is not None and lesson.reserved_bytes > core.reserved_bytes:
            core.reserve_room(self, lesson.reserved_bytes)

    @property
    def peak_bytes(self) -> int:
        """The most that was there at once, of all that the budget counts; known at the end."""
        return self._beside.peak_bytes

    # --- Values in and out ---

    def value_of(self, x: Any) -> Value:
        """A value for an array, NumPy array or scalar from outside."""
        return self._externals.value_of(x, self._reserve)

    def donated_value_of(self, x: jax.Array) -> Value:
        """As `value_of`, but the array is given up: deleted when nothing reads it any more."""
        return self._externals.donated_value_of(x, self._reserve)

    def cell_of(self, ref: Any) -> RefCell:
        """The cell of a reference of the caller's, which gets its last contents by `write_back`."""
        return self._callers_refs.cell_of(ref, self.value_of)

    def write_back(self) -> None:
        """Gives the caller's references what was written into them."""
        for ref, contents in self._callers_refs.take_written():
            (array,) = self.take([self.as_value(contents)])
            compat_refs.set_contents(ref, arrays.committed(array))

    def as_value(self, x: Any) -> Value:
        """A value, whatever a jaxpr returned: a value, an argument or a constant."""
        x = interpreter.whole(self, x)
        return x if type(x) is Value else self.value_of(x)

    def alias(self, value: Value) -> Value:
        """Another handle of the same value, with a reference of its own."""
        return self._core.alias(value.storage, value.aval, value.key)

    def take(self, values: Sequence[Value]) -> list[jax.Array]:
        """Brings values back, for good, as arrays that outlive the session."""
        core = self._core
        self._reserve()  # a function that runs nothing returns what lies outside
        out: list[jax.Array] = []
        for value in values:
            try:
                core.bring(self, value.storage)
            except BaseException:
                out.clear()  # whoever keeps the traceback must not keep results
                raise
            if not core.is_permanent(value.storage) and not core.is_outside(value.storage):
                core.make_permanent(value.storage)
            array = core.array_of(self, value.storage, value.key)
            if isinstance(array, jax.Array):
                out.append(self._memory.lent(array, value.aval))
            else:
                with wide.holding(wide=wide.is_wide(value.aval.dtype)):
                    out.append(jnp.asarray(array))
        return out

    def concrete(self, value: Value) -> jax.Array:
        """The contents, as an array that does not depend on the pool."""
        core = self._core
        core.bring(self, value.storage)
        array = core.array_of(self, value.storage, value.key)
        if core.is_outside(value.storage) or not value.aval.size:
            with wide.holding(wide=wide.is_wide(value.aval.dtype)):
                copied = array if isinstance(array, jax.Array) else jnp.asarray(array)
        else:
            # JAX remembers what it copied of an array, but this one is used again.
            reader = self._memory.view(self._memory.offset_of(array), self._memory.spec(value.aval))
            with wide.holding(wide=wide.is_wide(value.aval.dtype)):
                copied = jnp.asarray(np.array(reader))
        return arrays.as_user_sees(copied, value.aval)

    def release_hint(self, value: Value) -> None:
        """The value is most likely not read again: its memory goes, its recipe stays."""
        self._core.hint(value.storage)

    def treasure_results_of(self, values: Sequence[Any]) -> bool:
        """What is made of these, and of that, is out of proportion to make again.

        Returns whether that was said before, for `treasure_no_results`.
        """
        before = self._core.treasures
        if self._lesson is None:  # a plan that is followed knows of no moves
            self._core.treasures = True
            for value in values:
                for part in stacks.parts_of(value):
                    self._core.treasure(part.storage)
        return before

    def treasure_no_results(self, but: bool) -> None:
        """From now on nothing more is; `but`: what `treasure_results_of` returned."""
        self._core.treasures = but

    # --- Running ---

    def apply(self, primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        """Runs a primitive on values, arrays, scalars and stacks; what it stacks is a stack."""
        independent = primitive in contexts.INDEPENDENT
        context = None if independent else contexts.other_than(self._context)
        done = self._core.apply(self, primitive, operands, params, context)
        if done is not None and done is not False:
            return done
        results = None
        if done is None:
            primitives.check_nested(primitive, params)
            results = interpreter.apply(self, primitive, operands, params)
            if results is None:
                prepared = self._preparer.prepare(primitive, operands, params, context, ())
                if prepared is not None:
                    return self.run(prepared, operands)
        if results is None:  # a call that is taken apart
            body = jaxprs.call_body(primitive, params)
            assert body is not None
            results = interpreter.call(self, body[0], body[1], list(operands))
        return [x if type(x) in (Stack, RefCell) else self.as_value(x) for x in results]

    def run_known(self, eqn: Any, operands: Sequence[Any]) -> list[Value] | None:
        """Runs an equation that ran before on such operands; None, and nothing done, for others."""
        done = self._core.apply(self, eqn.primitive, operands, eqn.params, eqn.ctx)
        return None if done is False else done

    def prepare(self, eqn: Any, operands: Sequence[Any]) -> Prepared | None:
        """What to run for an equation; None for a call that is to be taken apart."""
        return self._preparer.prepare(
            eqn.primitive, operands, eqn.params, eqn.ctx, eqn.effects, eqn
        )

    def function(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """Runs a small JAX function of arrays as one operation with one result."""
        return self.run(self._preparer.function(function, operands), operands)[0]

    def run(self, prepared: Prepared, operands: Sequence[Any]) -> list[Value]:
        """Runs a prepared operation: engine first, then what it asks for, then the operation."""
        return self._core.run(self, prepared, operands)

    # --- Called by the core ---

    def _on_operand(self, x: Any) -> Value | None:
        """The value for an operand that is none; None for a scalar, given as it is every time."""
        if isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.ndim):
            return self.value_of(x)
        return None

    def _on_view(self, base: jax.Array, key: int) -> _core.SlotSpec | None:
        """How an array is seen in the shape and dtype of `key`; None: as it is."""
        aval = aval_of_key(key)
        if base.shape == aval.shape and base.dtype == aval.dtype:
            return None
        return self._memory.spec(aval)

    def _on_room_needed(self, workspace_bytes: int, incoming_bytes: int = 0) -> None:
        """Before an operation that needs more beside the pool than is reserved."""
        if workspace_bytes <= self._core.workspace_bytes:
            self._reserve(incoming_bytes)
            return
        self._beside.count_peak()
        self._reserve(incoming_bytes, workspace_bytes)
        self._core.workspace_bytes = workspace_bytes

    def _on_no_space(self, prepared: Prepared | None, failure: _core.Failure) -> None:
        raise self._refusals.of_operation(failure, prepared)

    def _on_in_place(self, prepared: Prepared, operand: int) -> Executable:
        """The form of an operation that writes its result over an operand."""
        return self._preparer.in_place(prepared, operand)

    def _on_move(self, array: jax.Array, key: int, offset: int) -> jax.Array:
        """The array at another place of the pool, where nothing lies."""
        return self._memory.moved(offset, self._memory.spec(aval_of_key(key)), array)

    def _on_launch(
        self,
        prepared: Prepared,
        executable: Executable,
        places: Sequence[tuple[int, int, int, int]],
        operands: list[Any],
        recompute: bool,
        given: bool,
    ) -> list[Any]:
        """Launches what is not known to obey yet; see `first_launch`."""
        launch = Launch(prepared, executable, places, recompute, given)
        return first_launch(self._runtime, self._core, self._verifier, launch, operands)

    # --- Keeping books ---

    def _reserve(self, incoming_bytes: int = 0, workspace_bytes: int = 0) -> None:
        self._beside.reserve(self, incoming_bytes, workspace_bytes)

    def _call_settings(self) -> PlanSettings:
        """Of plans for calls that run operation by operation."""
        runtime = self._runtime
        return dataclasses.replace(runtime.settings, max_recompute=runtime.max_recompute or 0.0)

    def learn(self) -> None:
        """The call is complete: what it did is what the next one is expected to do."""
        core, runtime = self._core, self._runtime
        if self._lesson is not None:
            core.collect()
            self._lesson.learn(
                self._call_settings(),
                runtime.capacity_bytes(),
                core.reserved_blocks(),
                core.workspace_bytes,
                core.stats(),
            )

    def close(self) -> None:
        """Ends the session: everything that was not taken goes. May be called again."""
        if not self._closed:
            self._closed = True
            self._count()
            if self._recording is not None:
                self._recording.end()
        self._core.clear()
        self._externals.clear()
        self._callers_refs.clear()

    def _count(self) -> None:
        self._beside.count_peak()
        core, counters = self._core, self._runtime.counters
        counters.compute_seconds += core.compute_seconds
        counters.recompute_seconds += core.recompute_seconds
        counters.session_search_seconds += core.stats().search_seconds
        counters.call_seconds += time.perf_counter() - self._begin
        for prepared, count in core.recomputed():
            counters.recomputed.add_kernel(prepared.kernel, count)
        self._runtime.count(
            CallCounts.of(
                core.stats(),
                peak_bytes=self._beside.peak_bytes,
                external_bytes=core.peak_outside_bytes,
                workspace_bytes=core.workspace_bytes,
            )
        )
