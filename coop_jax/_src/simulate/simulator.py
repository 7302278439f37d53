"""What a budget will cost: the runtime's own planner, without device memory and without running.

Model: `simulate` plans a program exactly as `run` would for its first call, and reports what the
plan does. All decisions are the engine's; nothing here decides. What runs later with the same
program, budget, policy and workspace carries out the same actions.

Costs: without a profile those that the runtime plans with on this machine's default device. A
`device_profile` plans and prices for another device; measured `costs` price only, since the runtime
does not plan with them. Search times are measured here, on this machine.

Workspace (XLA's temporary memory) is known only once operations were compiled, which simulating
does only if it is asked to: else it is an argument, 0 if not given (or what measured costs have
seen).

Invariants: this module and what it imports do not import the executor.
Thread rule: simulations of one program may run in several threads; planning lets go of the
interpreter lock. Cost: one plan, or several where the first does not fit or costs much.
Source: paper section 4.2 (metrics).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat import contexts
from coop_jax._src.execution import fitting
from coop_jax._src.ir import cost_model as cost_models
from coop_jax._src.ir import kernels
from coop_jax._src.planning import constants as planning_constants
from coop_jax._src.planning import planner as planning
from coop_jax._src.planning import policies
from coop_jax._src.planning.planner import PlanSettings
from coop_jax._src.planning.workspace import Provision
from coop_jax._src.simulate.cpu_calibration import Profile, profile_of
from coop_jax._src.simulate.measured_costs import MeasuredCosts
from coop_jax._src.simulate.simulation import PlanBasis, Simulation, simulation_of
from coop_jax._src.simulate.traced_program import TracedProgram, trace_program
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import options
from coop_jax._src.util.calling_convention import Names, Numbers

# The most temporary memory of an operation, or that of each.
Workspace = int | str | Sequence[int] | None


class Simulator:
    """A program with everything that a simulation depends on but the budget."""

    def __init__(
        self,
        traced: TracedProgram,
        policy: str | policies.Policy | None,
        device_profile: Profile,
        costs: MeasuredCosts | None,
        workspace: Workspace,
        alternatives: bool = True,
        give_up: float = planning_constants.TUNED.give_up_factor,
        kept_bytes: int = 0,
        compile: bool = False,
        device: jax.Device | None = None,
    ):
        """Takes what `simulate` takes; `kept_bytes` of workspace are reserved in any case."""
        if costs is not None and not isinstance(costs, MeasuredCosts):
            raise TypeError(f"costs must be MeasuredCosts, got {options.shown(costs)}")
        self.workspace_is_known = compile or workspace is not None
        if workspace is None:
            workspace = costs.workspace_bytes if costs is not None else 0
        if isinstance(workspace, (list, tuple)):
            needed, checked = _of_operations(workspace, traced), kept_bytes
        else:
            needed, checked = (), budgets.workspace_bytes(workspace)  # type: ignore[arg-type]
        named = profile_of(device_profile)
        default = cost_models.profile_for(contexts.default_device().platform)
        self.traced = traced
        self.program = traced.program
        self._device = device or contexts.default_device()
        self._compiles = compile
        if compile:
            needed, checked = (
                self._compiled(
                    policies.resolve_policy(policies.DEFAULT if policy is None else policy), named
                ),
                kept_bytes,
            )
        self._kept_bytes = checked
        self._needed: Sequence[int] = needed
        self.workspace_bytes = max([checked, *needed])
        self.settings = PlanSettings(
            policies.resolve_policy(policies.DEFAULT if policy is None else policy),
            (named or default).alignment_bytes,
            named or default,
            options.flag(alternatives, "alternatives"),
            options.number(give_up, "give_up", least=0),
        )
        self.residency = planning.first_residency(self.program)
        self._cost_seconds = traced.cost_seconds(named)
        self._engine_programs: dict[Provision, _core.Program] = {}
        self.engine_program = planning.core_program(
            self.program, self.residency.donated, self._cost_seconds
        )
        self.prices = None if costs is None else costs.cost_seconds(traced)
        self.unbudgeted_peak_bytes = planning.unbudgeted_peak(
            self.program, self.engine_program, self.settings, self.workspace_bytes
        )

    def _compiled(
        self, policy: policies.Policy, named: cost_models.DeviceProfile | None
    ) -> tuple[int, ...]:
        """The workspace of each operation as it runs first."""
        if named is not None or not all(
            isinstance(op.kernel, kernels.Kernel) for op in self.program.operations
        ):
            raise ValueError(
                "compile=True is for a function or a traced program, and for the default device: a"
                " program from a file cannot be compiled, and XLA only for the device that is there"
            )
        wanted = fitting.first_forms(self.program, self._device, in_place=policy.in_place)
        return tuple(fitting.compiled_workspaces(wanted, self._device, self._cache))

    @property
    def _cache(self) -> kernels.KernelCache:
        return kernels.cache_for(self._device)

    def search_no_better_plans(self) -> None:
        """The policies' own plans will do: whether one fits is all that is asked."""
        policy = policies.without_search(self.settings.policy)
        self.settings = dataclasses.replace(self.settings, policy=policy)

    def _engine_program(self, provision: Provision) -> _core.Program:
        if not provision.own_bytes:
            return self.engine_program
        found = self._engine_programs.get(provision)
        if found is None:
            found = self._engine_programs[provision] = planning.core_program(
                self.program, self.residency.donated, self._cost_seconds, provision
            )
        return found

    def _planner(self, budget_bytes: int | None) -> planning.WorkspacePlanner:
        return planning.WorkspacePlanner(
            self.program,
            self._engine_program,
            self.residency,
            planning.UNLIMITED_BYTES if budget_bytes is None else budget_bytes,
            self._kept_bytes,
        )

    def plan(self, budget_bytes: int | None) -> _core.Plan:
        """The plan for a budget, feasible or not."""
        return self._fitted(budget_bytes).plan

    def _fitted(self, budget_bytes: int | None) -> fitting.Fitted:
        """The plan for a budget, feasible or not, and how it provides for workspace."""
        planner, plain = self._planner(budget_bytes), fitting.without_search(self.settings)
        for settings in dict.fromkeys((self.settings, plain)):  # as a call does
            made = fitting.fitted(planner, settings, self._needed, self._launches)
            if made.plan.feasible:
                break
        return made

    def _launches(self, plan: _core.Plan, provision: Provision) -> fitting.Launches:
        if not self._compiles:
            return []
        return fitting.launched(plan, self.program, self._device, self._cache)

    def resolve(self, budget: budgets.Budget) -> int | None:
        """A budget in bytes."""
        checked = budgets.check_budget(budget)
        if isinstance(checked, float):
            return max(1, int(self.unbudgeted_peak_bytes * checked))
        return checked

    def simulate(self, budget: budgets.Budget, *, find_smallest: bool = True) -> Simulation:
        """Simulates a budget; looks for one that would do if it does not."""
        budget_bytes = self.resolve(budget)
        made = self._fitted(budget_bytes)
        smallest = None
        if not made.plan.feasible and find_smallest:
            smallest = fitting.smallest_fitting(
                self._planner,
                planning.UNLIMITED_BYTES if budget_bytes is None else budget_bytes,
                self.settings,
                self._needed,
                self._launches,
            )
        return self._report(made, budget_bytes, smallest)

    def _report(
        self, made: fitting.Fitted, budget_bytes: int | None, smallest: int | None
    ) -> Simulation:
        plan, stats = made.plan, made.plan.stats
        compute, recompute = stats.compute_seconds, stats.recompute_seconds
        if self.prices is not None:
            compute = recompute = 0.0
            for action in plan.actions:
                if not isinstance(action, _core.Run):
                    continue
                recompute += self.prices[action.operation] if action.recompute else 0.0
                compute += 0.0 if action.recompute else self.prices[action.operation]
        return simulation_of(
            plan,
            self.settings.policy,
            budget_bytes,
            self.unbudgeted_peak_bytes,
            smallest_budget_bytes=smallest,
            workspace_bytes=self.workspace_bytes,
            workspace_is_known=self.workspace_is_known,
            compute_seconds=compute,
            recompute_seconds=recompute,
            basis=PlanBasis(
                self.traced.name,
                self.program,
                self.residency,
                made.provision,
                self.settings.alignment_bytes,
                self._cost_seconds if self.prices is None else self.prices,
            ),
        )


