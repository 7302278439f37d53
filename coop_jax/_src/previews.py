"""What `run` can say of a call before it is made: simulations, the smallest budget.

Thread rule: functions of their arguments. Cost: a plan or several; tracing, where no such call was
made before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coop_jax._src.planning import policies
from coop_jax._src.simulate import budget_search
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.simulate.simulator import Simulator
from coop_jax._src.simulate.traced_program import TracedProgram, traced_program
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import options

if TYPE_CHECKING:
    from coop_jax._src.run import BudgetedFunction


def simulate(
    owner: BudgetedFunction[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    budget: budgets.Budget,
) -> Simulation:
    """Simulates a call under a budget; under the function's own if None."""
    runtime = owner._home.here(join=False)
    own = owner._budget if runtime is None else runtime.budget_bytes
    checked = budgets.check_budget(budget)
    return _simulator(owner, args, kwargs).simulate(own if checked is None else checked)


def min_budget(
    owner: BudgetedFunction[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    max_overhead: float | None,
) -> int:
    """The smallest budget with which a call completes."""
    if max_overhead is not None:
        options.number(max_overhead, "max_overhead", least=0)
    return budget_search.least_budget(_simulator(owner, args, kwargs, compile=True), max_overhead)


def _simulator(
    owner: BudgetedFunction[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    compile: bool = False,
) -> Simulator:
    static, leaves, tree = owner._convention.flatten(tuple(args), dict(kwargs))
    signature = owner._known(static, leaves, tree)
    if signature is not None and signature.program is not None:
        traced = TracedProgram(getattr(owner, "__name__", "step"), signature.program)
    else:
        traced = traced_program(owner._convention, args, kwargs, owner._fusion)
    runtime = owner._home.here(join=False)
    kept = 0 if runtime is None else runtime._workspace_bytes
    needed = None if signature is None else signature.workspaces
    policy = owner._policy or policies.DEFAULT if runtime is None else runtime.policy
    workspace = kept or None if needed is None else needed
    return Simulator(
        traced,
        policy,
        None,
        None,
        workspace,
        kept_bytes=kept,
        compile=compile,
        device=None if runtime is None else runtime.device,
    )
