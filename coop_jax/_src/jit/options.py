"""What a user says of a function under `coop_jax.jit`.

Thread rule: values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from coop_jax._src.ir import cost_model
from coop_jax._src.planning.policies import Policy
from coop_jax._src.util.calling_convention import Convention


@dataclasses.dataclass(frozen=True, slots=True)
class JitOptions:
    """What a user says of a function.

    Attributes:
      convention: the function, and which arguments are static and donated.
      budget: bytes, a fraction of what `jax.jit` needs, or None.
      policy: how to plan.
      profile: what operations cost; None for that of the platform.
      respect_checkpoints: whether `jax.checkpoint` is obeyed.
      compiler_options: XLA's.
      others: further arguments of `jax.jit`.
    """

    convention: Convention
    budget: int | float | None
    policy: Policy
    profile: cost_model.DeviceProfile | None
    respect_checkpoints: bool
    compiler_options: dict[str, Any] | None
    others: Mapping[str, Any]

    def jitted(self, fn: Callable[..., Any], compiler_options: dict[str, Any] | None) -> Any:
        """A function of the same arguments under `jax.jit`."""
        return jax.jit(fn, compiler_options=compiler_options, **self.others)
