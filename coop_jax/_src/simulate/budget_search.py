"""Budgets by search: the smallest that works, the largest that evicts, sweeps over many.

Model: every answer is a budget that was simulated. Searches are bisections, so they take
feasibility and overhead to get better with the budget; around the very smallest budgets that is not
strictly so (a plan may fail a little above one that works), hence "to the resolution".
Thread rule: a sweep simulates in as many threads as there are cores; the planner lets go of the
interpreter lock. Cost: about ten plans for a search.
Source: paper section 4.2 (minimum and cutoff budget).
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from coop_jax._src.planning import policies
from coop_jax._src.simulate.cpu_calibration import Profile
from coop_jax._src.simulate.measured_costs import MeasuredCosts
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.simulate.simulator import Simulator, Workspace, traced_of
from coop_jax._src.simulate.traced_program import TracedProgram
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import options
from coop_jax._src.util import progress as progresses
from coop_jax._src.util.calling_convention import Names, Numbers

# How close to the smallest or largest budget, as a share of the unbudgeted peak.
RESOLUTION = 0.002


def _bisect(
    holds: Callable[[int], bool], high: int, resolution: int, most: int
) -> tuple[int, int] | None:
    """Numbers no further apart than the resolution, of which the second `holds` and the first,
    if it is not 0, does not; None if none holds up to `most`.
    """  # noqa: D205
    low = 0
    while not holds(high):
        if high >= most:
            return None
        low, high = high, min(most, high + max(high // 8, 1))
    while high - low > resolution:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return low, high


def min_budget(
    fn: Callable[..., Any] | TracedProgram,
    *args: Any,
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
    resolution: float = RESOLUTION,
    compile: bool | None = None,
    **kwargs: Any,
) -> int:
    """The smallest budget with which a function completes, before anything runs.

    A first call of `run` with that budget is accepted where XLA's temporary memory is known: what
    is planned for the default device is compiled for that, unless it is a program that was traced
    before or has its workspace or its costs given.

    Args:
      fn: a function of pytrees of arrays, or a program, as for `simulate`.
      *args: the function's arguments; arrays or `jax.ShapeDtypeStruct`s.
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
      compile: whether to compile the operations, as for `simulate`. If not, workspace that was not
        given counts as none, and a call may need so much more. None for where it is as above.
      **kwargs: the function's keyword arguments.

    Returns:
      Bytes. The function completes with them (within `max_overhead`).

    Raises:
      ValueError: no budget would do; or as `simulate`.

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
    if max_overhead is not None:
        options.number(max_overhead, "max_overhead", least=0)
    _check_resolution(resolution)
    traced = traced_of(
        fn, args, kwargs, donate_argnums, donate_argnames, static_argnums, static_argnames
    )
    given = (device_profile, costs, workspace)
    if compile is None:
        compile = not isinstance(fn, TracedProgram) and all(x is None for x in given)
    simulator = Simulator(
        traced, policy, device_profile, costs, workspace, alternatives, compile=compile
    )
    return least_budget(simulator, max_overhead, resolution)


def least_budget(
    simulator: Simulator, max_overhead: float | None = None, resolution: float = RESOLUTION
) -> int:
    """As `min_budget`, of what is simulated.

    Raises:
      ValueError: no budget would do.
    """
    if max_overhead is None:
        simulator.search_no_better_plans()

    def will_do(budget_bytes: int) -> bool:
        simulation = simulator.simulate(budget_bytes, find_smallest=False)
        return simulation.feasible and (max_overhead is None or simulation.overhead <= max_overhead)

    found = _bisect(will_do, *_range(simulator, resolution))
    if found is None:
        raise ValueError("no budget lets this program complete within the overhead asked for")
    return found[1]