def _of_operations(workspace: Sequence[int], traced: TracedProgram) -> tuple[int, ...]:
    """Temporary memory of each operation, checked."""
    count = len(traced.program.operations)
    if len(workspace) != count:
        raise ValueError(
            f"workspace has {len(workspace)} entries, and the program {count} operations"
        )
    most = budgets.MOST_BYTES
    return tuple(
        int(options.number(w, "an entry of workspace", least=0, most=most)) for w in workspace
    )


def traced_of(
    fn: Callable[..., Any] | TracedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    donate_argnums: Numbers,
    donate_argnames: Names,
    static_argnums: Numbers,
    static_argnames: Names,
) -> TracedProgram:
    """The program of a function of these arguments; a program itself."""
    if isinstance(fn, TracedProgram):
        if args or kwargs:
            raise TypeError("a traced program has its arguments: give none")
        return fn
    if not callable(fn):
        name = type(fn).__name__
        raise TypeError(f"fn must be a function of arrays or a TracedProgram, got {name}")
    return trace_program(
        fn,
        *args,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        **kwargs,
    )


def simulate(
    fn: Callable[..., Any] | TracedProgram,
    *args: Any,
    budget: budgets.Budget = None,
    policy: str | policies.Policy = policies.DEFAULT,
    donate_argnums: Numbers = None,
    static_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnames: Names = None,
    device_profile: Profile = None,
    costs: MeasuredCosts | None = None,
    workspace: Workspace = None,
    alternatives: bool = True,
    compile: bool = False,
    **kwargs: Any,
) -> Simulation:
    """Simulates a call under a budget, without running anything.

    Args:
      fn: a function of pytrees of arrays, as for `run`; or a program from `trace_program` or
        `load_program`.
      *args: the function's arguments; arrays or `jax.ShapeDtypeStruct`s.
      budget: as for `run`: bytes, "512MiB", a fraction of the unbudgeted peak, None for no cap.
      policy: "lookahead", "coop", "dtr", "dte", or a `coop_jax.Policy`.
      donate_argnums: positions of arguments that the function replaces, as for `run`.
      static_argnums: positions of arguments that are Python values, as for `run`.
      donate_argnames: names of arguments that the function replaces.
      static_argnames: names of arguments that are Python values.
      device_profile: the device to plan for: "a100-80gb" (matrix products in TF32, JAX's default),
        "a100-80gb-fp32", "rtx-2080ti", "h200", "cpu" (this one, calibrated by a short run the first
        time), or a `DeviceProfile`; None for the profile of the default device, or of a loaded
        program.
      costs: measured seconds of operations, from `record_costs`; decisions still use the cost
        model.
      workspace: bytes of XLA's temporary memory, for each operation (`step.workspaces(*args)` of a
        real run), or the most (`step.runtime.stats().workspace_bytes`), which is then reserved
        throughout. None for what `costs` have seen, or none.
      alternatives: whether variants of the policy are tried too where its own plan does not fit or
        is costly, as the runtime does. False shows a policy as it is.
      compile: whether to compile the operations for the default device, so that their workspace is
        known and a call does as simulated. Not with a `device_profile`, nor for a program from a
        file.
      **kwargs: the function's keyword arguments.

    Returns:
      What the first call will do.

    Raises:
      ValueError: the order of operations depends on values, or an argument makes no sense.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> def loss(w, x):
      ...     for _ in range(8):
      ...         x = jnp.tanh(x @ w)
      ...     return (x**2).mean()
      >>> x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
      >>> grad = jax.grad(loss)
      >>> simulation = coop_jax.simulate(grad, x, x, budget=0.8, device_profile="a100-80gb")
      >>> simulation.feasible, simulation.rematerialisations > 0
      (True, True)
    """
    budgets.check_budget(budget)
    traced = traced_of(
        fn, args, kwargs, donate_argnums, donate_argnames, static_argnums, static_argnames
    )
    if compile and workspace is not None:
        raise ValueError("workspace= says what compile=True finds out: give one of them")
    simulator = Simulator(
        traced, policy, device_profile, costs, workspace, alternatives, compile=compile
    )
    return simulator.simulate(budget)
