"""`coop_jax.jit` on a GPU beside `jax.jit` and per-layer `jax.checkpoint`: a train step of GPT-2.

GPT-2 of 124 million parameters (`gpt2`), 8 x 1024 tokens, in float32 and in bfloat16. Contenders
are `jax.jit`; `jax.jit` with a `jax.checkpoint` around each layer; `coop_jax.jit` in the memory of
those checkpoints, and in 100%, 50% and 30% of that of `jax.jit`. Columns:

- first s: tracing, planning and compiling, and the first step.
- XLA: what `memory_analysis` says (arguments + outputs - aliases + temporaries).
- peak: `memory_stats()["peak_bytes_in_use"]` of the contender's process (see `contender`); it has a
  "<" if compiling took more than the steps, which then peaked somewhere below.
- ms: a step, the median over rounds in which each contender takes a few steps in a row in turn; and
  the median of the ratios to `jax.jit` in the same round.
- loss: after the same number of steps for all; and its relative difference from that of `jax.jit`.

With --part=profile: where the time of `coop_jax.run` goes, without a budget and in half of the
memory of `jax.jit`, beside `jax.jit`: time in kernels by class, copies, gaps (`device_time`).

The persistent compilation cache is off. After --minutes no contender is started, and what runs is
ended 30 seconds later; each dtype has an equal part of the time, and what the one before it left.
What is known is printed, and written to $OUT as JSON if that is set, with the traces.

Run: python -m tests.gpu.compiled_plans [--part=compare] [--dtypes=float32,bfloat16]
    [--minutes=7.5] [--rounds=10] [--in_a_row=4] [--size=paper]
Run: python -m tests.gpu.compiled_plans --part=profile [--dtypes=float32] [--minutes=2]
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

from jax.profiler import ProfileData

from tests.gpu import device_time
from tests.gpu.contender import Process

_MIB = 2**20
_GRACE_SECONDS = 30.0
_WARMUP_STEPS = 10

Row = dict[str, Any]


class _Clock:
    """The time that is left, for all contenders together."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()

    def start(
        self, stack: contextlib.ExitStack, name: str, seconds: float, **options: Any
    ) -> Process | None:
        """A contender that has compiled and trained; None if the time (`seconds` of it) is over."""
        if seconds <= 0 or self.left() <= 0:
            print(f"  {name}: not started, the time is over", flush=True)
            return None
        contender = Process(name, self.left() + _GRACE_SECONDS, **options)
        stack.enter_context(contextlib.closing(contender))
        if options["way"] != "coop_jax.run":
            contender.ask("compile")
        contender.ask("train", _WARMUP_STEPS)
        found = contender.found
        print(f"  {name}: {contender.failed or _short(found)}", flush=True)
        return contender


def _short(found: Row) -> str:
    return f"{found['first_call_seconds']:.1f} s until the first step was done"


def _compare(clock: _Clock, args: argparse.Namespace, dtype: str, seconds: float) -> list[Row]:
    """The contenders of one dtype, in so many seconds."""
    until = clock.left() - seconds
    with contextlib.ExitStack() as stack:
        started: list[Process] = []

        def start(name: str, way: str, budget: int | None = None) -> int:
            """What it needs; 0 if that is not known."""
            options = {"way": way, "size": args.size, "dtype": dtype, "budget": budget}
            contender = clock.start(stack, name, clock.left() - until, **options)
            started.extend([contender] if contender else [])
            return contender.found.get("needed_bytes", 0) if contender else 0

        jit_bytes = start("jax.jit", "jit")
        checkpoint_bytes = start("jax.checkpoint", "checkpoints")
        if checkpoint_bytes:
            start("coop_jax.jit in its memory", "coop_jax.jit", checkpoint_bytes)
        for share in (1.0, 0.5, 0.3) if jit_bytes else ():
            start(f"coop_jax.jit at {share:.0%}", "coop_jax.jit", int(share * jit_bytes))
        for _ in range(args.rounds):
            for contender in started:
                answer = contender.ask("steps", args.in_a_row)
                if answer is not None:
                    contender.step_seconds.append(answer["last_seconds"])
        return [
            {
                "name": c.name,
                "dtype": dtype,
                "failed": c.failed,
                "step_seconds": c.step_seconds,
                **c.found,
            }
            for c in started
        ]


def _relative(rows: list[Row]) -> None:
    """Adds what each row is beside that of `jax.jit`, the first one."""
    if not rows:
        return
    jit = rows[0]
    for row in rows:
        paired = list(zip(row["step_seconds"], jit["step_seconds"], strict=False))
        if paired:
            row["seconds"] = statistics.median(a for a, _ in paired)
            row["time_ratio"] = statistics.median(a / b for a, b in paired)
        if row.get("losses"):
            row["loss"] = row["losses"][-1]
            if "loss" in jit:
                row["loss_difference"] = abs(row["loss"] - jit["loss"]) / abs(jit["loss"])
        if row.get("needed_bytes") and jit.get("needed_bytes"):
            row["memory_ratio"] = row["needed_bytes"] / jit["needed_bytes"]
        peak = row.get("peak_in_a_row_bytes") or row.get("peak_bytes")
        if peak is not None:
            row["counted_bytes"] = peak
            row["peak_ratio"] = peak / row["needed_bytes"]
            row["peak_is_of_compiling"] = peak <= (row["compile_peak_bytes"] or 0)


def _cell(row: Row, key: str, form: str, scale: float = 1.0) -> str:
    return format(row[key] / scale, form) if row.get(key) is not None else "-"


