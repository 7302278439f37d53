"""Real runs of the small sizes beside what was simulated before.

Model: a network trains some steps without a budget, in which the seconds of its operations are
recorded. From these `coop_jax.simulate` predicts the overhead at each budget. Then the same train
step runs at each of them, every step right after one without a budget, and the seconds of what it
recomputes are divided by those of the rest. They are what the runtime's statistics are summed from.
Beside it the wall clock: how much longer a step takes than the one before it.

Under Coop each step goes on from the state that the last one left in the pool. DTR and DTE copy on
write: there the parameters lie elsewhere after each step, and every step is planned anew, so that
some budgets that suffice for a first step do not for a later one. What is simulated is a first
step; theirs all begin with the first state, in an empty pool.

BiLSTM and SPOS run here with one length and one path, as `run` sees them: in the eager front end
what a step does is not known before, so there is nothing to simulate. Budgets are shares of the
peak without one; those that do not suffice are left out.

Something else that runs on the machine stops an operation for milliseconds, which is as long as a
hundred of them take, and a step always has some that were stopped. So times of operations are
medians: recorded costs over all that compute the same, measured ones over the steps for each
operation of a step by itself, first and recomputed ones apart.

What the numbers do not mean: operations of the small sizes take microseconds, so the wall clock has
much of Python in it, more for each operation run again; at the sizes of the literature overheads
differ. Times are of this machine; compare them only within one run.

Invariants: the overhead is predicted before any step ran at that budget, and not corrected after.
Cost: for each network some seconds to compile and `rounds` x budgets x 2 steps of a tenth of a
second.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import coop_jax
from coop_jax._src.simulate import measured_costs
from examples.paper.networks import NETWORKS, Network, TrainStep

RATIOS = (0.8, 0.7, 0.6, 0.5, 0.4)
# The baselines run on two networks, of different kinds.
BASELINES = {"bert": ("dtr", "dte"), "unet": ("dtr", "dte")}
_WARMUPS = 2  # the first call of a compiled operation takes longer, and its time is not counted
_RECORDED = 9


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of real.csv.

    Attributes:
      network, title, policy, ratio, budget_bytes: what ran.
      simulated_overhead: predicted, with the costs recorded in a run without a budget.
      measured_overhead: recompute seconds / compute seconds of real steps, of each operation the
        median over the steps.
      statistics_overhead: the same of whole steps, by the runtime's statistics; their median. On a
        machine that does nothing else about as large.
      wall_overhead: how much longer a step took than one without a budget, a share; the median.
      evictions, rematerialisations: of a step, as simulated.
      same_decisions: whether every real step evicted and recomputed as often.
    """

    network: str
    title: str
    policy: str
    ratio: float
    budget_bytes: int
    simulated_overhead: float
    measured_overhead: float
    statistics_overhead: float
    wall_overhead: float
    evictions: int
    rematerialisations: int
    same_decisions: bool


class Training:
    """A network that trains under a budget, one step after the other on the same batch.

    With `starts_anew` each step begins with the first state.
    """

    def __init__(
        self,
        network: Network,
        step: TrainStep,
        budget: int | None,
        policy: str,
        *,
        starts_anew: bool = False,
    ):
        self.step = coop_jax.run(
            step.fn,
            budget=budget,
            policy=policy,
            donate_argnums=step.donate_argnums,
            fusion=False,
        )
        self._first = jax.tree.map(np.array, network.init("small"))
        self._starts_anew = starts_anew
        self._state: Any = self._first
        self._batch = network.setting("small").task.sample(0)
        for _ in range(_WARMUPS):
            self.advance()

    def advance(self) -> float:
        """One step; its seconds."""
        if self._starts_anew:
            self._state = self._first
        begin = time.perf_counter()
        self._state, loss = self.step(self._state, self._batch)
        jax.block_until_ready(loss)
        return time.perf_counter() - begin


