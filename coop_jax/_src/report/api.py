"""`coop_jax.memory`: where the memory of a program goes, before it runs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coop_jax._src.compat import program_memory
from coop_jax._src.eager.api import EagerFunction
from coop_jax._src.execution.wrapped_function import WrappedFunction
from coop_jax._src.jit.api import jit
from coop_jax._src.jit.library_function import LibraryFunction
from coop_jax._src.jit.planned_function import PlannedFunction
from coop_jax._src.report.accepted import accepted
from coop_jax._src.report.compiled_report import compiled_report
from coop_jax._src.report.elsewhere import caller_of_this_package, held_elsewhere
from coop_jax._src.report.memory_report import BudgetCost, MemoryReport
from coop_jax._src.report.planned import planned_report
from coop_jax._src.run.api import BudgetedFunction, WrappedRun
from coop_jax._src.run.budget_queries import sweep
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.util import library_jits, options
from coop_jax._src.util.calling_convention import convention_of
from coop_jax._src.util.errors import BudgetExceededError, CompiledBudgetReport

_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
_MOST_OVERHEAD = 0.1


def memory(
    fn: Callable[..., Any] | jax.stages.Lowered | jax.stages.Compiled,
    *args: Any,
    budgets: bool = False,
    **kwargs: Any,
) -> MemoryReport:
    """Says where the memory of a program goes, before it runs.

    The program is compiled, as `jax.jit` does at the first call, and XLA's buffer assignment is
    read: what lies where, and when. Nothing runs, and nothing is allocated for the program. What
    `coop_jax.run` returned is not compiled: its plan for a first call says it all, up to XLA's
    temporary memory in single operations. Of `remat_eager` it is the plan that `run` would have.
    If the budget of a function does not suffice, the report is of its program without one, and says
    so.

    Args:
      fn: a function of pytrees of arrays; also one of `jax.jit`, `flax.nnx.jit`,
        `equinox.filter_jit` or `coop_jax.jit`, with what is donated and static there; what `lower`
        or `compile` returned; a function of `coop_jax.run` or `remat_eager`.
      *args: its arguments; arrays or `jax.ShapeDtypeStruct`s, with shardings as for a call. None
        for a program that is lowered or compiled.
      budgets: whether to plan what budgets would cost under `coop_jax.jit`, and to compile plans
        until one is known to deserve to be recommended.
      **kwargs: its keyword arguments, likewise.

    Returns:
      The account. `print` shows it; so does a notebook.

    Raises:
      TypeError: `fn` is neither a function nor a program, or a program with arguments or budgets.
      NotImplementedError: the platform does not say what a program needs.
      What `jax.jit` raises where it traces and compiles.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> def loss(w, x):
      ...     for _ in range(8):
      ...         x = jnp.tanh(x @ w)
      ...     return (x**2).mean()
      >>> w, x = jnp.ones((256, 256)), jax.ShapeDtypeStruct((4096, 256), jnp.float32)
      >>> report = coop_jax.memory(jax.grad(loss), w, x)
      >>> max(report.by_kind, key=report.by_kind.get)
      'residuals'
      >>> sum(b.nbytes for b in report.buffers) == report.peak_bytes
      True
    """
    options.flag(budgets, "budgets")
    if isinstance(fn, (BudgetedFunction, WrappedRun, EagerFunction, WrappedFunction)):
        if budgets:
            raise TypeError("budgets=True plans for coop_jax.jit: give the function itself")
        return planned_report(fn, args, kwargs, caller_of_this_package())
    refusal = ""
    try:
        program = accepted(fn, args, kwargs)
    except BudgetExceededError as error:
        if not isinstance(error.report, CompiledBudgetReport):
            raise
        refusal, fn = _refusal(error.report), _without_budget(fn)
        program = accepted(fn, args, kwargs)
    said = program_memory.of_compiled(program.compiled)
    elsewhere = held_elsewhere(jax.tree.leaves((args, kwargs)), caller_of_this_package())
    found = compiled_report(said, program.arguments, program.results, elsewhere)
    costs = _budget_costs(fn, args, kwargs, found.peak_bytes) if budgets else ()
    costs, recommended = _tried(fn, args, kwargs, costs)
    return dataclasses.replace(
        found,
        name=program.name or found.name,
        budgets=costs,
        recommended_budget=recommended,
        refusal=refusal,
    )


def _refusal(report: CompiledBudgetReport) -> str:
    """In the words of `Simulation`."""
    budget, plain, smallest = map(
        options.format_bytes,
        (report.budget_bytes, report.jit_bytes, report.smallest_budget_bytes),
    )
    without = f"fits into {plain} without recomputation"
    return f"does not fit into {budget}; {without}, and into {smallest}"


def _without_budget(fn: Any) -> Any:
    """What `coop_jax.jit` returned, as without a budget."""
    if isinstance(fn, functools.partial):  # of a method
        return functools.partial(_without_budget(fn.func), *fn.args, **fn.keywords)
    if isinstance(fn, PlannedFunction):
        return PlannedFunction(dataclasses.replace(fn.options, budget=None))
    return inspect.unwrap(fn, stop=lambda f: not isinstance(f, LibraryFunction))


def _tried(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], costs: Sequence[BudgetCost]
) -> tuple[tuple[BudgetCost, ...], int | None]:
    """Costs, and the least budget that is known to cost little: compiled, smallest first.

    What was only expected is replaced by what compiling has shown.
    """
    known = sorted(costs, key=lambda cost: cost.budget_bytes)
    recommended = None
    for number, cost in enumerate(known):
        if cost.feasible and cost.overhead <= _MOST_OVERHEAD:
            known[number] = cost = _tried_budget(fn, args, kwargs, cost.budget_bytes)
            if cost.feasible and cost.overhead <= _MOST_OVERHEAD:
                recommended = cost.budget_bytes
                break
    return tuple(known[::-1]), recommended


def _tried_budget(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], budget_bytes: int
) -> BudgetCost:
    try:
        share = _under_jit(fn, budget_bytes).plan(*args, **kwargs).recompute_share
    except BudgetExceededError:
        return BudgetCost(budget_bytes, False, 0.0)
    return BudgetCost(budget_bytes, True, share / max(1 - share, 1e-9))


def _under_jit(fn: Any, budget_bytes: int) -> Any:
    """A function under `coop_jax.jit` with a budget, whatever its own."""
    if isinstance(fn, PlannedFunction):
        return PlannedFunction(dataclasses.replace(fn.options, budget=budget_bytes))
    return jit(_without_budget(fn), budget=budget_bytes)


def _budget_costs(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], peak_bytes: int
) -> tuple[BudgetCost, ...]:
    if isinstance(fn, (jax.stages.Lowered, jax.stages.Compiled)):
        raise TypeError("budgets=True needs the function: a program that is lowered has no plan")
    budgets = [int(share * peak_bytes) for share in _SHARES]
    own = inspect.unwrap(fn, stop=lambda f: not isinstance(f, LibraryFunction))
    wrapper = library_jits.taken_apart(own)
    if wrapper is None:
        found = sweep(fn, *args, front_end="jit", budget=budgets, **kwargs)
    else:
        pure = wrapper.convention(convention_of(own))

        def swept(*given: Any, **named: Any) -> list[Simulation]:
            return sweep(
                pure.fn,
                *given,
                front_end="jit",
                budget=budgets,
                donate_argnums=pure.donate_argnums,
                donate_argnames=pure.donate_argnames,
                static_argnums=pure.static_argnums,
                static_argnames=pure.static_argnames,
                **named,
            )

        found = wrapper.ask(swept, args, kwargs)
    return tuple(
        BudgetCost(budget, s.feasible, s.overhead) for budget, s in zip(budgets, found, strict=True)
    )
