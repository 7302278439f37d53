"""`coop_jax.remat_eager`: the front end that runs plain Python, operation by operation.

The decorated function is ordinary Python: it may branch on values, loop, change shapes, call
`jax.grad`. Every primitive runs as it is called, in the pool; what is evicted comes back when it is
read. What the engine knows is the past alone, so plans are made as the program goes; with a policy
that looks ahead calls that repeat follow plans (see `planning.recorded_calls`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax

from coop_jax._src.compat import arrays, refs, thread_state, transfers, transforms
from coop_jax._src.eager import compaction, needs
from coop_jax._src.eager.lessons import Lessons
from coop_jax._src.eager.session import Session
from coop_jax._src.eager.trace.scope import EagerScope
from coop_jax._src.eager.transformed_calls import TransformedCalls
from coop_jax._src.execution.function_settings import FunctionSettings, FunctionUnderBudget
from coop_jax._src.execution.homes import Home
from coop_jax._src.execution.runtime import Runtime, check_runtime
from coop_jax._src.execution.wrapped_function import WrappedFunction, applied
from coop_jax._src.planning import policies, recorded_calls
from coop_jax._src.util import budget as budgets
from coop_jax._src.util.call_arguments import check_leaves
from coop_jax._src.util.calling_convention import Convention
from coop_jax._src.util.errors import BudgetExceededError
from coop_jax._src.util.mutations import Watch

# Where nothing is known ahead, the paper's.
_DEFAULT = "coop"

P = ParamSpec("P")
R = TypeVar("R")


@overload
def remat_eager(fn: Callable[P, R], /) -> EagerFunction[P, R]: ...
@overload
def remat_eager(
    fn: Callable[P, R],
    /,
    *,
    budget: int | float | str | None = None,
    policy: str | policies.Policy | None = None,
    device: jax.Device | None = None,
    runtime: Runtime | None = None,
) -> EagerFunction[P, R]: ...
@overload
def remat_eager(
    fn: None = None,
    /,
    *,
    budget: int | float | str | None = None,
    policy: str | policies.Policy | None = None,
    device: jax.Device | None = None,
    runtime: Runtime | None = None,
) -> Callable[[Callable[P, R]], EagerFunction[P, R]]: ...
def remat_eager(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    budget: int | float | str | None = None,
    policy: str | policies.Policy | None = None,
    device: jax.Device | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Runs a function eagerly under a hard memory budget; Python control flow works on values.

    Args:
      fn: a function of pytrees of arrays. It may use `if x > 3:`, `int(n)`, loops, `jax.grad`.
      budget: bytes (int), a string such as "512MiB", a fraction in (0, 1] of what the function
        needs without a budget (only for functions that JAX can trace, that is, whose control flow
        does not depend on values), or None for no cap.
      policy: "coop", "lookahead" (predicts a call from the last one with such arguments, and
        continues without a plan once they differ), "dtr", "dte", or a `coop_jax.Policy`. If None,
        "coop".
      device: the device to run on. If None, and no runtime is given, calls run on JAX's default
        device (`jax.default_device`), with one runtime for each such device.
      runtime: a `Runtime` to share. It has a budget, policy and device, so none of them may be
        given as well. Inside `with Runtime(...)`, functions without a budget use that runtime.

    Returns:
      A function of the same arguments and results. Without `fn`, a decorator.

    Raises:
      TypeError, ValueError: arguments that make no sense.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> @coop_jax.remat_eager(budget="1MiB")
      ... def step(w, x):
      ...     def loss(w):
      ...         h = x
      ...         while h.std() > 0.1:
      ...             h = jnp.tanh(h @ w)
      ...         return (h**2).mean()
      ...     return jax.value_and_grad(loss)(w)
      >>> value, grad = step(0.1 * jnp.eye(8), jnp.arange(32.0).reshape(4, 8))
      >>> grad.shape
      (8, 8)
    """
    checked = budgets.check_budget(budget)
    resolved = None if policy is None else policies.resolve_policy(policy)
    check_runtime(runtime, checked, resolved, device)
    if fn is not None and not callable(fn):
        raise TypeError(f"fn must be a function of arrays, got {type(fn).__name__}")

    def decorate(function: Callable[P, R]) -> EagerFunction[P, R]:
        home = Home(device, runtime, resolved, joins=checked is None)
        return applied(
            lambda taken: EagerFunction[P, R](FunctionSettings(taken, checked, resolved, home)),
            Convention(function),
            WrappedFunction,
        )

    return decorate if fn is None else decorate(fn)


