"""A function under `coop_jax.jit`.

A call goes to the jitted function of the last call. JAX's dispatch finds what it compiled, or
traces or lowers again: then the function's guard refuses, and the program of the call is looked up
by what `jax.jit` would tell programs by, or planned and compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from coop_jax._src.compat import contexts, transforms
from coop_jax._src.compat.guards import Refused
from coop_jax._src.jit import budget_search
from coop_jax._src.jit.constants import TUNED
from coop_jax._src.jit.options import JitOptions
from coop_jax._src.jit.plain_program import PlainProgram
from coop_jax._src.jit.programs import JittedProgram, make_program
from coop_jax._src.jit.report import NOT_ASKED, PlanReport
from coop_jax._src.jit.signatures import signature_key
from coop_jax._src.util import options
from coop_jax._src.util.recent import Recent

P = ParamSpec("P")
R = TypeVar("R")


class PlannedFunction(Generic[P, R]):
    """A function under `coop_jax.jit`. Thread-safe: one thread plans at a time."""

    def __init__(self, options: JitOptions):
        functools.update_wrapper(self, options.convention.fn, updated=())
        self._options = options
        self._plain = options.jitted(options.convention.fn, options.compiler_options)
        self._programs: Recent[JittedProgram] = Recent(TUNED.kept_programs)
        self._lock = threading.RLock()
        self._last: Callable[..., Any] = _refuse if options.budget is not None else self._plain

    def __repr__(self) -> str:
        return f"<coop_jax.jit of {self._options.convention.fn!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function.

        Raises:
          BudgetExceededError: no plan that was found fits the budget; nothing has run.
          What `jax.jit` raises.
        """
        if not transforms.at_top() or contexts.jit_is_disabled():
            return self._plain(*args, **kwargs)  # type: ignore[no-any-return]
        try:
            return self._last(*args, **kwargs)  # type: ignore[no-any-return]
        except Refused:
            pass
        program = self._program(args, kwargs)
        with program.guard.opened():
            result = program.jitted(*args, **kwargs)
        self._last = program.jitted
        return result  # type: ignore[no-any-return]

    def plan(self, *args: Any, **kwargs: Any) -> PlanReport:
        """What a call with these arguments keeps and recomputes; plans it if it was not yet.

        It also compiles the program of `jax.jit` if nothing has, to say what that needs.

        Args:
          *args: of the call; arrays or `jax.ShapeDtypeStruct`s.
          **kwargs: likewise.

        Raises:
          BudgetExceededError: as the call.
        """
        with self._lock:
            program = self._program(args, kwargs)
            if program.report.jit_bytes == NOT_ASKED:
                plain = PlainProgram(self._options, args, dict(kwargs))
                program.report = dataclasses.replace(program.report, jit_bytes=plain.needed_bytes)
            return program.report

    @property
    def options(self) -> JitOptions:
        """What was said of the function."""
        return self._options

    def min_budget(self, *args: Any, max_overhead: float | None = None, **kwargs: Any) -> int:
        """The smallest budget that a call accepts, whatever that of the function.

        It compiles what `jax.jit` makes of the function and the smallest plan, and takes the
        smaller one; with `max_overhead` a few plans more. XLA may need less for a plan that keeps
        more, so a budget some percent smaller may be accepted, too.

        Args:
          *args: of the call; arrays or `jax.ShapeDtypeStruct`s.
          max_overhead: the most recompute seconds / compute seconds that will do, as estimated;
            None for any.
          **kwargs: of the call, likewise.

        Returns:
          Bytes on one device. `coop_jax.jit` with this budget and the same options accepts the
          call.

        Raises:
          TypeError, ValueError: `max_overhead` is no number, or negative.
          NotImplementedError: the program cannot be planned.
          What `jax.jit` raises where it traces and compiles.

        Example:
          >>> import coop_jax, jax, jax.numpy as jnp
          >>> def loss(w, x):
          ...     for _ in range(8):
          ...         x = jnp.tanh(x @ w)
          ...     return (x**2).mean()
          >>> w, x = jnp.ones((256, 256)), jnp.ones((4096, 256))
          >>> least = coop_jax.jit(jax.grad(loss)).min_budget(w, x)
          >>> step = coop_jax.jit(jax.grad(loss), budget=least)
          >>> step.plan(w, x).needed_bytes <= least < step.plan(w, x).jit_bytes
          True
        """
        if max_overhead is not None:
            options.number(max_overhead, "max_overhead", least=0)
        return budget_search.least_budget(self._options, args, kwargs, max_overhead)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The program of a call, lowered; as `jax.jit(fn).lower`."""
        program = self._program(args, kwargs)
        with program.guard.opened():
            lowered: jax.stages.Lowered = program.jitted.lower(*args, **kwargs)
            return lowered

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The program of a call, traced; as `jax.jit(fn).trace`."""
        unguarded = self._program(args, kwargs).unguarded
        if unguarded is None:
            unguarded = make_program(self._options, args, kwargs, stored=False).unguarded
        traced: jax.stages.Traced = unguarded.trace(*args, **kwargs)
        return traced

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of results; as `jax.jit(fn).eval_shape`."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets all programs."""
        with self._lock:
            self._programs.cache_clear()
            self._plain.clear_cache()
            if self._options.budget is not None:
                self._last = _refuse

    def __copy__(self) -> PlannedFunction[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedFunction[P, R]:
        return self  # functions are not copied

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method."""
        return self if instance is None else functools.partial(self, instance)

    def _program(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JittedProgram:
        try:
            key = signature_key(self._options.convention, args, dict(kwargs))
        except (TypeError, ValueError, OverflowError):
            self._plain.trace(*args, **kwargs)  # JAX says what is wrong with the arguments
            raise
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                found = make_program(self._options, args, dict(kwargs))
                self._programs[key] = found
            return found


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise Refused
