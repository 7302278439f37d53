"""How long calls of `coop_jax.run` take from the first one on, as a longer training sees them.

A call launches one operation at a time at first; once launching took as long as the first call,
segments are made beside calls (see `coop_jax/_src/run/tiering.py`). Shown are the median call
before, the median, mean and longest one meanwhile, the median after; how many calls and seconds it
began after, how many it took, and what it cost: what calls meanwhile took longer than those before.
After that many calls, "pays after", what the later ones take less has made up for it.

Nothing comes from JAX's persistent cache. Times of a call are of the whole loop body: the step and
waiting for its results.

Run: python -m tests.benchmarks.longer_training [--programs=gpt,deep] [--shares=1,0.5]
"""

from __future__ import annotations

import coop_jax  # noqa: F401  # first: it sets how the CPU backend starts  # isort: skip

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
from absl import app, flags

from tests.benchmarks import machine
from tests.benchmarks.budgeted import Budgeted
from tests.benchmarks.contenders import KNOWN, count_libraries, jitted, program_of

_PROGRAMS = flags.DEFINE_list("programs", ["gpt", "deep"], "As of tests.benchmarks.compiled.")
_SHARES = flags.DEFINE_list("shares", ["1", "0.5"], "Budgets, as shares of what jit needs.")
_AFTER = flags.DEFINE_integer("after", 60, "Calls after the change.", lower_bound=20)
_MOST = flags.DEFINE_integer("most", 5_000, "Calls before, at most.", lower_bound=1)

# Calls that find the pool in other states, or whose plans are made.
_UNTIL_SETTLED = 5


def _tier(step: Any) -> Any:
    (signature,) = step._signatures.values()
    return signature.tier


def _row(name: str, share: float) -> str:
    program = program_of(name)
    contender = Budgeted(name, program, int(share * count_libraries(jitted("jit", program)).need))
    step = contender.step
    seconds: list[float] = []
    begun = settled = 0
    while len(seconds) < (settled + _AFTER.value if settled else _MOST.value):
        begin = time.perf_counter()
        contender.take(timed=True)
        seconds.append(time.perf_counter() - begin)
        if contender.failed:
            return f"{name:8}{share:6.0%}  {contender.failed}"
        if not begun and (_tier(step).preparing is not None or _tier(step).settled):
            begun = len(seconds) - 1
        if not settled and _tier(step).settled:
            settled = len(seconds)
    if not settled:
        return f"{name:8}{share:6.0%}  no segments in {len(seconds)} calls"
    before = statistics.median(seconds[_UNTIL_SETTLED:begun])
    meanwhile = seconds[begun:settled]
    after = statistics.median(seconds[settled + _UNTIL_SETTLED :])
    cost = sum(meanwhile) - before * len(meanwhile)
    pays = f"{cost / (before - after):10.0f}" if after < before else f"{'never':>10}"
    return (
        f"{name:8}{share:6.0%}{seconds[0]:8.1f}{before * 1e3:9.0f}"
        f"{begun:8}{sum(seconds[:begun]):8.0f}"
        f"{statistics.median(meanwhile) * 1e3:9.0f}{statistics.mean(meanwhile) * 1e3:8.0f}"
        f"{max(meanwhile) * 1e3:8.0f}{len(meanwhile):7}{sum(meanwhile):7.0f}"
        f"{cost:7.1f}{after * 1e3:8.0f}{pays}"
    )


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if unknown := set(_PROGRAMS.value) - set(KNOWN):
        raise app.UsageError(f"unknown programs: {sorted(unknown)}")
    jax.config.update("jax_enable_compilation_cache", False)
    print(machine.heading(_AFTER.value, 0))
    print(
        f"{'':14}{'first':>8}{'before':>9}{'begins after':>16}"
        f"{'meanwhile: median, mean, longest':>36}{'takes':>9}{'costs':>9}"
        f"{'after':>8}{'pays':>10}\n"
        f"{'':14}{'s':>8}{'ms':>9}{'calls':>8}{'s':>8}{'ms':>9}{'ms':>8}{'ms':>8}"
        f"{'calls':>7}{'s':>7}{'s':>7}{'ms':>8}{'after':>10}"
    )
    for name in _PROGRAMS.value:
        for share in map(float, _SHARES.value):
            print(_row(name, share), flush=True)


if __name__ == "__main__":
    app.run(main)
