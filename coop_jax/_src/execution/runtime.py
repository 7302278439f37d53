"""The runtime: one pool on one device, the statistics of what happened in it, its lock.

A runtime may be shared by several functions: what one leaves in the pool (parameters) the next
finds there. Between calls the pool holds exactly the arrays that somebody outside still holds.
Thread rule: calls take the lock; a second thread waits, a call from inside a call raises. The
runtime that `with` made current is that of a context: of a thread, of a task of asyncio.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from coop_jax import _core
from coop_jax._src.compat import contexts, devices, thread_state
from coop_jax._src.execution import constants
from coop_jax._src.execution import verification as verifying
from coop_jax._src.execution.call_recording import CallRecording, OpenRecording
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.execution.runtime_report import RuntimeReport, report_of
from coop_jax._src.execution.stats import CallCounts, Counters, Stats
from coop_jax._src.ir import kernels
from coop_jax._src.planning import policies
from coop_jax._src.planning.planner import PlanSettings
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import held_memory, options
from coop_jax._src.util.droppable import Droppable
from coop_jax._src.util.errors import BudgetExceededError, BudgetReport
from coop_jax._src.util.held_memory import HeldStorage

T = TypeVar("T")


def current_runtime() -> Runtime | None:
    """The innermost runtime entered with `with` in this context."""
    entered: tuple[Runtime, ...] = _core.entered.get(())
    return entered[-1] if entered else None


def shared_runtime(policy: policies.Policy | None, device: jax.Device | None) -> Runtime | None:
    """The current runtime, for a function without a budget of its own.

    Raises:
      ValueError: the function has a policy or a device, which would not count.
    """
    shared = current_runtime()
    if shared is not None:
        _refuse_ignored(policy, device, "with coop_jax.Runtime(...)")
    return shared


def check_runtime(
    runtime: Any,
    budget: int | float | None,
    policy: policies.Policy | None,
    device: jax.Device | None,
) -> None:
    """Refuses what is no runtime, and what would be ignored beside one.

    Raises:
      TypeError: it is neither a `Runtime` nor None.
      ValueError: there are both a runtime and a budget, policy or device.
    """
    options.check_device(device)
    if runtime is None:
        return
    if not isinstance(runtime, Runtime):
        raise TypeError(f"runtime must be a coop_jax.Runtime, got {options.shown(runtime)}")
    if budget is not None:
        raise ValueError(
            "budget= and runtime= cannot both be given: the budget is the runtime's. Make the"
            " runtime with that budget, or leave runtime= out"
        )
    _refuse_ignored(policy, device, "runtime=")


def _refuse_ignored(policy: policies.Policy | None, device: jax.Device | None, where: str) -> None:
    for name, value in (("policy", policy), ("device", device)):
        if value is not None:
            raise ValueError(
                f"{name}= would be ignored: the function runs in the runtime of `{where}`, and that"
                f" has one. Give {name}= to the Runtime, or budget= to the function, which then has"
                " a runtime of its own"
            )


class Runtime:
    """A memory pool with a hard budget on one device.

    Args:
      budget: bytes (int), a string such as "512MiB" or "2GB", or None for no cap (CPU: all of the
        machine's memory; GPU: nine tenths of what its allocator has left at the first call).
      policy: "lookahead", "coop", "dtr", "dte", or a `coop_jax.Policy` with switches of its own.
      device: a `jax.Device`; None for JAX's current default device.
      workspace: bytes reserved for XLA's temporary memory; None for what the compiled operations
        need.
      verify: whether to compare every recomputed value with its first value, bit by bit; slow. None
        to follow the environment variable COOP_JAX_VERIFY.
      progress: whether to show progress bars where compiling and planning take long. None to follow
        the environment variable COOP_JAX_PROGRESS, or to show them on terminals and in notebooks.
      max_recompute: limit for calls that are planned as they run (`remat_eager`, `run` with
        data-dependent control flow): a call is refused once it has recomputed more than this factor
        of the operations it has run, plus 1024; None for no limit.

    Raises:
      TypeError, ValueError: a budget, policy, limit or workspace that makes no sense.

    Example:
      >>> import coop_jax, jax.numpy as jnp
      >>> with coop_jax.Runtime("64MiB") as rt:
      ...     step = coop_jax.run(lambda x: (x @ x).sum(), runtime=rt)
      ...     value = step(jnp.ones((8, 8)))
      >>> float(value), rt.stats().operations
      (512.0, 1)
    """

    def __init__(
        self,
        budget: int | str | None,
        policy: str | policies.Policy = policies.DEFAULT,
        device: jax.Device | None = None,
        workspace: int | str | None = None,
        verify: bool | None = None,
        progress: bool | None = None,
        max_recompute: float | None = budgets.MAX_RECOMPUTE,
    ):
        checked = budgets.check_budget(budget, fraction_allowed=False)
        assert checked is None or isinstance(checked, int)
        self._budget_bytes = checked
        self._policy = policies.resolve_policy(policy)
        if verifying.eviction_is_forced():
            self._policy = policies.with_forced_eviction(self._policy)
        asked = verify is None and verifying.verification_is_asked()
        self._verify = asked if verify is None else options.flag(verify, "verify")
        self.progress = None if progress is None else options.flag(progress, "progress")
        options.check_device(device)
        self.workspace_bytes = budgets.workspace_bytes(workspace)
        self._device = device if device is not None else contexts.default_device()
        self.max_recompute = budgets.check_max_recompute(max_recompute)
        self.cache = kernels.cache_for(self._device)
        self._compilations_before = self.cache.compilations
        self._compile_seconds_before = self.cache.compile_seconds
        profile = self.cache.profile
        self.settings = PlanSettings(self._policy, profile.alignment_bytes, profile)
        self.counters = Counters(compilations_before=self.cache.compilations)
        self.recording: CallRecording | None = None  # of what calls do, while somebody asks
        self._memory: PoolMemory | None = None
        self._unbounded_bytes: int | None = None  # stands in for a budget
        self._exclusive = _core.Exclusive()
        self.interrupts = _core.Interrupts()  # of the call that goes on
        self._memos: weakref.WeakSet[Droppable] = weakref.WeakSet()  # of `residuals`

    @property
    def budget_bytes(self) -> int | None:
        """The cap on everything, None for none."""
        return self._budget_bytes

    @property
    def policy(self) -> policies.Policy:
        """What decides which storages are evicted."""
        return self._policy

    @property
    def device(self) -> jax.Device:
        """The device that the pool is on."""
        return self._device

    def stats(self) -> Stats:
        """Statistics since the runtime was made; in `last_call`, those of the last call."""
        in_use = 0
        if self._memory is not None:
            in_use = sum(nbytes for _, nbytes in self._memory.pool.live_blocks())
        return self.counters.freeze(
            budget_bytes=self._budget_bytes,
            bytes_in_use=in_use,
            compilations=self.cache.compilations - self._compilations_before,
        )

    def report(self) -> RuntimeReport:
        """Where the time of calls went, and which operations were run again.

        Example:
          >>> import coop_jax, jax.numpy as jnp
          >>> runtime = coop_jax.Runtime("64MiB")
          >>> value = coop_jax.run(lambda x: (x @ x).sum(), runtime=runtime)(jnp.ones((8, 8)))
          >>> report = runtime.report()
          >>> report.stats.calls, report.compute_seconds <= report.total_seconds
          (1, True)
        """
        counters = self.counters
        return report_of(
            self.stats(),
            counters.call_seconds,
            counters.plan_seconds + counters.session_search_seconds,
            self.cache.compile_seconds - self._compile_seconds_before,
            counters.recomputed.operations(),
            ordered=self._memory is not None and self._memory.ordered,
        )

    def counting_from(self, other: Runtime) -> Runtime:
        """The same runtime; what was compiled since the other one was made counts as its own."""
        self._compilations_before = other._compilations_before
        self._compile_seconds_before = other._compile_seconds_before
        self.counters.compilations_before = other._compilations_before
        return self

    def close(self) -> None:
        """Gives the pool back as soon as the last array in it is dropped; ends this runtime."""
        if not self._exclusive.closed:
            _core.guarded(self._exclusive, None, None, self._end)

    def _end(self) -> None:
        self._exclusive.closed = True
        self._memory = None

    # In C++: what is raised between two bytecodes would leave the runtime current, or another one.
    if TYPE_CHECKING:

        def __enter__(self) -> Runtime: ...

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __enter__, __exit__ = _core.enter, _core.exit

    def call(self, context: tuple[Any, ...], function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function that has the runtime for itself; JAX's state is then as before.

        What handlers of signals raise waits meanwhile for `interrupts`.

        Args:
          context: JAX's trace context now.
          function: called with the arguments.
          arguments: for it.

        Raises:
          RuntimeError: the runtime was closed, or this thread is in a call already.
        """
        undo = thread_state.restoring(context)
        return _core.guarded(self._exclusive, self.interrupts, undo, function, *arguments)  # type: ignore[no-any-return]

    def call_user(
        self, undo: Callable[[], object], function: Callable[..., T], *arguments: Any
    ) -> T:
        """As `call`, of a function that runs the user's code: nothing waits.

        Args:
          undo: called where anything is raised, until it has come to its end.
          function: called with the arguments.
          arguments: for it.
        """
        return _core.guarded(self._exclusive, None, undo, function, *arguments)  # type: ignore[no-any-return]

    @property
    def verifies(self) -> bool:
        """Whether recomputed values are compared with what they were."""
        return self._verify

    def verifier(self) -> verifying.Verifier | None:
        """What compares recomputed values in one call, if this runtime verifies."""
        return verifying.Verifier() if self._verify else None

    def keep_residuals(self, memo: Droppable) -> None:
        """Remembers what `drop_residuals` is to drop, as long as it lives."""
        self._memos.add(memo)

    def drop_residuals(self) -> bool:
        """Gives up what derivatives taken around calls keep here; whether there was anything."""
        dropped = [memo.drop() for memo in list(self._memos)]
        return any(dropped)

    def count(self, call: CallCounts) -> None:
        """Adds one call to the statistics."""
        self.counters.add(call, self.cache.compilations)

    def record_session(self, core: _core.SessionCore) -> OpenRecording | None:
        """Records a session, if somebody asks."""
        recording, alignment = self.recording, self.settings.alignment_bytes
        return None if recording is None else recording.begin_session(core, alignment)

    def exceeded(
        self,
        failure: _core.Failure,
        operation: str,
        source: str = "",
        smallest_budget_bytes: int | None = None,
        *,
        fused: bool = False,
        unbudgeted_peak_bytes: int | None = None,
        held: Sequence[HeldStorage] = (),
        requested: Sequence[HeldStorage] = (),
        donatable: bool = False,
        enough_bytes: int | None = None,
        evidence: object | None = None,
    ) -> BudgetExceededError:
        """The error for a request that the engine could not meet."""
        capacity, alignment = self.capacity_bytes(), self.settings.alignment_bytes
        least = failure.pinned_bytes + -(-failure.requested_bytes // alignment) * alignment
        return BudgetExceededError(
            BudgetReport(
                requested_bytes=failure.requested_bytes,
                budget_bytes=capacity,
                in_use_bytes=failure.in_use_bytes,
                pinned_bytes=failure.pinned_bytes,
                largest_free_block_bytes=failure.largest_free_block_bytes,
                largest_window_bytes=failure.largest_window_bytes,
                operation=operation,
                source=source,
                smallest_budget_bytes=smallest_budget_bytes,
                thrashing=failure.reason in ("thrashing", "limit"),
                fused=fused,
                unbudgeted_peak_bytes=unbudgeted_peak_bytes,
                held=held_memory.by_size(held),
                requested=held_memory.by_size(requested),
                donatable=donatable,
                at_limit=failure.reason == "limit",
                enough_bytes=enough_bytes,
                lower_bound_bytes=max(least, capacity + 1),
            ),
            evidence,
        )

    def memory(self) -> PoolMemory:
        """The pool, made on first use."""
        if self._memory is None:
            self._memory = PoolMemory(self.capacity_bytes(), self._device)
        return self._memory

    def capacity_bytes(self) -> int:
        """The budget, or what stands in for none."""
        if self._budget_bytes is not None:
            return self._budget_bytes
        if self._unbounded_bytes is None:  # what is left changes, also by the pool
            left = devices.memory_left(self._device)
            machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            self._unbounded_bytes = (
                machine if left is None else int(left * constants.TUNED.unbounded_pool_fraction)
            )
        return self._unbounded_bytes
