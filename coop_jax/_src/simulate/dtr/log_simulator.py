"""Operation logs of the authors of DTR: in their simulator, and from programs of ours.

A log is what a PyTorch training step did: JSON lines with calls, sizes, times in nanoseconds,
copies of references and releases (`read_log` lists the instructions). `simulate_log` runs one
through the engine's simulator without addresses, which follows the rules of theirs, so that
published numbers can be checked to the last digit (see cc/baselines/dtr/simulator.h). It is a check
of baselines, not the way to learn what a budget costs: that is `simulate`.

Thread rule: functions of their arguments. Cost: a second at most for logs of a few thousand
operations, less by far for heuristics that look at no neighbours.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import cast

from coop_jax import _core
from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.ir.program import Operation, Program, Storage, Value
from coop_jax._src.simulate.dtr.log_reader import PIN as PIN
from coop_jax._src.simulate.dtr.log_reader import RELEASE as RELEASE
from coop_jax._src.simulate.dtr.log_reader import RETAIN as RETAIN
from coop_jax._src.simulate.dtr.log_reader import RUN as RUN
from coop_jax._src.simulate.dtr.log_reader import DtrLog as DtrLog
from coop_jax._src.simulate.dtr.log_reader import LogOperation as LogOperation
from coop_jax._src.simulate.dtr.log_reader import read_log as read_log
from coop_jax._src.simulate.traced_program import RecordedKernel, RecordedType, TracedProgram

HEURISTICS = {
    "DTR": "dtr",
    "EQ": "union_find",
    "LOCAL": "local",
    "LRU": "lru",
    "SIZE": "size",
    "MSPS": "msps",
}


@dataclasses.dataclass(frozen=True, slots=True)
class LogSimulation:
    """What the simulator without addresses says of a log under a budget.

    Attributes:
      status: "ok", "OOM" (the operation's arguments and results alone do not fit) or "thrash" (more
        time in recomputation than the whole log takes).
      budget_bytes: the budget, None for none.
      total_over_base_compute: time with recomputation / time without, until the end or failure.
      peak_bytes: most bytes at once.
      evictions, recomputations: storages evicted to make room, operations run again.
    """

    status: str
    budget_bytes: int | None
    total_over_base_compute: float
    peak_bytes: int
    evictions: int
    recomputations: int


def _engine_program(log: DtrLog) -> _core.FungibleProgram:
    arg_begin, result_begin = [0], [0]
    args: list[int] = []
    sizes: list[int] = []
    aliases: list[int] = []
    for op in log.operations:
        args += op.arguments
        sizes += op.result_bytes
        aliases += op.aliases
        arg_begin.append(len(args))
        result_begin.append(len(sizes))
    return _core.FungibleProgram(
        op_cost_ns=[op.cost_ns for op in log.operations],
        op_arg_begin=arg_begin,
        op_args=args,
        op_result_begin=result_begin,
        result_bytes=sizes,
        result_alias=aliases,
        step_kinds=[kind for kind, _ in log.steps],
        step_ids=[number for _, number in log.steps],
    )


def simulate_log(
    log: DtrLog,
    *,
    budget: int | float | None = None,
    heuristic: str = "DTR",
) -> LogSimulation:
    """Runs a log in the simulator without addresses.

    Args:
      log: from `read_log`.
      budget: bytes (int), a fraction of the peak without a budget (float), or None for no budget.
      heuristic: what is evicted, the least of: "DTR" (cost with that of evicted ancestors and
        descendants / (size * staleness)), "EQ" (the same by union-find over evicted components),
        "LOCAL" (without neighbours), "LRU", "SIZE" (the largest), "MSPS" (cost with that of evicted
        ancestors / size).

    Returns:
      What happened.

    Raises:
      ValueError: an unknown heuristic.
    """
    if heuristic not in HEURISTICS:
        raise ValueError(f"unknown heuristic {heuristic!r}; there are {', '.join(HEURISTICS)}")
    program = _engine_program(log)
    if isinstance(budget, float):
        unlimited = _core.simulate_fungible(program, heuristic="lru", release_pinned=True)
        budget = int(unlimited.peak_bytes * budget)
    result = _core.simulate_fungible(
        program,
        heuristic=HEURISTICS[heuristic],
        budget_bytes=-1 if budget is None else budget,
        recompute_limit_ns=-1 if budget is None else log.compute_ns,
    )
    return LogSimulation(
        status={"ok": "ok", "out_of_memory": "OOM", "thrashing": "thrash"}[result.status],
        budget_bytes=budget,
        total_over_base_compute=result.clock_ns / max(1, log.compute_ns),
        peak_bytes=result.peak_bytes,
        evictions=result.evictions,
        recomputations=result.recomputations,
    )


def program_of_log(log: DtrLog, name: str = "log") -> TracedProgram:
    """A log as a program, to simulate with addresses under any policy.

    Constants become inputs that are not donated. Aliases are views: calls that make nothing else
    are left out. A mutation may write over what it changes, if nothing else refers to that.
    Operations cost what was measured, whatever the profile; simulate with one of the kind of device
    all the same, since it says which operations are cheap ("rtx-2080ti" is nearest to theirs).

    Args:
      log: from `read_log`.
      name: for people.
    """
    storages: list[int] = []  # bytes
    storage_of: list[int] = []  # by tensor
    inputs: list[int] = []
    is_input: set[int] = set()
    operations: list[Operation] = []
    releases: list[list[int]] = []
    references: list[int] = []  # by storage
    values: list[Value] = []
    for kind, number in log.steps:
        if kind in (RETAIN, RELEASE):
            storage = storage_of[number]
            references[storage] += 1 if kind == RETAIN else -1
            if references[storage] == 0 and storage not in is_input and releases:
                releases[-1].append(storage)
        if kind != RUN:
            continue
        op = log.operations[number]
        makes, in_place = [], []
        for nbytes, alias, mutated in zip(op.result_bytes, op.aliases, op.mutates, strict=True):
            storage = len(storages) if alias < 0 else storage_of[op.arguments[alias]]
            if alias < 0:
                storages.append(nbytes)
                references.append(0)
                makes.append(len(storage_of))
                in_place.append(mutated)
            references[storage] += 1
            storage_of.append(storage)
            values.append(Value(storage, RecordedType((nbytes,), "uint8")))
        if op.name == "constant":
            inputs += [storage_of[v] for v in makes]
            is_input.update(inputs)
        elif makes:
            moved = sum(storages[storage_of[v]] for v in (*op.arguments, *makes))
            recorded = RecordedKernel(op.name, op.name, op.cost_ns * 1e-9, -1.0, moved, True)
            kernel = cast(Kernel, recorded)  # the planner looks at nothing else of one
            operations.append(
                Operation(kernel, op.arguments, tuple(makes), tuple(in_place), "", "")
            )
            releases.append([])
    members: list[list[int]] = [[] for _ in storages]
    for tensor, storage in enumerate(storage_of):
        members[storage].append(tensor)
    program = Program(
        values=tuple(values),
        storages=tuple(
            Storage(nbytes, False, tuple(m)) for nbytes, m in zip(storages, members, strict=True)
        ),
        operations=tuple(operations),
        inputs=tuple(members[s][0] for s in inputs),
        donated=(False,) * len(inputs),
        constants=(),
        outputs=tuple(
            members[s][0] for s, n in enumerate(references) if n > 0 and s not in is_input
        ),
        releases=tuple(map(tuple, releases)),
    )
    return TracedProgram(name, program)


def write_log(
    traced: TracedProgram,
    path: str | os.PathLike[str],
    cost_seconds: list[float] | None = None,
) -> None:
    """Writes a program as an operation log.

    Inputs and constants become constants, storages tensors, views other names of them. A log says
    nothing of memory outside the pool, of in-place updates (a mutation would make a new storage
    too) or of operations that must not be replayed. Donated inputs are released after their last
    use, but constants stay: their memory does not come free.

    Args:
      traced: the program.
      path: the file to write; JSON lines.
      cost_seconds: seconds of each operation; those of the program if not given.
    """
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in _log_lines(traced, cost_seconds))


def _log_lines(traced: TracedProgram, cost_seconds: list[float] | None) -> Iterator[str]:
    program = traced.program
    seconds = traced.cost_seconds(None) if cost_seconds is None else cost_seconds

    def line(instruction: str, **fields: object) -> str:
        return json.dumps({"INSTRUCTION": instruction, **fields})

    def memory(storage: int) -> str:
        return line("MEMORY", NAME=f"x{storage}", MEMORY=str(program.storages[storage].nbytes))

    kept = {program.values[v].storage for v in program.outputs}
    released = {storage for storages in program.releases for storage in storages}
    named = []
    yield line("ANNOTATE", ANNOTATION="START")
    for value in (*program.inputs, *(v for v, _ in program.constants)):
        storage = program.values[value].storage
        named.append(storage)
        yield line("CONSTANT", NAME=f"x{storage}")
        yield memory(storage)
    for op, cost, storages in zip(program.operations, seconds, program.releases, strict=True):
        made = [program.values[v].storage for v in op.results]
        named += made
        yield line(
            "CALL",
            NAME=op.kernel.label,
            ARGS=[f"x{program.values[v].storage}" for v in op.operands],
            RESULT=[f"x{storage}" for storage in made],
            TIME=str(round(cost * 1e9)),
        )
        for storage in made:
            yield memory(storage)
            yield line("ALIAS", NAME=f"x{storage}", ALIAS="-1")
        for storage in storages:
            yield line("RELEASE", NAME=f"x{storage}")
    for storage in named:  # inputs that outlive the call are the caller's, not results
        if storage not in kept and storage not in released:
            yield line("RELEASE", NAME=f"x{storage}")
