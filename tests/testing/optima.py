"""The least recomputation that any schedule needs, for programs where it can be found exactly.

Memory is fungible here: a schedule fits if the bytes it keeps at any one time do, wherever they
lie; nor does it have to keep the order of the program. So these are lower bounds for any planner
that places values, and tight ones. Nothing here shares code with the engine.

- `least_seconds`: any program of a few operations. Shortest path from "nothing is there" to "all
  outputs are there" over the sets of values that are (Dijkstra); exact.
- `checkmate_seconds`: the mixed-integer program of Jain et al., "Checkmate: breaking the memory
  wall with optimal tensor rematerialization" (MLSys 2020), solved by SciPy (HiGHS). It keeps the
  program's order of first runs, so it is never below `least_seconds`. For small programs.
- `least_chain_seconds`: chains of layers, forward and backward, of values of one size. Dynamic
  programming over segments, after Griewank and Walther, "Algorithm 799: revolve" (ACM TOMS, 2000).

Sizes are in units of memory, times in seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import scipy.optimize
import scipy.sparse

import coop_jax
from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.ir.program import Operation, Program, Storage, Value
from coop_jax._src.simulate.traced_program import RecordedKernel, RecordedType

UNIT_BYTES = 64  # the alignment of the engine, so that sizes are not rounded


@dataclasses.dataclass(frozen=True)
class Job:
    """An operation: what it reads, what it makes, how long it takes."""

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Graph:
    """Jobs in an order that works. Values below `inputs` are there from the beginning and stay."""

    sizes: tuple[int, ...]  # by value
    inputs: int
    jobs: tuple[Job, ...]
    outputs: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Of all jobs, each once."""
        return math.fsum(job.seconds for job in self.jobs)

    def peak(self) -> int:
        """What running each job once needs, values being dropped after their last use."""
        last = {v: n for n, job in enumerate(self.jobs) for v in (*job.makes, *job.reads)}
        last.update(dict.fromkeys(self.outputs, len(self.jobs)))
        now = most = sum(self.sizes[: self.inputs])
        for n, job in enumerate(self.jobs):
            now += sum(self.sizes[v] for v in job.makes)
            most = max(most, now)
            now -= sum(self.sizes[v] for v, at in last.items() if at == n and v >= self.inputs)
        return most

    def least(self) -> int:
        """What the largest job needs by itself; no schedule needs less."""
        return max(self._beside(job) for job in self.jobs) + sum(self.sizes[: self.inputs])

    def _beside(self, job: Job) -> int:
        return sum(self.sizes[v] for v in {*job.reads, *job.makes} if v >= self.inputs)

    def traced(self) -> coop_jax.TracedProgram:
        """The same for the planner."""
        last = {v: n for n, job in enumerate(self.jobs) for v in (*job.makes, *job.reads)}
        operations = tuple(
            Operation(
                cast(Kernel, RecordedKernel(f"job {n}", "job", job.seconds, -1.0, 0, True)),
                job.reads,
                job.makes,
                (-1,) * len(job.makes),
                "",
                "",
            )
            for n, job in enumerate(self.jobs)
        )
        nbytes = [UNIT_BYTES * size for size in self.sizes]
        program = Program(
            values=tuple(Value(v, RecordedType((n,), "uint8")) for v, n in enumerate(nbytes)),
            storages=tuple(Storage(n, False, (v,)) for v, n in enumerate(nbytes)),
            operations=operations,
            inputs=tuple(range(self.inputs)),
            donated=(False,) * self.inputs,
            constants=(),
            outputs=self.outputs,
            releases=tuple(
                tuple(v for v, at in last.items() if at == n) for n in range(len(self.jobs))
            ),
        )
        return coop_jax.TracedProgram("graph", program)


