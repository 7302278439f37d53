"""What budgets cost under a front end: `min_budget` and `sweep`, before anything runs.

Model: of `run` everything is simulated (`simulate`); of `coop_jax.jit` the least budget is found by
compiling, and sweeps are plans (`jit.budget_search`). It stands here since it needs both.

Thread rule: functions of their arguments. Cost: of what they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from coop_jax._src.jit import api as jit_api
from coop_jax._src.jit import budget_search as jit_search
from coop_jax._src.jit.planned_function import PlannedFunction
from coop_jax._src.planning import constants as planning_constants
from coop_jax._src.planning import policies
from coop_jax._src.simulate import budget_search
from coop_jax._src.simulate import constants as simulate_constants
from coop_jax._src.simulate.cpu_calibration import Profile, profile_of
from coop_jax._src.simulate.measured_costs import MeasuredCosts
from coop_jax._src.simulate.simulation import Simulation, simulation_of
from coop_jax._src.simulate.simulator import Simulator, Workspace, traced_of
from coop_jax._src.simulate.traced_program import TracedProgram
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import options
from coop_jax._src.util import progress as progresses
from coop_jax._src.util.calling_convention import Names, Numbers

FrontEnd = Literal["run", "jit"]
_GIVE_UP = planning_constants.TUNED.give_up_factor
_RESOLUTION = simulate_constants.TUNED.resolution_fraction


def min_budget(
    fn: Callable[..., Any] | TracedProgram,
    *args: Any,
    front_end: FrontEnd = "run",
    policy: str | policies.Policy = policies.DEFAULT,
    max_overhead: float | None = None,
    donate_argnums: Numbers = None,
    static_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnames: Names = None,
    device_profile: Profile = None,
    costs: MeasuredCosts | None = None,
    workspace: Workspace = None,
    alternatives: bool = True,
    resolution: float = _RESOLUTION,
    compile: bool | None = None,
    **kwargs: Any,
) -> int:
    """The smallest budget with which a function completes, before anything runs.

    `run` accepts a first call with that budget if XLA's temporary memory is known. Functions
    planned for the default device are compiled for that, unless `workspace` or `costs` are given or
    the program was traced before.

    `coop_jax.jit` with that budget and the same options accepts the call. The program of `jax.jit`
    and the smallest plan are compiled, and the lesser need is returned; with `max_overhead` a few
    more plans are compiled. XLA may need less for a plan that keeps more, so a budget some percent
    smaller may be accepted, too.

    Args:
      fn: a function of pytrees of arrays, or a program, as for `simulate`. Under "jit" a function,
        or what `coop_jax.jit` returned, with the options that it was given there.
      *args: the function's arguments; arrays or `jax.ShapeDtypeStruct`s.
      front_end: "run" or "jit": whose budget.
      policy: "lookahead", "coop", "dtr", "dte", or a `coop_jax.Policy`.
      max_overhead: the most recompute seconds / compute seconds that will do; None for any.
      donate_argnums: positions of arguments that the function replaces.
      static_argnums: positions of arguments that are Python values.
      donate_argnames: names of arguments that the function replaces.
      static_argnames: names of arguments that are Python values.
      device_profile: what to plan and to price for, as for `simulate`.
      costs: measured seconds to price the operations with, from `record_costs`.
      workspace: bytes of XLA's temporary memory, part of the budget, as for `simulate`.
      alternatives: as for `simulate`.
      resolution: how close to the smallest, as a share of the unbudgeted peak.
      compile: whether to compile the operations, as for `simulate`. If not, unknown workspace
        counts as zero, and a call may need that much more. None: as described above.
      **kwargs: the function's keyword arguments.

    Returns:
      Bytes. The function completes with them (within `max_overhead`). Under "jit" on one device.

    Raises:
      ValueError: no budget would do; `costs`, `workspace`, `alternatives`, `resolution` or
        `compile` is given under "jit", which has none; or as `simulate`.
      NotImplementedError: under "jit" the program cannot be planned.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> def loss(w, x):
      ...     for _ in range(16):
      ...         x = jnp.tanh(x @ w)
      ...     return (x**2).mean()
      >>> x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
      >>> least = coop_jax.min_budget(jax.grad(loss), x, x)
      >>> coop_jax.simulate(jax.grad(loss), x, x, budget=least).feasible
      True
    """
    if _is_jit(front_end):
        _refuse(
            costs=costs is not None,
            workspace=workspace is not None,
            alternatives=alternatives is not True,
            resolution=resolution != _RESOLUTION,
            compile=compile is not None,
        )
        conventions = donate_argnums, donate_argnames, static_argnums, static_argnames
        planned = _planned_function(fn, policy, device_profile, *conventions)
        return planned.min_budget(*args, max_overhead=max_overhead, **kwargs)
    if max_overhead is not None:
        options.number(max_overhead, "max_overhead", least=0)
    budget_search.check_resolution(resolution)
    traced = traced_of(
        fn, args, kwargs, donate_argnums, donate_argnames, static_argnums, static_argnames
    )
    given = (device_profile, costs, workspace)
    if compile is None:
        compile = not isinstance(fn, TracedProgram) and all(x is None for x in given)
    simulator = Simulator(
        traced, policy, device_profile, costs, workspace, alternatives, compile=compile
    )
    return budget_search.least_budget(simulator, max_overhead, resolution)


def sweep(
    fn: Callable[..., Any] | TracedProgram,
    *args: Any,
    front_end: FrontEnd = "run",
    budget: Sequence[budgets.Budget],
    policy: str | policies.Policy | Sequence[str | policies.Policy] = policies.DEFAULT,
    donate_argnums: Numbers = None,
    static_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnames: Names = None,
    device_profile: Profile = None,
    costs: MeasuredCosts | None = None,
    workspace: Workspace = None,
    alternatives: bool = True,
    give_up: float = _GIVE_UP,
    progress: bool | None = None,
    **kwargs: Any,
) -> list[Simulation]:
    """Simulates many budgets and policies, with all cores.

    Under "jit" it plans without compiling, except on several devices, once per policy, to ask XLA
    how values are sharded. It reports the first plan that a call would compile for each budget,
    made for 93% of it; a budget that covers the estimate for `jax.jit` needs no recomputation. XLA
    may need 10% more or less than estimated, or more: `min_budget` and `step.plan` compile.

    Args:
      fn: a function of pytrees of arrays, or a program, as for `simulate`; traced once. Under "jit"
        a function, or what `coop_jax.jit` returned, with the options that it was given there.
      *args: the function's arguments; arrays or `jax.ShapeDtypeStruct`s.
      front_end: "run" or "jit": whose budgets.
      budget: budgets, as for `simulate`. Fractions are of the unbudgeted peak of each policy: give
        bytes to compare policies at the same budget. Under "jit" that peak is what is expected of
        `jax.jit`, where `coop_jax.jit` takes fractions of what XLA says.
      policy: one policy, or several.
      donate_argnums: positions of arguments that the function replaces.
      static_argnums: positions of arguments that are Python values.
      donate_argnames: names of arguments that the function replaces.
      static_argnames: names of arguments that are Python values.
      device_profile: what to plan and to price for, as for `simulate`.
      costs: measured seconds to price the operations with, from `record_costs`.
      workspace: bytes of XLA's temporary memory, part of the budget, as for `simulate`.
      alternatives: as for `simulate`.
      give_up: a plan that recomputes this many times as many operations as there are counts as not
        feasible, and is given up; less makes sweeps of hopeless budgets shorter.
      progress: whether to show it on stderr, with tqdm if that is installed; if None, as
        COOP_JAX_PROGRESS says, or where stderr is a terminal or a notebook's.
      **kwargs: the function's keyword arguments.

    Returns:
      A simulation for each policy and budget, policies outermost, in order. Where a budget does not
      suffice, none that would is looked for. Under "jit" sizes are those on one device, and times
      count what loops compute again.

    Raises:
      ValueError: `costs`, `workspace`, `alternatives` or `give_up` is given under "jit", which has
        none; or as `simulate`.
      NotImplementedError: under "jit" the program cannot be planned.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> def loss(w, x):
      ...     for _ in range(16):
      ...         x = jnp.tanh(x @ w)
      ...     return (x**2).mean()
      >>> w, x = jnp.ones((64, 64)), jax.ShapeDtypeStruct((1024, 64), jnp.float32)
      >>> found = coop_jax.sweep(jax.grad(loss), w, x, front_end="jit", budget=[1.0, 0.7])
      >>> [s.rematerialisations > 0 for s in found]
      [False, True]
    """
    if isinstance(budget, str) or not isinstance(budget, Iterable):
        raise TypeError(f"budget must be a list of budgets, got {options.shown(budget)}")
    given = [budgets.check_budget(b) for b in budget]
    several = not isinstance(policy, (str, policies.Policy)) and isinstance(policy, Iterable)
    chosen = [policies.resolve_policy(p) for p in (policy if several else [policy])]  # type: ignore
    shown = progresses.is_shown(None if progress is None else options.flag(progress, "progress"))
    conventions = donate_argnums, donate_argnames, static_argnums, static_argnames
    if _is_jit(front_end):
        _refuse(
            costs=costs is not None,
            workspace=workspace is not None,
            alternatives=alternatives is not True,
            give_up=give_up != _GIVE_UP,
        )
        first = next(iter(chosen), policies.DEFAULT) if several else policy
        planned = _planned_function(fn, first, device_profile, *conventions)
        if isinstance(fn, PlannedFunction):
            chosen = [fn.options.policy]
        with progresses.shown(shown):
            found = jit_search.predictions(planned.options, args, kwargs, given, chosen)
        return [_as_simulation(prediction) for prediction in found]
    traced = traced_of(fn, args, kwargs, *conventions)
    simulators = [
        Simulator(traced, p, device_profile, costs, workspace, alternatives, give_up)
        for p in chosen
    ]
    return budget_search.swept(traced.name, simulators, given, shown=shown)


def _is_jit(front_end: str) -> bool:
    if front_end not in ("run", "jit"):
        raise ValueError(f'front_end must be "run" or "jit", got {options.shown(front_end)}')
    return front_end == "jit"


def _refuse(**given: bool) -> None:
    """Refuses options that `coop_jax.jit` has no use for."""
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f'{name}= is for front_end="run": coop_jax.jit has no such option')


def _planned_function(
    fn: Any,
    policy: Any,
    device_profile: Profile,
    donate_argnums: Numbers,
    donate_argnames: Names,
    static_argnums: Numbers,
    static_argnames: Names,
) -> PlannedFunction[..., Any]:
    """The function under `coop_jax.jit`; one that is already has its options."""
    conventions = donate_argnums, donate_argnames, static_argnums, static_argnames
    if isinstance(fn, PlannedFunction):
        if policy != policies.DEFAULT or any(x is not None for x in (device_profile, *conventions)):
            raise ValueError(
                "fn is a function of coop_jax.jit, which has its options: give policy=,"
                " device_profile=, donate_... and static_... to coop_jax.jit"
            )
        return fn
    return jit_api.jit(
        fn,
        policy=policy,
        device_profile=profile_of(device_profile),
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )


def _as_simulation(prediction: jit_search.Prediction) -> Simulation:
    planned = prediction.planned
    return simulation_of(
        planned.plan,
        prediction.policy,
        prediction.budget_bytes,
        prediction.plain_bytes,
        smallest_budget_bytes=None,
        workspace_bytes=planned.workspace_bytes,
        workspace_is_known=False,  # XLA's for the program as a whole, which is not compiled
        compute_seconds=planned.seconds - planned.again_seconds,
        recompute_seconds=planned.again_seconds,
    )
