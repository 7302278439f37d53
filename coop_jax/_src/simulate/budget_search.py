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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coop_jax._src.planning import policies
from coop_jax._src.simulate import constants
from coop_jax._src.simulate.cpu_calibration import Profile
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.simulate.simulator import Simulator, Workspace, traced_of
from coop_jax._src.simulate.traced_program import TracedProgram
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import options
from coop_jax._src.util import progress as progresses
from coop_jax._src.util.calling_convention import Names, Numbers


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


def least_budget(
    simulator: Simulator,
    max_overhead: float | None = None,
    resolution: float = constants.TUNED.resolution_fraction,
) -> int:
    """The smallest budget with which what is simulated completes, in bytes.

    Args:
      simulator: of the program; what it plans for afterwards may be without its own search.
      max_overhead: the most recompute seconds / compute seconds that will do; None for any.
      resolution: how close to the smallest, as a share of the unbudgeted peak.

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
    resolution: float = constants.TUNED.resolution_fraction,
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
    check_resolution(resolution)
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


def check_resolution(resolution: float) -> None:
    """Refuses what is no share of the peak.

    Raises:
      TypeError, ValueError: it is none.
    """
    if not options.number(resolution, "resolution", least=0, most=1):
        raise ValueError("resolution must be a share of the peak, between 0 and 1, got 0")


def _range(simulator: Simulator, resolution: float) -> tuple[int, int, int]:
    peak = max(1, simulator.unbudgeted_peak_bytes)
    step = max(simulator.settings.alignment_bytes, int(peak * resolution))
    return peak, step, 4 * peak + (1 << 20)


def swept(
    name: str,
    simulators: Sequence[Simulator],
    given: Sequence[budgets.Budget],
    *,
    shown: bool,
) -> list[Simulation]:
    """Simulates budgets with each of some simulators of one program, with all cores.

    Args:
      name: of the program.
      simulators: of a policy each.
      given: budgets; a fraction is one of each simulator's unbudgeted peak.
      shown: whether to show progress on stderr.
    """
    jobs = [(s, s.resolve(b)) for s in simulators for b in given]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        futures = [threads.submit(s.simulate, b, find_smallest=False) for s, b in jobs]
        done = concurrent.futures.as_completed(futures)
        try:
            for _ in _shown(done, len(futures), name) if shown else done:
                pass
        except BaseException:  # who interrupts does not wait for all that has not begun
            threads.shutdown(wait=False, cancel_futures=True)
            raise
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
