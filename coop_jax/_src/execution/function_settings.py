"""Functions under a budget, by whichever front end: what they were given, how they are copied."""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from typing import Any, Self

from coop_jax._src.execution.homes import Home
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.planning.policies import Policy
from coop_jax._src.util.calling_convention import Convention


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionSettings:
    """A function, and how it is to run.

    Attributes:
      convention: the function, and how it takes its arguments.
      budget: bytes, a fraction of what the function needs, or None for no cap.
      policy: None for the front end's default.
      home: which runtime calls run in.
      fusion: whether operations are fused; `run` alone does.
    """

    convention: Convention
    budget: int | float | None
    policy: Policy | None
    home: Home
    fusion: bool = False

    def copied(self) -> FunctionSettings:
        """Those of a copy: another function, in the same runtime if that was given."""
        return dataclasses.replace(self, home=copy.copy(self.home))

    def sibling(
        self, convention: Convention, *, budget: int | float | None = None, home: Home | None = None
    ) -> FunctionSettings:
        """Those of a part of the function, in its runtime or in this `home`."""
        home = Home(None, self.home.here()) if home is None else home
        return FunctionSettings(convention, budget, self.policy, home)

    def runtime(self) -> Runtime:
        """The runtime of the last call.

        Raises:
          RuntimeError: there was none.
        """
        if self.home.latest is None:
            raise RuntimeError("the runtime is made by the first call of this function")
        return self.home.latest


class FunctionUnderBudget:
    """What the functions of both front ends have in common; each defines `__call__`."""

    def __init__(self, settings: FunctionSettings):
        functools.update_wrapper(self, settings.convention.fn, updated=())  # type: ignore[arg-type]
        self._settings = settings
        self._home = settings.home

    @property
    def runtime(self) -> Runtime:
        """The runtime the function runs in; the last call's if there are several.

        Raises:
          RuntimeError: before the first call.
        """
        return self._settings.runtime()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """A method, where the function is an attribute of a class."""
        return self if instance is None else types.MethodType(self, instance)  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings.copied(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy.copy(self)  # functions are not copied, nor are runtimes