def cutoff_budget(
    fn: Callable[..., Any] | TracedProgram,
    *args: Any,
    policy: str | policies.Policy = policies.DEFAULT,
    donate_argnums: Numbers = None,
    static_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnames: Names = None,
    device_profile: Profile = None,
    workspace: Workspace = None,
    resolution: float = RESOLUTION,
    **kwargs: Any,
) -> int:
    """The largest budget at which anything is evicted; with more, memory is not short.

    Args:
      fn: a function of pytrees of arrays, or a program, as for `simulate`.
      *args: the function's arguments; arrays or `jax.ShapeDtypeStruct`s.
      policy: "lookahead", "coop", "dtr", "dte", or a `coop_jax.Policy`.
      donate_argnums: positions of arguments that the function replaces.
      static_argnums: positions of arguments that are Python values.
      donate_argnames: names of arguments that the function replaces.
      static_argnames: names of arguments that are Python values.
      device_profile: what to plan and to price for, as for `simulate`.
      workspace: bytes of XLA's temporary memory, part of the budget, as for `simulate`.
      resolution: how close to the largest, as a share of the unbudgeted peak.
      **kwargs: the function's keyword arguments.

    Returns:
      Bytes; 0 if nothing is evicted with any budget that works.
    """
    _check_resolution(resolution)
    traced = traced_of(
        fn, args, kwargs, donate_argnums, donate_argnames, static_argnums, static_argnames
    )
    simulator = Simulator(traced, policy, device_profile, None, workspace)
    simulator.search_no_better_plans()

    def evicts_nothing(budget_bytes: int) -> bool:
        simulation = simulator.simulate(budget_bytes, find_smallest=False)
        return simulation.feasible and simulation.evictions == 0

    found = _bisect(evicts_nothing, *_range(simulator, resolution))
    if found is None:
        raise ValueError("the program evicts with every budget: its policy forces it to")
    below = found[0]
    return below if below and simulator.plan(below).feasible else 0


def _check_resolution(resolution: float) -> None:
    if not options.number(resolution, "resolution", least=0, most=1):
        raise ValueError("resolution must be a share of the peak, between 0 and 1, got 0")


def _range(simulator: Simulator, resolution: float) -> tuple[int, int, int]:
    peak = max(1, simulator.unbudgeted_peak_bytes)
    step = max(simulator.settings.alignment_bytes, int(peak * resolution))
    return peak, step, 4 * peak + (1 << 20)


def sweep(
    fn: Callable[..., Any] | TracedProgram,
    *args: Any,
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
    give_up: float = 16.0,
    progress: bool | None = None,
    **kwargs: Any,
) -> list[Simulation]:
    """Simulates many budgets and policies, with all cores.

    Args:
      fn: a function of pytrees of arrays, or a program, as for `simulate`; traced once.
      *args: the function's arguments; arrays or `jax.ShapeDtypeStruct`s.
      budget: budgets, as for `simulate`. Fractions are of the unbudgeted peak of each policy: give
        bytes to compare policies at the same budget.
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
      suffice, none that would is looked for.
    """
    if isinstance(budget, str) or not isinstance(budget, Iterable):
        raise TypeError(f"budget must be a list of budgets, got {options.shown(budget)}")
    given = [budgets.check_budget(b) for b in budget]
    several = not isinstance(policy, (str, policies.Policy)) and isinstance(policy, Iterable)
    chosen = [policies.resolve_policy(p) for p in (policy if several else [policy])]  # type: ignore
    shown = progresses.is_shown(None if progress is None else options.flag(progress, "progress"))
    traced = traced_of(
        fn, args, kwargs, donate_argnums, donate_argnames, static_argnums, static_argnames
    )
    simulators = [
        Simulator(traced, p, device_profile, costs, workspace, alternatives, give_up)
        for p in chosen
    ]
    jobs = [(s, s.resolve(b)) for s in simulators for b in given]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        futures = [threads.submit(s.simulate, b, find_smallest=False) for s, b in jobs]
        done = concurrent.futures.as_completed(futures)
        for _ in _shown(done, len(futures), traced.name) if shown else done:
            pass
        return [future.result() for future in futures]


def _shown(items: Iterator[Any], total: int, name: str) -> Iterator[Any]:
    """The items, with their progress on stderr."""
    make = progresses.tqdm()
    if make is not None:
        yield from make(items, total=total, desc=f"simulating {name}")
        return
    for number, item in enumerate(items, 1):
        print(f"\rsimulating {name}: {number}/{total}", end="", file=sys.stderr, flush=True)
        yield item
    print(file=sys.stderr)
