"""A function under a budget within another library's `jit`; see `util.library_jits`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from coop_jax._src.execution.function_settings import FunctionUnderBudget
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.util.calling_convention import Convention
from coop_jax._src.util.library_jits import Wrapper, taken_apart

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=FunctionUnderBudget)


class WrappedFunction(Generic[P, R, F]):
    """A function under a library's `jit` and a budget; made by `run` and `remat_eager`.

    It stands for what these return of other functions.

    Args:
      fn: the library's wrapper, as it was given.
      wrapper: the same, taken apart.
      inner: its pure function under the budget.
    """

    def __init__(self, fn: Callable[P, R], wrapper: Wrapper, inner: F):
        functools.update_wrapper(self, fn, updated=())
        self._wrapper = wrapper.calling(cast(Callable[..., Any], inner))
        self._inner = inner

    @property
    def runtime(self) -> Runtime:
        """The runtime the function runs in.

        Raises:
          RuntimeError: before the first call.
        """
        return self._inner.runtime

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function, as the library's wrapper does."""
        result: R = self._wrapper(*args, **kwargs)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method, of modules for example."""
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> WrappedFunction[P, R, F]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedFunction[P, R, F]:
        return self  # functions are not copied


def applied(
    make: Callable[[Convention], F],
    convention: Convention,
    wrap: Callable[[Callable[..., Any], Wrapper, F], object],
) -> F:
    """What `make` makes of a function.

    Of a library's wrapper it is made of the pure function, and `wrap` puts the wrapper around it.
    """
    fn = convention.fn
    wrapper = taken_apart(fn)
    if wrapper is None:
        return make(convention)
    return cast(F, wrap(fn, wrapper, make(wrapper.convention(convention))))
