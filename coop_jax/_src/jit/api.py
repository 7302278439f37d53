"""`coop_jax.jit`: `jax.jit` with a memory budget for each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from coop_jax._src.compat import jits
from coop_jax._src.ir.cost_model import DeviceProfile
from coop_jax._src.jit.constants import TUNED
from coop_jax._src.jit.library_function import LibraryFunction
from coop_jax._src.jit.options import JitOptions
from coop_jax._src.jit.planned_function import PlannedFunction
from coop_jax._src.planning import policies
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import library_jits
from coop_jax._src.util import options as checks
from coop_jax._src.util.calling_convention import Names, Numbers, convention_of

_POLICY = policies.Policy(policies.DEFAULT, search_effort=TUNED.search_effort)

P = ParamSpec("P")
R = TypeVar("R")


def jit(
    fn: Callable[P, R],
    *,
    budget: budgets.Budget = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    policy: str | policies.Policy | None = None,
    device_profile: DeviceProfile | None = None,
    respect_checkpoints: bool = True,
    compiler_options: Mapping[str, Any] | None = None,
    **jit_options: Any,
) -> PlannedFunction[P, R]:
    """`jax.jit` under a memory budget: recomputes what does not fit, by a plan made ahead.

    The first call with arguments of some shapes, dtypes and shardings plans what to keep and what
    to recompute, and compiles the plan as one XLA program. If XLA needs more than the budget for
    it, it plans again for less. Where the budget suffices for the program of `jax.jit`, that
    program runs. Results equal those of `jax.jit` up to rounding, since XLA fuses other operations;
    random numbers are the same.

    Inside another transformation of JAX (`jax.jit`, `jax.grad`, `jax.vmap`) it is `jax.jit(fn)`:
    the budget is one of whole programs, so the outermost function is the one to give it to.

    Args:
      fn: a function of pytrees of arrays, as for `jax.jit`; it may be jitted already, with what is
        donated and static there, also by `flax.nnx.jit` or `equinox.filter_jit`, and then does all
        that these promise.
      budget: on each device, for arguments, results and temporary memory: bytes (int), a string
        such as "20GiB", a fraction in (0, 1] of what `jax.jit` needs, or None for no cap.
      donate_argnums: positions of arguments that the function replaces, as for `jax.jit`.
      donate_argnames: their names.
      static_argnums: positions of arguments that are Python values.
      static_argnames: their names.
      policy: how to plan, as for `run`; None for "lookahead" with a shorter search.
      device_profile: what operations cost; None for that of the platform.
      respect_checkpoints: whether what `jax.checkpoint` encloses is recomputed as a whole, as it
        says. If not, the plan decides.
      compiler_options: XLA's, as for `jax.jit`.
      **jit_options: other options of `jax.jit`: `in_shardings`, `out_shardings`, `keep_unused`, ...

    Returns:
      A function that is called, lowered and inspected like what `jax.jit` returns, with `plan`.

    Raises:
      TypeError, ValueError: arguments that make no sense, before any tracing.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> def loss(w, x):
      ...     for _ in range(8):
      ...         x = jnp.tanh(x @ w)
      ...     return (x**2).mean()
      >>> step = coop_jax.jit(jax.grad(loss), budget=0.6)
      >>> w, x = jnp.ones((256, 256)), jnp.ones((4096, 256))
      >>> step(w, x).shape
      (256, 256)
      >>> step.plan(w, x).needed_bytes <= 0.6 * step.plan(w, x).jit_bytes
      True
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function of arrays, got {type(fn).__name__}")
    convention = convention_of(fn, donate_argnums, donate_argnames, static_argnums, static_argnames)
    wrapper = library_jits.taken_apart(fn)
    if wrapper is not None:
        convention = wrapper.convention(convention)
    if wrapper is not None or any(jits.said_of(fn)):  # what that says of arguments counts, too
        donate_argnums, donate_argnames = convention.donate_argnums, convention.donate_argnames
        static_argnums, static_argnames = convention.static_argnums, convention.static_argnames
    chosen = JitOptions(
        convention=convention,
        budget=budgets.check_budget(budget),
        policy=_POLICY if policy is None else policies.resolve_policy(policy),
        profile=device_profile,
        respect_checkpoints=checks.flag(respect_checkpoints, "respect_checkpoints"),
        compiler_options=None if compiler_options is None else dict(compiler_options),
        others={
            **jit_options,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
        },
    )
    planned: PlannedFunction[P, R] = PlannedFunction(chosen)
    if wrapper is None:
        return planned
    return cast(PlannedFunction[P, R], LibraryFunction(fn, wrapper, planned))