class EagerFunction(FunctionUnderBudget, Generic[P, R]):
    """A function that runs eagerly under a budget; made by `remat_eager`."""

    def __init__(self, settings: FunctionSettings):
        super().__init__(settings)
        self._fn = settings.convention.fn
        self._lessons = Lessons()
        self._transformed = TransformedCalls(settings, EagerFunction)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function; results are ordinary arrays that live in the pool.

        Raises:
          BudgetExceededError: an operation does not fit. The runtime and the arguments still work.
        """
        if not transforms.at_top():
            return self._transformed(args, kwargs)  # type: ignore[no-any-return]
        return self._call(*jax.tree_util.tree_flatten((args, kwargs)))  # type: ignore[no-any-return]

    def call_flat(self, leaves: Sequence[Any], needed: Callable[[], int] | None) -> Any:
        """A call with these arguments; results beyond the `needed` may be left out.

        Raises:
          BudgetExceededError: an operation does not fit.
        """
        return self._call(*jax.tree_util.tree_flatten((tuple(leaves), {})), needed)

    def _call(self, leaves: list[Any], tree: Any, needed: Callable[[], int] | None = None) -> Any:
        check_leaves(leaves, "coop_jax.remat_eager", TypeError)
        transfers.check_places(leaves, self._home.device())
        runtime = self._home.here() or self.make_runtime(leaves, tree)
        ending = _Ending(thread_state.restoring(), self._lessons)
        return runtime.call_user(ending.end, self._run, runtime, leaves, tree, needed, ending)

    def _run(
        self,
        runtime: Runtime,
        leaves: list[Any],
        tree: Any,
        needed: Callable[[], int] | None,
        ending: _Ending,
    ) -> Any:
        """Runs the function. Where `needed` tells how many results must be, others may go."""
        lesson = None
        if recorded_calls.is_worthwhile(runtime.policy, runtime.budget_bytes):
            lesson = self._lessons.of(leaves, tree)
        ending.lesson = lesson
        session = ending.session = Session(runtime, lesson=lesson)
        ending.lesson = None
        committed = any(arrays.is_committed(x) for x in leaves if isinstance(x, jax.Array))
        try:
            scope = ending.scope = EagerScope(session)
            with scope as trace:
                wrapped = [
                    trace.wrap(_operand(session, x)) if needs.is_array(x) else x for x in leaves
                ]
                trace.note_arguments(wrapped, leaves)
                args, kwargs = jax.tree_util.tree_unflatten(tree, wrapped)
                del wrapped
                watch = Watch(args, kwargs)
                result = self._fn(*args, **kwargs)
                del args, kwargs
                watch.check(self._fn, result)
                del watch
                flat, out_tree = jax.tree_util.tree_flatten(result)
                del result
                values = [trace.value_of(x) for x in flat]
                uses = trace.uses_of(flat)
            session.write_back()
            out = _results(session, flat, values, needed)
            avals = [None if v is None else v.aval for v in values]
            complete = len(out) == len(avals)
            del values, flat
            if complete:
                ending.lesson = lesson
                session.learn()
                ending.lesson = None
        except BaseException as error:
            _break_off(session, lesson, error)
            raise
        finally:
            session.close()
        if runtime.budget_bytes is not None:
            compaction.side_by_side(
                runtime.memory(), out, avals, runtime.settings.alignment_bytes, session.peak_bytes
            )
        made = [
            x if aval is None else _as_made(x, aval, committed)
            for x, aval in zip(out, avals, strict=False)
        ]
        trace.note_results(uses, made)
        if not complete:
            return made
        return jax.tree_util.tree_unflatten(out_tree, made)

    def make_runtime(self, leaves: list[Any], tree: Any) -> Runtime:
        """Makes the runtime, for a call with these arguments."""
        budget, device = self._settings.budget, self._home.device()
        policy = self._settings.policy or policies.resolve_policy(_DEFAULT)
        if not isinstance(budget, float):
            return self._home.keep(Runtime(budget, policy, device))
        unlimited = Runtime(None, policy, device)
        peak = needs.unbudgeted_peak(self._fn, unlimited, leaves, tree)
        made = Runtime(max(1, int(budget * peak)), policy, device)
        return self._home.keep(made.counting_from(unlimited))


class _Ending:
    """What is left to be done where a call of the user's function is broken off.

    Attributes:
      session: of the call, once there is one.
      scope: likewise.
      lesson: that is being read or written: half of it may be old, so it is learned anew.
    """

    __slots__ = ("_lessons", "_restore", "lesson", "scope", "session")

    def __init__(self, restore: Callable[[], None], lessons: Lessons) -> None:
        self._restore, self._lessons = restore, lessons
        self.session: Session | None = None
        self.scope: EagerScope | None = None
        self.lesson: recorded_calls.Lesson | None = None

    def end(self) -> None:
        """Does it; may be called again."""
        self._restore()
        if self.scope is not None:
            self.scope.close()
        if self.session is not None:
            self.session.close()
        if self.lesson is not None:
            self._lessons.forget(self.lesson)


def _break_off(
    session: Session, lesson: recorded_calls.Lesson | None, error: BaseException
) -> None:
    """What is left to be done of a call that has raised, while its session is open."""
    if lesson is not None and isinstance(error, BudgetExceededError):
        lesson.refuse()  # the function has run in part: only the next call can go without
    with contextlib.suppress(BudgetExceededError):
        session.write_back()  # what was written before an error stays written


def _results(
    session: Session, flat: Sequence[Any], values: Sequence[Any], needed: Callable[[], int] | None
) -> list[Any]:
    """What a function returned, values as arrays; results beyond the `needed` may be left out."""
    out: list[Any] = []
    for x, v in zip(flat, values, strict=True):
        try:
            out.append(x if v is None else _taken(session, v))
        except BaseException as error:
            refused = isinstance(error, BudgetExceededError)
            if refused and needed is not None and len(out) >= needed():
                del out[needed() :]
                break
            out.clear()  # whoever keeps the traceback must not keep results
            raise
    return out


def _taken(session: Session, value: Any) -> jax.Array:
    """The contents of a value as an array that outlives the session."""
    with arrays.compiling():
        (taken,) = session.take([value])
    return taken


def _as_made(array: jax.Array, aval: Any, committed: bool) -> jax.Array:
    """The same array as the function's operations made it."""
    return arrays.with_aval(
        array,
        weak_type=getattr(aval, "weak_type", False),
        committed=committed,
        shape=aval.shape,
        dtype=aval.dtype,
    )


def _operand(session: Session, x: Any) -> Any:
    return session.cell_of(x) if refs.is_ref(x) else session.value_of(x)
