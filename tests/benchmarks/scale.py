"""Seconds and bytes that planning takes, against the number of operations.

The program: layers forward and backward, as a deep network has them: each layer a product (dear),
a normalisation and an activation (cheap), whose gradients read what the forward pass made. Planned
at half of what it needs, by the policy itself: without the search for better plans. Bytes are what
the process has grown by while it holds the program and the plan, to the page.

Each size is planned in turn, round after round; printed are medians, for each operation, and how
they compare to the smallest size: 1 is linear.

Run: python -m tests.benchmarks.scale [--operations=1000,10000,100000] [--repeats=3]
"""

from __future__ import annotations

import gc
import os
import statistics
import time

from absl import app, flags

import coop_jax
from coop_jax import _core
from coop_jax._src.ir.cost_model import CPU
from tests.benchmarks import machine

_OPERATIONS = flags.DEFINE_list("operations", ["1000", "10000", "100000"], "How many.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed rounds.", lower_bound=1)
_SHARE = flags.DEFINE_float("share", 0.5, "Of what the program needs: the budget.")

_POLICIES = ("coop", "lookahead")
_BYTES = 1 << 20
_SECONDS = {"product": 1e-3, "norm": 5e-5, "activation": 2e-5}
_FORWARD = tuple(_SECONDS)


def program(operations: int) -> tuple[_core.Program, int]:
    """A program of about so many operations, and what it needs at its peak."""
    layers = operations // (2 * len(_FORWARD))
    reads: list[list[int]] = []
    seconds: list[float] = []
    values = 1  # the input
    made = [0]
    for _ in range(layers):
        for kind in _FORWARD:
            reads.append([made[-1]])
            seconds.append(_SECONDS[kind])
            made.append(values)
            values += 1
    gradient = made[-1]
    for index in range(len(made) - 2, -1, -1):
        reads.append([made[index], gradient])
        seconds.append(_SECONDS[_FORWARD[index % len(_FORWARD)]])
        gradient = values
        values += 1
    count = len(reads)
    last = {v: n for n, values_read in enumerate(reads) for v in values_read}
    releases: list[list[int]] = [[] for _ in range(count)]
    for value, n in last.items():
        if value:
            releases[n].append(value)
    in_begin, release_begin = [0], [0]
    for n in range(count):
        in_begin.append(in_begin[-1] + len(reads[n]))
        release_begin.append(release_begin[-1] + len(releases[n]))
    made_program = _core.Program(
        storage_bytes=[_BYTES] * values,
        storage_outside=[False] * values,
        input_storages=[0],
        input_donated=[False],
        op_input_begin=in_begin,
        op_inputs=[v for r in reads for v in r],
        op_output_begin=list(range(count + 1)),
        op_outputs=list(range(1, count + 1)),
        op_in_place=[-1] * count,
        op_cost_seconds=seconds,
        op_recomputable=[True] * count,
        release_begin=release_begin,
        releases=[v for r in releases for v in r],
        outputs=[gradient],
    )
    return made_program, (len(made) + 2) * _BYTES


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _planned(operations: int, policy: str) -> tuple[float, float, float, int]:
    """Seconds and bytes for each operation, recompute overhead, operations."""
    gc.collect()
    before = _resident_bytes()
    made, peak = program(operations)
    begin = time.perf_counter()
    plan = _core.make_plan(
        made,
        capacity_bytes=int(peak * _SHARE.value),
        alignment_bytes=64,
        policy=coop_jax.Policy(policy, search_effort=0),
        expensive_seconds_per_byte=CPU.expensive_seconds_per_byte,
        input_where=[0],
        input_offsets=[-1],
    )
    seconds = time.perf_counter() - begin
    grown = _resident_bytes() - before
    if not plan.feasible:
        raise SystemExit(f"{operations} operations do not fit {_SHARE.value:.0%} under {policy}")
    count = made.operation_count
    stats = plan.stats
    return (
        seconds / count,
        grown / count,
        stats.recompute_seconds / stats.compute_seconds,
        count,
    )


def main(_: list[str]) -> None:
    sizes = [int(text) for text in _OPERATIONS.value]
    print(machine.heading(_REPEATS.value, 0))
    print(
        f"\n{'policy':10}{'operations':>11}{'s':>8}{'µs / op':>9}{'times':>7}{'bytes / op':>12}"
        f"{'recompute':>11}"
    )
    for policy in _POLICIES:
        rounds = [[_planned(size, policy) for size in sizes] for _ in range(_REPEATS.value)]
        least = statistics.median(row[0][0] for row in rounds)
        for k in range(len(sizes)):
            seconds = statistics.median(row[k][0] for row in rounds)
            nbytes = statistics.median(row[k][1] for row in rounds)
            _, _, overhead, count = rounds[0][k]
            print(
                f"{policy:10}{count:11,}{seconds * count:8.2f}{seconds * 1e6:9.1f}"
                f"{seconds / least:7.2f}{nbytes:12,.0f}{overhead:11.1%}"
            )


if __name__ == "__main__":
    app.run(main)