def random_graph(seed: int, most_jobs: int = 13) -> Graph:
    """A graph in which some values are read again long after they were made."""
    draw = random.Random(seed)
    count = draw.randint(6, most_jobs)
    sizes = [draw.randint(1, 4)]
    jobs: list[Job] = []
    for number in range(count):
        known = len(sizes)
        # As in a backward pass: the latest, and one from as far back as this is from the middle.
        mirrored = max(0, min(known - 1, count - 1 - number))
        candidates = [known - 1, mirrored, draw.randrange(known)]
        reads = tuple(dict.fromkeys(candidates[: draw.randint(1, 3)]))
        made = 2 if draw.random() < 0.1 and number < count - 1 else 1
        sizes += [draw.randint(1, 8) for _ in range(made)]
        jobs.append(
            Job(reads, tuple(range(known, known + made)), draw.choice((1.0, 1.0, 2.0, 8.0)))
        )
    read = {v for job in jobs for v in job.reads}
    outputs = tuple(v for v in range(1, len(sizes)) if v not in read)
    return Graph(tuple(sizes), 1, tuple(jobs), outputs)


def chain(layers: int, seed: int | None = None) -> Graph:
    """Layers forward, a loss, and the layers backward; a backward layer reads its layer's input.

    All values have size 1. Costs are 1 forward and 2 backward, or random ones.
    """
    draw = random.Random(seed)
    forward = [1.0 if seed is None else draw.uniform(0.5, 4) for _ in range(layers)]
    jobs = [Job((i,), (i + 1,), seconds) for i, seconds in enumerate(forward)]
    jobs.append(Job((layers,), (layers + 1,), 1.0))
    gradient = layers + 1
    for i in reversed(range(layers)):
        jobs.append(Job((gradient, i), (gradient + 1,), 2 * forward[i]))
        gradient += 1
    return Graph((1,) * (gradient + 1), 1, tuple(jobs), (gradient,))


def least_seconds(graph: Graph, capacity: int) -> float:
    """The least time of any schedule; infinite if none fits."""
    first = graph.inputs
    values = len(graph.sizes) - first
    capacity -= sum(graph.sizes[:first])
    goal = sum(1 << (v - first) for v in graph.outputs)
    sizes = np.zeros(1 << values, np.int64)
    for v in range(values):
        sizes[1 << v : 2 << v] = sizes[: 1 << v] + graph.sizes[first + v]
    jobs = [
        (
            sum(1 << (v - first) for v in job.reads if v >= first),
            sum(1 << (v - first) for v in job.makes),
            job.seconds,
        )
        for job in graph.jobs
    ]
    best = np.full(1 << values, math.inf)
    best[0] = 0.0
    queue = [(0.0, 0)]
    while queue:
        seconds, there = heapq.heappop(queue)
        if seconds > best[there]:
            continue
        if there & goal == goal:
            return seconds
        following = [(seconds, there & ~(1 << v)) for v in range(values) if there >> v & 1]
        following += [
            (seconds + cost, there | makes)
            for reads, makes, cost in jobs
            if there & reads == reads and there & makes != makes
            if sizes[there | makes] <= capacity
        ]
        for then, state in following:
            if then < best[state]:
                best[state] = then
                heapq.heappush(queue, (then, state))
    return math.inf


