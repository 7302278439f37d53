"""Which runtime the calls of one function run in.

Model: a runtime belongs to one device. A function that was given one, or found one around its first
call (`with Runtime(...)`), keeps it, as does one that was given a device. Any other follows
`jax.default_device` as jitted functions do: it has a runtime for each device that was the default
in a call, every one under the function's own budget.

Thread rule: a call looks once, and keeps what it found.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from coop_jax._src.compat import contexts
from coop_jax._src.execution.runtime import Runtime, shared_runtime
from coop_jax._src.planning.policies import Policy


class Home:
    """Runtimes of one function."""

    __slots__ = ("_device", "_given", "_is_kept", "_joins", "_made", "_policy", "latest")

    def __init__(
        self,
        device: jax.Device | None,
        runtime: Runtime | None,
        policy: Policy | None = None,
        *,
        joins: bool = False,
    ):
        """Of a function that was given these; if it `joins`, one around its first call will do."""
        self.latest = runtime  # of the last call
        self._device, self._given, self._policy, self._joins = device, runtime, policy, joins
        self._is_kept = runtime is not None
        self._made: dict[jax.Device, Runtime] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is of a function that was not called yet.
        given = self._device, self._given, self._policy
        return functools.partial(Home, joins=self._joins), given

    def device(self) -> jax.Device:
        """Where a call of now runs."""
        entered = self._entered()
        if entered is not None:
            return entered.device
        latest = self.latest
        if self._is_kept and latest is not None:
            return latest.device
        return self._device or contexts.default_device()

    def here(self, *, join: bool = True) -> Runtime | None:
        """The runtime of a call of now; None if it is to be made.

        One that was entered is kept from then on, if the function is to `join` it: a call is made,
        and nothing speaks against it.
        """
        entered = self._entered()
        if entered is not None:
            if join:
                self.latest, self._is_kept = entered, True
            return entered
        if self._is_kept:
            return self.latest
        found = self._made.get(self.device())
        if found is not None:
            self.latest = found
        return found

    def keep(self, runtime: Runtime) -> Runtime:
        """The runtime, made for calls that run on its device."""
        self.latest = self._made[runtime.device] = runtime
        return runtime

    def _entered(self) -> Runtime | None:
        """The runtime around the call, for a function that has none and may join it."""
        if not self._joins or self.latest is not None:
            return None
        return shared_runtime(self._policy, self._device)