def _print_table(dtype: str, rows: list[Row]) -> None:
    print(
        f"\n{dtype:28}{'first s':>8}{'XLA MiB':>10}{'/ jit':>7}{'peak MiB':>11}{'/ XLA':>7}"
        f"{'ms':>9}{'/ jit':>7}{'loss':>9}{'differs':>9}"
    )
    for row in rows:
        below = "<" if row.get("peak_is_of_compiling") else ""
        cells = (
            f"{row['name']:28}{_cell(row, 'first_call_seconds', '.1f'):>8}"
            f"{_cell(row, 'needed_bytes', '.1f', _MIB):>10}{_cell(row, 'memory_ratio', '.2f'):>7}"
            f"{below + _cell(row, 'counted_bytes', '.1f', _MIB):>11}"
            f"{_cell(row, 'peak_ratio', '.3f'):>7}"
            f"{_cell(row, 'seconds', '.2f', 1e-3):>9}{_cell(row, 'time_ratio', '.3f'):>7}"
            f"{_cell(row, 'loss', '.4f'):>9}{_cell(row, 'loss_difference', '.1e'):>9}"
        )
        print(f"{cells}  {row['failed']}".rstrip())


def _goals(dtype: str, rows: list[Row]) -> list[str]:
    """A line for each goal; a goal that could not be measured says so."""
    by_name = {row["name"]: row for row in rows if not row["failed"] and "time_ratio" in row}
    full, planned = by_name.get("coop_jax.jit at 100%"), by_name.get("coop_jax.jit in its memory")
    rival = by_name.get("jax.checkpoint")
    lines = []

    def goal(text: str, met: bool | None) -> None:
        lines.append(f"{'not measured' if met is None else 'met' if met else 'MISSED'}: {text}")

    text = "" if full is None else f" ({full['time_ratio']:.3f})"
    met = None if full is None else full["time_ratio"] <= 1.02
    goal(f"{dtype}, all of jit's memory: at most 1.02 of its time{text}", met)
    text, met = "", None
    if planned is not None and rival is not None:
        pairs = zip(planned["step_seconds"], rival["step_seconds"], strict=False)
        ratio = statistics.median(a / b for a, b in pairs)
        text, met = f" ({ratio:.3f} of it)", ratio < 1
    goal(f"{dtype}, memory of the checkpoints: below their time{text}", met)
    counted = {
        row["name"]: row["peak_ratio"]
        for row in by_name.values()
        if "peak_ratio" in row and not row["peak_is_of_compiling"]
    }
    text = "".join(f", {name} {ratio:.3f}" for name, ratio in counted.items())
    met = all(0.95 <= r <= 1.05 for r in counted.values()) if counted else None
    goal(f"{dtype}, memory_stats within 5% of the formula{text}", met)
    return lines


def _profile(clock: _Clock, args: argparse.Namespace, dtype: str) -> list[Row]:
    """Traces of one step each; a process that has ended leaves its memory to the next one."""
    rows: list[Row] = []
    jit_bytes = 0
    for name, way, share in (
        ("jax.jit", "jit", None),
        ("run", "coop_jax.run", None),
        ("run at 50%", "coop_jax.run", 0.5),
    ):
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            budget = int(share * jit_bytes) if share and jit_bytes else share
            options = {"way": way, "size": args.size, "dtype": dtype, "budget": budget}
            contender = clock.start(stack, name, clock.left(), **options)
            if contender is None:
                continue
            contender.ask("steps", args.in_a_row)
            jit_bytes = jit_bytes or contender.found.get("needed_bytes", 0)
            row: Row = {"name": name, "dtype": dtype}
            if contender.ask("trace", directory) is not None:
                row["device_time"] = _read_trace(pathlib.Path(directory), f"{dtype}_{len(rows)}")
            rows.append({**row, "failed": contender.failed, **contender.found})
    print(f"\n{dtype}: one step, ms")
    for row in rows:
        if row["failed"]:
            print(f"{row['name']}: {row['failed']}")
    device_time.print_table([row for row in rows if row.get("device_time")])
    return rows


def _read_trace(directory: pathlib.Path, name: str) -> Row | None:
    """The summary of a trace, which is saved first; None if there is nothing of a device in it."""
    (path,) = directory.rglob("*.xplane.pb")
    _save(f"{name}.xplane.pb.gz", gzip.compress(path.read_bytes()))
    try:
        return device_time.summarised(ProfileData.from_file(str(path)))
    except ValueError as error:
        print(f"  {name}: {error}")
        return None


def _save(name: str, content: bytes) -> None:
    if "OUT" in os.environ:
        folder = pathlib.Path(os.environ["OUT"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["compare", "profile"], default="compare")
    parser.add_argument("--size", choices=["paper", "tiny"], default="paper")
    parser.add_argument("--dtypes")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--in_a_row", type=int, default=4)
    args = parser.parse_args()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    compares = args.part == "compare"
    clock = _Clock(60 * (args.minutes or (7.5 if compares else 2.0)))
    dtypes = (args.dtypes or ("float32,bfloat16" if compares else "float32")).split(",")
    rows: list[Row] = []
    goals: list[str] = []
    for number, dtype in enumerate(dtypes):
        print(f"{dtype}:", flush=True)
        if compares:
            found = _compare(clock, args, dtype, clock.left() / (len(dtypes) - number))
            _relative(found)
            _print_table(dtype, found)
            goals += _goals(dtype, found)
            rows += found
        else:
            rows += _profile(clock, args, dtype)
        _save(f"compiled_plans_{args.part}.json", json.dumps(rows, indent=1).encode())
    print("", *goals, sep="\n", flush=True)


if __name__ == "__main__":
    main()
