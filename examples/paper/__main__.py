"""The paper's evaluation from the command line.

python -m examples.paper                    everything below: simulate, real, report
python -m examples.paper simulate --networks=resnet50,unet --out=some-folder
python -m examples.paper real               small sizes really run on this CPU
python -m examples.paper report             plots, and a page of the paper's claims
python -m examples.paper list
python -m examples.paper train --network=unet --budget=0.5

Tables are written row by row; what is in the folder already is not computed again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags, logging
from tqdm import tqdm

import coop_jax
from examples.paper import evaluation
from examples.paper.networks import NETWORKS, Network

FLAGS = flags.FLAGS
flags.DEFINE_enum("network", "unet", list(NETWORKS), "which network to train")
flags.DEFINE_string(
    "budget",
    "0.6",
    "a fraction of what a step needs without a budget, a number of bytes, a size such as 48MiB, or"
    " 'none'",
)
flags.DEFINE_enum("policy", "coop", ["coop", "dtr", "dte"], "what decides which tensors to evict")
flags.DEFINE_enum(
    "remat",
    "none",
    ["none", "per-layer", "sqrt", "selective"],
    "static checkpoints inside the network, beside what the budget makes of it",
)
flags.DEFINE_integer("steps", 20, "train steps", lower_bound=1)
flags.DEFINE_integer("seed", 0, "of the parameters and the data", lower_bound=0)

flags.DEFINE_list("networks", list(NETWORKS), "which networks to evaluate")
flags.DEFINE_list("methods", list(evaluation.METHODS), "which methods to simulate")
flags.DEFINE_list(
    "ratios",
    [str(ratio) for ratio in evaluation.RATIOS],
    "budgets to simulate, as shares of what a step needs without one",
)
flags.DEFINE_string("out", "paper-results", "the folder of the results")
flags.DEFINE_enum(
    "profile", "a100-80gb-fp32", list(evaluation.DEVICE_BYTES), "which device to simulate"
)
flags.DEFINE_boolean("fresh", False, "throw away what is in the folder, instead of adding to it")

MIB = 2**20

Budget = int | float | str | None


def parse_budget(text: str) -> Budget:
    """The flag as `coop_jax.run` takes it: '0.5' is a fraction, '4096' bytes, '48MiB' a size."""
    if text.lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def list_networks() -> None:
    """Prints what there is."""
    say(f"{'name':<11}{'parameters':>14}{'small':>10}{'batch':>7}  {'checkpoints':<33}source")
    for network in NETWORKS.values():
        checkpoints = ", ".join(r for r in network.remat if r != "none")
        say(
            f"{network.name:<11}{network.parameters('paper'):>14,}"
            f"{network.parameters('small'):>10,}{network.settings['paper'].task.batch:>7}"
            f"  {checkpoints:<33}{network.source}"
        )


def small_step(network: Network, budget: Budget, policy: str, remat: Any) -> Any:
    """The train step of the small size: eager where each step is another program."""
    if network.dynamic:
        if remat != "none":
            raise app.UsageError(f"--remat: {network.name} runs eagerly, where it has none")
        return coop_jax.remat_eager(network.eager_step("small"), budget=budget, policy=policy)
    step = network.make_step("small", remat)
    return coop_jax.run(step.fn, budget=budget, policy=policy, donate_argnums=step.donate_argnums)


def eager_budget(network: Network, budget: Budget, steps: int, seed: int) -> Budget:
    """A fraction as bytes: of the most that the steps need without a budget, which it runs for it.

    A program that decides on values is not known before it runs.
    """
    if not (network.dynamic and isinstance(budget, float)):
        return budget
    say("running without a budget, to know what the steps need ... ", end="")
    step = small_step(network, None, "coop", "none")
    state: Any = network.init("small", seed)
    for batch in itertools.islice(network.batches("small", seed), steps):
        state, _ = step(state, batch)
    peak = step.runtime.stats().peak_bytes
    step.runtime.close()
    say(f"{peak / MIB:.1f} MiB")
    return int(budget * peak)


def train() -> None:
    """Trains a small network under a budget."""
    network = NETWORKS[FLAGS.network]
    try:
        budget = eager_budget(network, parse_budget(FLAGS.budget), FLAGS.steps, FLAGS.seed)
        step = small_step(network, budget, FLAGS.policy, FLAGS.remat)
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    say(f"{network.title}, small: {network.parameters('small'):,} parameters")
    state: Any = network.init("small", FLAGS.seed)
    losses: list[float] = []
    seconds: list[float] = []
    batches = itertools.islice(network.batches("small", FLAGS.seed), FLAGS.steps)
    with tqdm(batches, total=FLAGS.steps, leave=False, disable=None) as bar:
        bar.set_description("compiling")
        for batch in bar:
            started = time.perf_counter()
            state, loss = step(state, batch)
            losses.append(float(loss))
            seconds.append(time.perf_counter() - started)
            bar.set_description("training")
            bar.set_postfix_str(f"loss {losses[-1]:.4f}", refresh=False)
    few = max(1, FLAGS.steps // 5)
    stats = step.runtime.stats()
    cap = "none" if stats.budget_bytes is None else f"{stats.budget_bytes / MIB:.1f} MiB"
    say(f"loss       {np.mean(losses[:few]):.4f} at first, {np.mean(losses[-few:]):.4f} at last")
    say(f"memory     peak {stats.peak_bytes / MIB:.1f} MiB, budget {cap}")
    say(f"recompute  {stats.evictions:,} evictions, overhead {stats.overhead:.1%}")
    say(f"step       {np.median(seconds):.2f} s (median), first {seconds[0]:.1f} s")


def simulate() -> None:
    """Fills the simulated tables."""
    methods = names(FLAGS.methods, evaluation.METHODS, "methods")
    try:
        ratios = [float(text) for text in FLAGS.ratios]
        if not all(0 < ratio <= 1 for ratio in ratios):
            raise ValueError("between 0 and 1")
    except ValueError as error:
        raise app.UsageError(f"--ratios={','.join(FLAGS.ratios)}: {error}") from error
    try:
        evaluation.simulate(
            Path(FLAGS.out),
            [NETWORKS[name] for name in networks()],
            methods,
            ratios,
            FLAGS.profile,
            fresh=FLAGS.fresh,
        )
    except ValueError as error:
        raise app.UsageError(str(error)) from error


def real() -> None:
    """Runs the small sizes on this CPU, beside what is simulated of them."""
    from examples.paper import real as real_runs

    real_runs.measure(Path(FLAGS.out), [n for n in networks() if n != "gpt2"])


def report() -> None:
    """Makes plots and the page from the tables."""
    from examples.paper import report as reports  # needs matplotlib, the others do not

    reports.write(Path(FLAGS.out))


def everything() -> None:
    """All tables, the plots, the page."""
    simulate()
    real()
    report()


def networks() -> list[str]:
    """The networks that the flag names."""
    return names(FLAGS.networks, NETWORKS, "networks")


def names(given: list[str], known: Mapping[str, Any], flag: str) -> list[str]:
    """The names in a flag, checked."""
    for name in given:
        if name not in known:
            raise app.UsageError(f"--{flag}: there is no {name!r}, only {', '.join(known)}")
    return given


def say(text: str, end: str = "\n") -> None:
    """Prints at once, also into a pipe."""
    print(text, end=end, flush=True)


COMMANDS: Mapping[str, Callable[[], None]] = {
    "list": list_networks,
    "train": train,
    "simulate": simulate,
    "real": real,
    "report": report,
}


def main(argv: list[str]) -> None:
    """Runs one command, or without one everything."""
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 2 or (len(argv) == 2 and argv[1] not in COMMANDS):
        raise app.UsageError(f"python -m examples.paper [{'|'.join(COMMANDS)}] [flags]")
    try:
        (COMMANDS[argv[1]] if len(argv) == 2 else everything)()
    except coop_jax.BudgetExceededError as error:
        raise SystemExit(f"--budget={FLAGS.budget}: {error}") from error


if __name__ == "__main__":
    app.run(main)
