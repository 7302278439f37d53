"""A planned function within another library's `jit`; see `util.library_jits`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from coop_jax._src.jit.planned_function import PlannedFunction
from coop_jax._src.jit.report import PlanReport
from coop_jax._src.util.library_jits import Wrapper

P = ParamSpec("P")
R = TypeVar("R")


class LibraryFunction(Generic[P, R]):
    """A function under a library's `jit` and `coop_jax.jit`: of `flax.nnx.jit`, for example.

    Args:
      fn: the library's wrapper, as it was given.
      wrapper: the same, taken apart.
      inner: its pure function under `coop_jax.jit`.
    """

    def __init__(self, fn: Callable[P, R], wrapper: Wrapper, inner: PlannedFunction[Any, Any]):
        functools.update_wrapper(self, fn, updated=())
        self._wrapper, self._inner = wrapper.calling(inner), inner

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function, as the library's wrapper does."""
        result: R = self._wrapper(*args, **kwargs)
        return result

    def plan(self, *args: Any, **kwargs: Any) -> PlanReport:
        """As `PlannedFunction.plan`."""
        return self._wrapper.ask(self._inner.plan, args, kwargs)

    def min_budget(self, *args: Any, **kwargs: Any) -> int:
        """As `PlannedFunction.min_budget`."""
        return self._wrapper.ask(self._inner.min_budget, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As `PlannedFunction.lower`: the program of the pure function."""
        return self._wrapper.ask(self._inner.lower, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method."""
        return self if instance is None else functools.partial(self, instance)

    def __copy__(self) -> LibraryFunction[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LibraryFunction[P, R]:
        return self  # functions are not copied
