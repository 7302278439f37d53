"""One program of a function under `coop_jax.jit`: of one signature, compiled, within the budget.

Model: first what `jax.jit` makes of the function is compiled: where that fits it is the program,
and a budget that is a fraction is one of what it needs. Else its jaxpr is planned. What XLA has
compiled to see what it needs is what runs: JAX takes it from the jitted function's own caches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from coop_jax._src.compat import compiled_memory
from coop_jax._src.compat.guards import Guard
from coop_jax._src.ir import cost_model
from coop_jax._src.jit.emission import emitted, first_read
from coop_jax._src.jit.fitting import Fitted, fit
from coop_jax._src.jit.program_planner import PlannedProgram, ProgramPlanner
from coop_jax._src.jit.report import PlanReport, lines_of
from coop_jax._src.jit.signatures import device_of
from coop_jax._src.planning.policies import Policy
from coop_jax._src.util.calling_convention import Convention
from coop_jax._src.util.errors import BudgetExceededError, CompiledBudgetReport


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


@dataclasses.dataclass(frozen=True, slots=True)
class JittedProgram:
    """A program that fits.

    Attributes:
      jitted: JAX's function; it refuses what it was not made for.
      guard: what refuses.
      report: what was found.
    """

    jitted: Any
    guard: Guard
    report: PlanReport


def make_program(
    options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> JittedProgram:
    """The program of a call.

    Raises:
      BudgetExceededError: nothing that was found fits.
      NotImplementedError: it would have to be planned, and cannot be.
      What `jax.jit` raises where it traces and compiles.
    """
    guard = Guard()
    plain = options.jitted(_guarded(options.convention, guard), options.compiler_options)
    with guard.opened():
        traced = plain.trace(*args, **kwargs)
        needed = compiled_memory.needed_bytes(traced.lower().compile())
    budget = options.budget
    if isinstance(budget, float):
        budget = max(1, int(needed * budget))
    if budget is None or needed <= budget:
        return JittedProgram(plain, guard, PlanReport(budget, needed, needed))
    return _planned(options, args, kwargs, traced, budget, needed)


def _planned(
    options: JitOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    traced: jax.stages.Traced,
    budget: int,
    jit_bytes: int,
) -> JittedProgram:
    device = device_of(jax.tree.leaves((args, kwargs)))
    planner = ProgramPlanner(
        traced.jaxpr,
        [info.donated for info in jax.tree.leaves(traced.args_info)],
        device,
        options.profile or cost_model.profile_for(device.platform),
        options.policy,
        respect_checkpoints=options.respect_checkpoints,
    )
    out_tree = jax.tree.structure(traced.out_info)
    xla_options = compiled_memory.options_for_plans(device.platform, options.compiler_options)

    def compiled(planned: PlannedProgram) -> tuple[tuple[Any, Guard], int]:
        guard = Guard()
        function = _following(options.convention, planned, out_tree, guard)
        jitted = options.jitted(function, xla_options)
        with guard.opened():
            made = jitted.lower(*args, **kwargs).compile()
        return (jitted, guard), compiled_memory.needed_bytes(made)

    fitted = fit(planner, compiled, budget)
    if fitted.needed_bytes > budget:
        raise BudgetExceededError(_refusal(fitted, budget, jit_bytes))
    planned, (jitted, guard) = fitted.planned, fitted.made
    report = PlanReport(
        budget,
        jit_bytes,
        fitted.needed_bytes,
        planned.predicted_bytes,
        fitted.attempts,
        planned.remade.recomputations,
        planned.recompute_share,
        lines_of(planned),
    )
    return JittedProgram(jitted, guard, report)


def _refusal(fitted: Fitted[Any], budget: int, jit_bytes: int) -> CompiledBudgetReport:
    smallest = min(jit_bytes, fitted.needed_bytes)
    return CompiledBudgetReport(budget, smallest, jit_bytes, len(fitted.attempts))


def _guarded(convention: Convention, guard: Guard) -> Callable[..., Any]:
    """The user's function; JAX neither traces nor lowers it while the guard is closed."""

    @functools.wraps(convention.fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard.check()
        static, leaves, tree = convention.flatten(args, kwargs)
        flat, _ = convention.flat_function(static, leaves, tree)
        watched = [guard.watched(x) for x in leaves]
        given = {id(w): x for w, x in zip(watched, leaves, strict=True)}
        # An argument that is returned is the argument: JAX passes it on without computing it.
        return jax.tree.map(lambda x: given.get(id(x), x), flat(*watched))

    return guarded


def _following(
    convention: Convention, planned: PlannedProgram, out_tree: Any, guard: Guard
) -> Callable[..., Any]:
    """A function of the same arguments and results that follows a plan."""
    program = planned.remade.program
    function = emitted(program)
    first = first_read(program)

    @functools.wraps(convention.fn)
    def following(*args: Any, **kwargs: Any) -> Any:
        guard.check()
        _, leaves, _ = convention.flatten(args, kwargs)
        if first is not None:
            leaves[first] = guard.watched(leaves[first])
        return jax.tree.unflatten(out_tree, function(*leaves))

    return following
