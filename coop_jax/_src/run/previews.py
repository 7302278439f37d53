"""What `run` can say of a call before it is made: simulations, the smallest budget.

Thread rule: functions of their arguments. Cost: a plan or several; tracing, where no such call was
made before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coop_jax._src.execution.function_settings import FunctionSettings
from coop_jax._src.planning import policies
from coop_jax._src.run.specialization import Signature
from coop_jax._src.simulate import budget_search
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.simulate.simulator import Simulator
from coop_jax._src.simulate.traced_program import TracedProgram, traced_program
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import options
from coop_jax._src.util.calling_convention import Fixed

# The signature of a call, given its static values, leaves and structure; None if there was none.
Known = Callable[[Fixed, list[Any], Any], Signature | None]


def simulate(
    settings: FunctionSettings,
    known: Known,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    budget: budgets.Budget,
) -> Simulation:
    """Simulates a call under a budget; under the function's own if None."""
    runtime = settings.home.here(join=False)
    own = settings.budget if runtime is None else runtime.budget_bytes
    checked = budgets.check_budget(budget)
    return _simulator(settings, known, args, kwargs).simulate(own if checked is None else checked)


def traced(
    settings: FunctionSettings, known: Known, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TracedProgram:
    """The program of a call; that of an earlier one like it if there was one."""
    signature = known(*settings.convention.flatten(tuple(args), dict(kwargs)))
    if signature is not None and signature.program is not None:
        name = getattr(settings.convention.fn, "__name__", "step")
        return TracedProgram(name, signature.program)
    return traced_program(settings.convention, args, kwargs, settings.fusion)


def min_budget(
    settings: FunctionSettings,
    known: Known,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    max_overhead: float | None,
) -> int:
    """The smallest budget with which a call completes."""
    if max_overhead is not None:
        options.number(max_overhead, "max_overhead", least=0)
    return budget_search.least_budget(
        _simulator(settings, known, args, kwargs, compile=True), max_overhead
    )


def _simulator(
    settings: FunctionSettings,
    known: Known,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    compile: bool = False,
) -> Simulator:
    static, leaves, tree = settings.convention.flatten(tuple(args), dict(kwargs))
    signature = known(static, leaves, tree)
    runtime = settings.home.here(join=False)
    kept = 0 if runtime is None else runtime.workspace_bytes
    needed = None if signature is None else signature.workspaces
    policy = settings.policy or policies.DEFAULT if runtime is None else runtime.policy
    workspace = kept or None if needed is None else needed
    return Simulator(
        traced(settings, known, args, kwargs),
        policy,
        None,
        None,
        workspace,
        kept_bytes=kept,
        compile=compile,
        device=None if runtime is None else runtime.device,
    )
