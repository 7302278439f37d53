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

from coop_jax._src.compat import compiled_memory, jaxprs, processes, refs
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
      unguarded: the same function for what is done with it outside of calls, such as its jaxpr.
      report: what was found.
    """

    jitted: Any
    guard: Guard
    unguarded: Any
    report: PlanReport


@dataclasses.dataclass(frozen=True, slots=True)
class PlainProgram:
    """What `jax.jit` makes of a call.

    Attributes:
      jitted: JAX's function; it refuses other calls.
      guard: what refuses.
      traced: what JAX traced.
      compiled: what XLA made of it.
    """

    jitted: Any
    guard: Guard
    traced: jax.stages.Traced
    compiled: jax.stages.Compiled

    @property
    def needed_bytes(self) -> int:
        """What XLA needs for it on one device."""
        return compiled_memory.needed_bytes(self.compiled)


def traced_program(
    options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Guard, jax.stages.Traced]:
    """The function of a call under `jax.jit`, its guard, what JAX traces of it."""
    guard = Guard()
    jitted = options.jitted(_guarded(options.convention, guard), options.compiler_options)
    with guard.opened():
        return jitted, guard, jitted.trace(*args, **kwargs)


def plain_program(
    options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PlainProgram:
    """What `jax.jit` makes of a call.

    Raises:
      What `jax.jit` raises where it traces and compiles.
    """
    jitted, guard, traced = traced_program(options, args, kwargs)
    with guard.opened():
        return PlainProgram(jitted, guard, traced, traced.lower().compile())


def make_program(
    options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> JittedProgram:
    """The program of a call.

    Raises:
      BudgetExceededError: nothing that was found fits.
      NotImplementedError: it would have to be planned, and cannot be.
      What `jax.jit` raises where it traces and compiles.
    """
    plain = plain_program(options, args, kwargs)
    needed = plain.needed_bytes
    together = processes.spans_processes(plain.compiled)
    if together:
        check_agreement(f"{options.budget} {needed} {options.respect_checkpoints}", "budgets")
    budget = options.budget
    if isinstance(budget, float):
        budget = max(1, int(needed * budget))
    if budget is None or needed <= budget:
        unguarded = options.jitted(options.convention.fn, options.compiler_options)
        report = PlanReport(budget, needed, needed)
        return JittedProgram(plain.jitted, plain.guard, unguarded, report)
    planning = Planning(options, args, kwargs, plain.traced, together=together)
    planner = planning.planner(compiled_memory.device_count(plain.compiled))
    fitted = fit(planner, planning.compiled, budget)
    if fitted.smallest_bytes is not None:
        raise BudgetExceededError(_refusal(fitted, budget, needed))
    planned, (jitted, guard) = fitted.planned, fitted.made
    report = PlanReport(
        budget,
        needed,
        fitted.needed_bytes,
        planned.predicted_bytes,
        fitted.attempts,
        planned.remade.recomputations,
        planned.recompute_share,
        lines_of(planned),
    )
    return JittedProgram(jitted, guard, planning.unguarded(planned), report)


def check_agreement(text: str, what: str) -> None:
    """Compares a text among the processes that run a program together.

    Raises:
      RuntimeError: they differ.
    """
    if not processes.agree(text):
        raise RuntimeError(
            f"coop_jax.jit: the processes that run this program together have different {what}."
            " They must call the same function, with arguments of the same shapes and the same"
            " budget, on devices of the same kind, under the same versions and environment."
        )


class Planning:
    """Plans of a call, and what is compiled of them.

    Args:
      options: what the user says of the function.
      args, kwargs: of the call.
      traced: what JAX traced of it.
      together: whether several processes run it, which have to make the same plan.
    """

    def __init__(
        self,
        options: JitOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: jax.stages.Traced,
        *,
        together: bool,
    ):
        self._options, self._args, self._kwargs = options, args, kwargs
        self._traced, self._together = traced, together
        self._out_tree = jax.tree.structure(traced.out_info)
        self._device = device_of(jax.tree.leaves((args, kwargs)))

    def planner(self, devices: int) -> ProgramPlanner:
        """The planner of the call on so many devices.

        Raises:
          NotImplementedError: it cannot be planned.
        """
        options, device = self._options, self._device
        return ProgramPlanner(
            self._traced.jaxpr,
            [info.donated for info in jax.tree.leaves(self._traced.args_info)],
            device,
            options.profile or cost_model.profile_for(device.platform),
            options.policy,
            respect_checkpoints=options.respect_checkpoints,
            compile=self._compiled_quickly if devices > 1 else None,
        )

    def compiled(self, planned: PlannedProgram) -> tuple[tuple[Any, Guard], int]:
        """A plan under `jax.jit`, and what XLA needs for it."""
        guard, program = Guard(), planned.remade.program
        if self._together:
            labels = [op.kernel.label for op in program.operations]
            check_agreement(f"{planned.remade.origins} {labels}", "plans")
        function = self._called_alike(emitted(program), guard, first_read(program))
        jitted = self._options.jitted(function, self._xla_options())
        with guard.opened():
            made = jitted.lower(*self._args, **self._kwargs).compile()
        return (jitted, guard), compiled_memory.needed_bytes(made)

    def _compiled_quickly(self, function: Callable[..., list[Any]]) -> jax.stages.Compiled:
        """A function of the inputs, for all devices; not to run."""
        guard = Guard()
        options = compiled_memory.quick_options(
            self._device.platform, self._options.compiler_options
        )
        jitted = self._options.jitted(self._called_alike(function, guard, None), options)
        with guard.opened():
            made: jax.stages.Compiled = jitted.lower(*self._args, **self._kwargs).compile()
        return made

    def unguarded(self, planned: PlannedProgram) -> Any:
        """A plan under `jax.jit`, that takes whatever has the shapes that it was planned for."""
        function = self._called_alike(emitted(planned.remade.program), None, None)
        return self._options.jitted(function, self._xla_options())

    def _xla_options(self) -> dict[str, Any]:
        return compiled_memory.options_for_plans(
            self._device.platform, self._options.compiler_options
        )

    def _called_alike(
        self, function: Callable[..., list[Any]], guard: Guard | None, watched: int | None
    ) -> Callable[..., Any]:
        """A function of leaves as one of the user's arguments and results.

        `watched` is the number of a leaf that it reads, for the guard.
        """
        convention, out_tree = self._options.convention, self._out_tree
        out_avals = self._traced.jaxpr.out_avals

        @functools.wraps(convention.fn)
        def following(*args: Any, **kwargs: Any) -> Any:
            if guard is not None:
                guard.check()
            _, leaves, _ = convention.flatten(args, kwargs)
            if guard is not None and watched is not None:
                leaves[watched] = guard.watched(leaves[watched])
            results = map(jaxprs.as_weak_as, function(*leaves), out_avals)
            return jax.tree.unflatten(out_tree, results)

        return following


def _refusal(fitted: Fitted[Any], budget: int, jit_bytes: int) -> CompiledBudgetReport:
    assert fitted.smallest_bytes is not None
    smallest = min(jit_bytes, fitted.smallest_bytes)
    return CompiledBudgetReport(budget, smallest, jit_bytes, len(fitted.attempts))


def _guarded(convention: Convention, guard: Guard) -> Callable[..., Any]:
    """The user's function; JAX neither traces nor lowers it while the guard is closed."""

    @functools.wraps(convention.fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard.check()
        static, leaves, tree = convention.flatten(args, kwargs)
        flat, _ = convention.flat_function(static, leaves, tree)
        watched = [x if refs.is_ref_aval(jaxprs.aval_of(x)) else guard.watched(x) for x in leaves]
        given = {id(w): x for w, x in zip(watched, leaves, strict=True)}
        # An argument that is returned is the argument: JAX passes it on without computing it.
        return jax.tree.map(lambda x: given.get(id(x), x), flat(*watched))

    return guarded
