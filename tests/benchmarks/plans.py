"""Plans of `policy="lookahead"` against Coop, DTE, DTR and static checkpoints, simulated.

For each of the paper's networks at its size: recompute overhead at shares of the unbudgeted peak,
and, for each way of placing checkpoints by hand, at the peak that it needs. Seconds are those of
the cost model, so but for the planning times the table is the same on every machine. "bound" is
what no plan can be below (`tests.testing.bounds`; by its own nature too low where memory is very
short).

With --fusion all programs are fused, those with checkpoints too; shares stay those of the unfused
peak, so that the budgets are the same bytes.

    python -m tests.benchmarks.plans [--networks bert,unet] [--ratios 0.9,0.5] [--profile NAME]
        [--fusion]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence

import coop_jax
from coop_jax._src.simulate.cpu_calibration import profile_of
from examples.paper.evaluation import DEVICE_BYTES
from examples.paper.evaluation.checkpoints import checkpointed
from examples.paper.evaluation.methods import GIVE_UP, MAIN
from examples.paper.evaluation.overheads import unbudgeted
from examples.paper.evaluation.simulating import traced
from examples.paper.networks import NETWORKS, Network
from tests.testing import bounds

EIGHT = [name for name in NETWORKS if name != "gpt2"]


def overheads(
    program: coop_jax.TracedProgram, policy: str, budgets: Sequence[int], profile: str
) -> list[float]:
    """Of each budget; infinite where it does not fit. A rival's own plan, without variants."""
    found = coop_jax.sweep(
        program,
        budget=budgets,
        policy=policy,
        device_profile=profile,
        alternatives=policy == "lookahead",
        give_up=GIVE_UP,
        progress=False,
    )
    return [x.overhead if x.feasible else math.inf for x in found]


def text(overhead: float) -> str:
    """As percent."""
    return "-" if math.isinf(overhead) else f"{100 * overhead:.1f}%"


class Tally:
    """What all rows say together."""

    def __init__(self) -> None:
        self.to_coop: list[tuple[float, float, float]] = []  # lookahead, Coop, bound
        self.to_bound: list[float] = []
        self.above: list[str] = []
        self.rows = 0

    def add(self, where: str, ahead: float, least: float, rivals: dict[str, float]) -> None:
        """One row: who beats lookahead there?"""
        self.rows += 1
        coop = rivals.get("coop", math.inf)
        if 0 < coop < math.inf and ahead < math.inf:
            self.to_coop.append((ahead, coop, least))
        if least > 1e-3 and ahead < math.inf:  # below that a search stops
            self.to_bound.append(ahead / least)
        better = [f"{name} {text(x)}" for name, x in rivals.items() if x < ahead - 1e-9]
        if better:
            self.above.append(f"{where}: {text(ahead)}, {', '.join(better)}")

    def show(self) -> None:
        """Prints the summary."""
        if self.to_coop:
            ratio = statistics.fmean(ahead / coop for ahead, coop, _ in self.to_coop)
            ahead, coop, least = (statistics.fmean(x) for x in zip(*self.to_coop, strict=True))
            out_of_reach = sum(least > 0.5 * coop for _, coop, least in self.to_coop)
            print(
                f"{len(self.to_coop)} budgets that lookahead and Coop fit: lookahead / Coop"
                f" {ratio:.2f} on average; mean overheads {text(ahead)} and {text(coop)}, bound"
                f" {text(least)}; half of Coop's is below the bound in {out_of_reach}"
            )
        if self.to_bound:
            print(
                f"lookahead / bound, where that is above 0.1%: mean"
                f" {statistics.fmean(self.to_bound):.2f}, median"
                f" {statistics.median(self.to_bound):.2f} of {len(self.to_bound)}"
            )
        print(f"above another method in {len(self.above)} of {self.rows} rows")
        for line in self.above:
            print("  " + line)


def compare(
    network: Network, ratios: Sequence[float], profile: str, tally: Tally, *, fusion: bool
) -> None:
    """Prints the rows of a network."""
    program = traced(network, "paper")
    plain = unbudgeted(program, profile)
    peak = plain.unbudgeted_peak_bytes
    if fusion:
        single, program = plain, traced(network, "paper", fusion=True)
        plain = unbudgeted(program, profile)
        print(
            f"{network.title}, fused: {plain.unbudgeted_peak_bytes / peak:.0%} of the memory,"
            f" {plain.compute_seconds / single.compute_seconds:.0%} of the time, without a budget"
        )
    budgets = [int(ratio * peak) for ratio in ratios]
    rivals = {policy: overheads(program, policy, budgets, profile) for policy in MAIN}
    started = time.perf_counter()
    ahead = overheads(program, "lookahead", budgets, profile)
    seconds = time.perf_counter() - started
    print(
        f"{network.title}: {len(program.program.operations):,} operations, peak"
        f" {peak / 1e9:.1f} GB; {len(budgets)} plans that look ahead took {seconds:.1f} s"
    )
    cost_seconds = program.cost_seconds(profile_of(profile))

    def bound(budget: int) -> float:
        least = bounds.least_recompute_seconds(program, budget, cost_seconds)
        return least / math.fsum(cost_seconds)

    for i, ratio in enumerate(ratios):
        least = bound(budgets[i])
        others = {name: found[i] for name, found in rivals.items()}
        print(
            f"  {ratio:>10.0%}  bound {text(least):>6}  lookahead {text(ahead[i]):>7}  "
            + "  ".join(f"{name} {text(x):>7}" for name, x in others.items()),
            flush=True,
        )
        tally.add(f"{network.title} at {ratio:.0%}", ahead[i], least, others)
    for remat in network.remat:
        if remat == "none":
            continue
        by_hand = traced(network, "paper", remat, fusion=fusion)
        static = checkpointed(network, remat, by_hand, profile, plain)
        (same,) = overheads(program, "lookahead", [static.peak_bytes], profile)
        ratio, least = static.peak_bytes / peak, bound(static.peak_bytes)
        print(
            f"  {ratio:>10.1%}  bound {text(least):>6}  lookahead {text(same):>7}"
            f"  {remat} {text(static.overhead)}",
            flush=True,
        )
        tally.add(f"{network.title} at {ratio:.1%}", same, least, {remat: static.overhead})


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(EIGHT))
    parser.add_argument("--ratios", default="0.9,0.8,0.7,0.6,0.5,0.4,0.3")
    parser.add_argument("--profile", default="a100-80gb-fp32", choices=list(DEVICE_BYTES))
    parser.add_argument("--fusion", action="store_true")
    flags = parser.parse_args()
    ratios = [float(x) for x in flags.ratios.split(",")]
    tally = Tally()
    for name in flags.networks.split(","):
        compare(NETWORKS[name], ratios, flags.profile, tally, fusion=flags.fusion)
    tally.show()


if __name__ == "__main__":
    main()