def checkmate_seconds(graph: Graph, capacity: int) -> float:
    """The least time of schedules that run jobs first in the graph's order; infinite if none fits.

    Stage t ends with the first run of job t. R[t, i]: job i runs in stage t. S[t, v]: value v is
    kept from the stage before. F[t, i, v]: v is dropped in stage t after job i. U[t, i]: memory
    when job i of stage t has run, which must not exceed the capacity. Jobs with several results
    are made one value each by adding no others: all of them are there once the job has run.
    """
    stages, first = len(graph.jobs), graph.inputs
    values = list(range(first, len(graph.sizes)))
    capacity -= sum(graph.sizes[:first])
    maker = {v: i for i, job in enumerate(graph.jobs) for v in job.makes}
    readers = {v: [i for i, job in enumerate(graph.jobs) if v in job.reads] for v in values}
    index: dict[tuple[Any, ...], int] = {}

    def var(*key: Any) -> int:
        return index.setdefault(key, len(index))

    rows: list[tuple[dict[int, float], float, float]] = []

    def constrain(terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        row: dict[int, float] = {}
        for name, factor in terms:
            row[name] = row.get(name, 0.0) + factor
        rows.append((row, low, high))

    for t in range(stages):
        constrain([(var("R", t, t), 1.0)], 1, 1)
        for v in values:
            # Kept only if it was there: kept before, or made in the stage before.
            before = [] if t == 0 else [(var("S", t - 1, v), -1.0)]
            made = [(var("R", t - 1, maker[v]), -1.0)] if t and maker[v] <= t - 1 else []
            constrain([(var("S", t, v), 1.0), *before, *made], -math.inf, 0)
        for i in range(t + 1):
            for v in graph.jobs[i].reads:
                if v >= first:
                    terms = [(var("R", t, i), 1.0), (var("S", t, v), -1.0)]
                    constrain([*terms, (var("R", t, maker[v]), -1.0)], -math.inf, 0)
        # Memory, job by job: what is kept, plus what is made, minus what is dropped.
        used: list[tuple[int, float]] = [(var("S", t, v), float(graph.sizes[v])) for v in values]
        for i in range(t + 1):
            job = graph.jobs[i]
            used = [*used, *((var("R", t, i), float(graph.sizes[v])) for v in job.makes)]
            constrain(used, -math.inf, capacity)
            for v in {*job.reads, *job.makes}:
                if v < first:
                    continue
                drop = var("F", t, i, v)
                # Only after a job that ran, if nothing in this stage reads it later, and if it is
                # not kept for the next.
                constrain([(drop, 1.0), (var("R", t, i), -1.0)], -math.inf, 0)
                for later in (n for n in readers[v] if i < n <= t):
                    constrain([(drop, 1.0), (var("R", t, later), 1.0)], -math.inf, 1)
                if t + 1 < stages:
                    constrain([(drop, 1.0), (var("S", t + 1, v), 1.0)], -math.inf, 1)
                elif v in graph.outputs:
                    constrain([(drop, 1.0)], 0, 0)
                used = [*used, (drop, -float(graph.sizes[v]))]
    for v in graph.outputs:
        terms = [(var("S", stages - 1, v), 1.0), (var("R", stages - 1, maker[v]), 1.0)]
        constrain(terms, 1, math.inf)
    cost = np.zeros(len(index))
    for (kind, *rest), name in index.items():
        if kind == "R":
            cost[name] = graph.jobs[rest[1]].seconds
    matrix = scipy.sparse.lil_matrix((len(rows), len(index)))
    for number, (row, _, _) in enumerate(rows):
        for name, factor in row.items():
            matrix[number, name] = factor
    found = scipy.optimize.milp(
        cost,
        constraints=scipy.optimize.LinearConstraint(
            matrix.tocsr(), [low for _, low, _ in rows], [high for _, _, high in rows]
        ),
        integrality=np.ones(len(index)),
        bounds=scipy.optimize.Bounds(0, 1),
    )
    return float(found.fun) if found.success else math.inf


def least_chain_seconds(graph: Graph, capacity: int) -> float:
    """`least_seconds` of a `chain`; infinite if no schedule fits."""
    layers = (len(graph.jobs) - 1) // 2
    forward = [job.seconds for job in graph.jobs[:layers]]
    backward = [job.seconds for job in graph.jobs[layers + 1 :]][::-1]
    until = np.concatenate([[0.0], np.cumsum(forward)])

    @functools.cache
    def back(i: int, j: int, free: int) -> float:
        """From x_i and g_j there, with so much room beside them, to g_i; x_i may go."""
        if j == i + 1:
            return backward[i] if free >= 1 else math.inf
        best = math.inf
        for k in range(i + 1, j):
            if free < (2 if k > i + 1 else 1):
                break
            seconds = until[k] - until[i] + back(k, j, free - 1)
            if seconds < best:
                best = min(best, seconds + back(i, k, free))
        return best

    @functools.cache
    def whole(i: int, free: int) -> float:
        """From x_i there, with so much room beside it, to g_i."""
        if i == layers:
            return graph.jobs[layers].seconds if free >= 1 else math.inf
        best = math.inf
        for k in range(i + 1, layers + 1):
            if free < (2 if k > i + 1 else 1):
                break
            seconds = until[k] - until[i] + whole(k, free - 1)
            if seconds < best:
                best = min(best, seconds + back(i, k, free - 1))
        return best

    return whole(0, capacity - 1)