class Contender:
    """A training under a budget, what was simulated of it, and what was measured."""

    def __init__(self, training: Training, unbudgeted: Training, simulation: coop_jax.Simulation):
        self.training = training
        self.unbudgeted = unbudgeted
        self.simulation = simulation
        self.runs: list[list[float]] = []  # of each step, the seconds of what it ran, in order
        self.statistics: list[float] = []
        self.wall_overheads: list[float] = []
        self.same_decisions = True

    def advance(self) -> None:
        """One step, compared with one without a budget right before it."""
        unbudgeted_seconds = self.unbudgeted.advance()
        runtime = self.training.step.runtime
        before = runtime.stats()
        with measured_costs.record_runs(runtime) as runs:
            seconds = self.training.advance()
        after = runtime.stats()
        self.runs.append(runs)
        self.statistics.append(
            (after.recompute_seconds - before.recompute_seconds)
            / (after.compute_seconds - before.compute_seconds)
        )
        self.wall_overheads.append(seconds / unbudgeted_seconds - 1)
        self.same_decisions &= (
            after.evictions - before.evictions == self.simulation.evictions
            and after.rematerialisations - before.rematerialisations
            == self.simulation.rematerialisations
        )

    def overhead(self) -> float:
        """Seconds recomputed / seconds computed, of each operation the median over the steps.

        Where steps did something else than was simulated, operations have no counterparts: then it
        is that of the statistics.
        """
        if not self.same_decisions:
            return statistics.median(self.statistics)
        again = [
            action.recompute
            for action in self.simulation.actions
            if isinstance(action, coop_jax.Run)
        ]
        seconds = [statistics.median(runs) for runs in zip(*self.runs, strict=True)]
        pairs = list(zip(again, seconds, strict=True))
        recomputed = sum(s for recompute, s in pairs if recompute)
        return recomputed / sum(s for recompute, s in pairs if not recompute)


def measure(
    folder: Path,
    networks: Sequence[str],
    *,
    ratios: Sequence[float] = RATIOS,
    rounds: int = 11,
    baselines: bool = True,
) -> list[Row]:
    """Measures networks and writes real.csv.

    Args:
      folder: where to; made if it is not there.
      networks: names in `NETWORKS`.
      ratios: budgets, as shares of what a step needs without one.
      rounds: steps measured at each budget.
      baselines: whether DTR and DTE run, too, on those networks that have them in `BASELINES`.

    Returns:
      The rows written.
    """
    rows: list[Row] = []
    folder.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(networks), unit="network") as bar:
        for name in networks:
            policies = ("coop", *(BASELINES.get(name, ()) if baselines else ()))
            rows += _measure(NETWORKS[name], policies, ratios, rounds, bar.set_postfix_str)
            _write(folder / "real.csv", rows)
            bar.update()
    return rows


def _measure(
    network: Network,
    policies: Sequence[str],
    ratios: Sequence[float],
    rounds: int,
    say: Callable[[str], None],
) -> list[Row]:
    say(f"{network.name}: without a budget")
    step = network.make_step("small")
    program = coop_jax.trace_program(
        step.fn, *step.arguments, donate_argnums=step.donate_argnums, fusion=False
    )
    unbudgeted = Training(network, step, None, "coop")
    with coop_jax.record_costs(unbudgeted.step.runtime) as costs:
        for _ in range(_RECORDED):
            unbudgeted.advance()
    peak = coop_jax.simulate(program, costs=costs).unbudgeted_peak_bytes
    contenders: list[tuple[str, float, Contender]] = []
    for policy in policies:
        anew = policy != "coop"
        beside = Training(network, step, None, policy, starts_anew=True) if anew else unbudgeted
        budgets = [int(ratio * peak) for ratio in ratios]
        simulations = coop_jax.sweep(
            program, budget=budgets, policy=policy, costs=costs, progress=False
        )
        for ratio, simulation in zip(ratios, simulations, strict=True):
            if not simulation.feasible:
                continue
            say(f"{network.name}: compiling for {policy} at {ratio:.0%}")
            training = Training(network, step, simulation.budget_bytes, policy, starts_anew=anew)
            contenders.append((policy, ratio, Contender(training, beside, simulation)))
    for number in range(rounds):
        say(f"{network.name}: round {number + 1} of {rounds}")
        for _, _, contender in contenders:
            contender.advance()
    return [_row(network, *contender) for contender in contenders]


def _row(network: Network, policy: str, ratio: float, contender: Contender) -> Row:
    simulation = contender.simulation
    assert simulation.budget_bytes is not None
    return Row(
        network.name,
        network.title,
        policy,
        ratio,
        simulation.budget_bytes,
        simulation.overhead,
        contender.overhead(),
        statistics.median(contender.statistics),
        statistics.median(contender.wall_overheads),
        simulation.evictions,
        simulation.rematerialisations,
        contender.same_decisions,
    )


def _write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(Row))
        writer.writerows(dataclasses.astuple(row) for row in rows)
