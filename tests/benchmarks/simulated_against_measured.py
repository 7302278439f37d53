"""The overhead that was simulated beside the one that was measured, on small networks.

For each network: recorded costs of operations in steps without a budget, the overhead that they
predict at each budget, and that of real steps, interleaved with steps without a budget. The table
ends with how far the worst prediction is off, as a share of what was measured; within 15% is the
aim. A machine that does other things meanwhile makes single rows worse, the columns "statistics"
and "wall" most of all: use a quiet one, or more rounds. See `examples.paper.real` for what is
measured, and what the numbers do not mean.

Run: python -m tests.benchmarks.simulated_against_measured [--networks=bert,gpt3] [--rounds=11]
"""

from __future__ import annotations

import coop_jax  # noqa: F401 - first: it sets how the CPU backend starts  # isort: skip

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import app, flags, logging

from examples.paper import real
from examples.paper.networks import NETWORKS

_NETWORKS = flags.DEFINE_list("networks", ["resnet50", "unet", "bert", "gpt3"], "Which to run.")
_ROUNDS = flags.DEFINE_integer("rounds", 11, "Steps measured at each budget.", lower_bound=1)
_RATIOS = flags.DEFINE_list("ratios", [str(r) for r in real.RATIOS], "Budgets.")
_FOLDER = flags.DEFINE_string("folder", "build/real", "Where real.csv goes.")
_AIM = 0.15


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if unknown := set(_NETWORKS.value) - set(NETWORKS):
        raise app.UsageError(f"unknown networks: {sorted(unknown)}")
    logging.set_verbosity(logging.WARNING)
    ratios = [float(r) for r in _RATIOS.value]
    rows = real.measure(Path(_FOLDER.value), _NETWORKS.value, ratios=ratios, rounds=_ROUNDS.value)
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ("coop-jax", "jax", "jaxlib")]
    print(
        f"{', '.join(versions)}, Python {platform.python_version()}; {jax.devices()[0].platform},"
        f" {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {_ROUNDS.value} rounds"
    )
    print(
        f"{'network':12}{'policy':8}{'budget':>7}{'simulated':>11}{'measured':>10}{'off by':>9}"
        f"{'statistics':>12}{'wall':>8}{'evictions':>11}{'recomputed':>12}  decisions"
    )
    errors = []
    for row in rows:
        errors.append(row.simulated_overhead / row.measured_overhead - 1)
        print(
            f"{row.network:12}{row.policy:8}{row.ratio:7.0%}{row.simulated_overhead:11.1%}"
            f"{row.measured_overhead:10.1%}{errors[-1]:+9.1%}{row.statistics_overhead:12.1%}{row.wall_overhead:8.1%}"
            f"{row.evictions:11}{row.rematerialisations:12}"
            f"  {'the same' if row.same_decisions else 'OTHERS'}"
        )
    within = sum(abs(error) <= _AIM for error in errors)
    worst = max(errors, key=abs, default=0.0)
    print(f"{within} of {len(errors)} within {_AIM:.0%}; the worst is off by {worst:+.1%}")


if __name__ == "__main__":
    app.run(main)
