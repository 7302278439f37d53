"""Trains a Flax CNN on the digits that ship with scikit-learn, under a memory budget.

The budget takes one line, in `budgeted` below: `coop_jax.run` around an ordinary train step. The
rest is how one trains a Flax model anyway, and printing what happened.

    python -m examples.digits.train --budget=0.5 --verify
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sklearn.datasets
from absl import app, flags, logging
from tqdm import tqdm

import coop_jax
from examples.digits.model import DigitsCNN

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "budget",
    "0.5",
    "a fraction such as 0.5 of what the step needs without a budget, a number of bytes, a size such"
    " as 48MiB, or 'none'",
)
flags.DEFINE_enum(
    "policy",
    None,
    ["lookahead", "coop", "dtr", "dte"],
    "what decides which tensors to evict; lookahead if not given, with --eager coop",
)
flags.DEFINE_integer("epochs", 8, "passes over the training images", lower_bound=1)
flags.DEFINE_integer("batch", 128, "images of one step", lower_bound=1, upper_bound=1437)
flags.DEFINE_integer("seed", 0, "of the parameters, the split and the shuffling", lower_bound=0)
flags.DEFINE_bool("verify", False, "train again without a budget and compare all parameters")
flags.DEFINE_bool("eager", False, "use coop_jax.remat_eager in place of coop_jax.run")
flags.DEFINE_bool(
    "fusion", None, "compile operations together that XLA can fuse (run does, unless told not to)"
)

WANTED_ACCURACY = 0.97
TEST_IMAGES = 360
TEST_BATCH = 120
MIB = 2**20
# Two lines of heading, and the width, of each column.
COLUMNS = (
    ("", "epoch", 6),
    ("", "loss", 8),
    ("test", "accuracy", 8),
    ("peak / budget", "MiB", 15),
    ("", "evictions", 9),
    ("recompute", "seconds", 9),
    ("recompute", "overhead", 9),
)

Budget = int | float | str | None

model = DigitsCNN()
optimizer = optax.adam(2e-3)


class Digits(NamedTuple):
    """Images float32 [n, 16, 16, 1] in [0, 1] and labels int32 [n]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class Result(NamedTuple):
    """What a training leaves: NumPy parameters, accuracy, peak, seconds without compiling."""

    params: Any
    accuracy: float
    peak_bytes: int
    seconds: float


def load_digits(seed: int) -> Digits:
    """The 1797 digits of scikit-learn, shuffled, split, enlarged from 8 x 8 to 16 x 16."""
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = digits.images[order].astype(np.float32)[..., None] / 16
    images = images.repeat(2, axis=1).repeat(2, axis=2)
    labels = digits.target[order].astype(np.int32)
    n = TEST_IMAGES
    return Digits(images[n:], labels[n:], images[:n], labels[:n])


def batches_of(
    images: np.ndarray, labels: np.ndarray, batch: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Whole batches in a random order; the few images left over wait for another epoch."""
    order = np.random.default_rng(seed).permutation(len(labels))
    starts = range(0, len(labels) - batch + 1, batch)
    return [(images[order[s : s + batch]], labels[order[s : s + batch]]) for s in starts]


@functools.partial(jax.jit, static_argnums=0)
def create_state(seed: int) -> tuple[Any, Any]:
    """Parameters and the optimizer's state."""
    params = model.init(jax.random.key(seed), jnp.zeros((1, 16, 16, 1)))
    return params, optimizer.init(params)


def train_step(
    params: Any, opt_state: Any, images: jax.Array, labels: jax.Array
) -> tuple[Any, Any, jax.Array]:
    """One step of Adam; returns the new parameters, the new optimizer state and the loss."""

    def loss_fn(params: Any) -> jax.Array:
        logits: Any = model.apply(params, images)
        losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def count_correct(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """How many of the images the model gets right."""
    logits: Any = model.apply(params, images)
    return jnp.sum(logits.argmax(-1) == labels)


def budgeted(
    budget: Budget, policy: str | None = None, eager: bool = False, fusion: bool | None = None
) -> Any:
    """The train step under a budget: all that changes in a program that exists."""
    if eager and fusion:
        raise ValueError("--fusion is for coop_jax.run, which sees the whole program: not --eager")
    chosen = {} if policy is None else {"policy": policy}
    if eager:
        return coop_jax.remat_eager(train_step, budget=budget, **chosen)
    return coop_jax.run(train_step, budget, donate_argnums=(0, 1), fusion=fusion, **chosen)


def train(step: Any, budget: Budget, digits: Digits, epochs: int, batch: int, seed: int) -> Result:
    """Trains with the given step, which has the given budget; prints a row for each epoch."""
    started = time.perf_counter()
    params, opt_state = create_state(seed)
    correct: Any = None
    before: coop_jax.Stats | None = None

    def accuracy_of(params: Any) -> float:
        tests = batches_of(digits.test_images, digits.test_labels, TEST_BATCH, seed)
        return sum(int(correct(params, *test)) for test in tests) / TEST_IMAGES

    for epoch in range(epochs):
        losses: list[float] = []
        todo = batches_of(digits.train_images, digits.train_labels, batch, seed + epoch)
        total = len(todo)
        if epoch == 0:
            say("compiling operation by operation (once; may take a minute) ... ", end="")
            params, opt_state, loss = step(params, opt_state, *todo.pop(0))
            losses.append(float(loss))
            # The test images go through the same pool, under the same budget.
            correct = coop_jax.run(count_correct, runtime=step.runtime)
            accuracy_of(params)
            say(f"done in {time.perf_counter() - started:.1f} s")
            started = time.perf_counter()
            print_header(step.runtime.stats(), budget)
        # The bar is for terminals: elsewhere the rows are enough.
        with tqdm(total=total, initial=total - len(todo), leave=False, disable=None) as bar:
            bar.set_description(f"epoch {epoch + 1}/{epochs}")
            for images, labels in todo:
                params, opt_state, loss = step(params, opt_state, images, labels)
                losses.append(float(loss))
                bar.set_postfix_str(f"loss {losses[-1]:.4f}", refresh=False)
                bar.update()
        accuracy = accuracy_of(params)
        stats = step.runtime.stats()
        print_row(f"{epoch + 1}/{epochs}", float(np.mean(losses)), accuracy, before, stats)
        before = stats
    seconds = time.perf_counter() - started
    return Result(jax.tree.map(np.array, params), accuracy, stats.peak_bytes, seconds)


def say(text: str, end: str = "\n") -> None:
    """Prints at once, also into a pipe."""
    print(text, end=end, flush=True)


def print_header(stats: coop_jax.Stats, budget: Budget) -> None:
    """The budget, and the head of the table."""
    if stats.budget_bytes is None:
        say("no budget")
    else:
        size = f"{stats.budget_bytes / MIB:.1f} MiB"
        if isinstance(budget, float):
            needed = f"{stats.budget_bytes / budget / MIB:.1f} MiB"
            size += f" ({budget:g} of the {needed} that a step needs without one)"
        say(f"budget: {size}")
        say("        for parameters, Adam's state, images, activations, gradients and workspace")
    say("")
    for line in (0, 1):
        say("  ".join(name[line].rjust(width) for *name, width in COLUMNS))


def print_row(
    epoch: str,
    loss: float,
    accuracy: float,
    before: coop_jax.Stats | None,
    after: coop_jax.Stats,
) -> None:
    """One row of the table: what happened between two readings of the statistics."""

    def since(name: str) -> float:
        return float(getattr(after, name) - (getattr(before, name) if before else 0))

    budget = "none" if after.budget_bytes is None else f"{after.budget_bytes / MIB:.1f}"
    recompute, compute = since("recompute_seconds"), since("compute_seconds")
    cells = [
        epoch,
        f"{loss:.4f}",
        f"{accuracy:.1%}",
        f"{after.peak_bytes / MIB:.1f} / {budget}",
        f"{since('evictions'):,.0f}",
        f"{recompute:.2f}",
        f"{recompute / compute if compute else 0:.1%}",
    ]
    say("  ".join(cell.rjust(c[-1]) for cell, c in zip(cells, COLUMNS, strict=True)))


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


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees of NumPy arrays are equal bit by bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(
        x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs
    )


def main(argv: list[str]) -> None:
    """Trains, verifies, and ends with exit code 1 where the promise is not kept."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # not which accelerators JAX looks for and does not find
    budget = parse_budget(FLAGS.budget)
    try:
        step = budgeted(budget, FLAGS.policy, FLAGS.eager, FLAGS.fusion)
    except ValueError as error:
        sys.exit(f"--budget={FLAGS.budget}: {error}")
    digits = load_digits(FLAGS.seed)
    params, _ = jax.eval_shape(lambda: create_state(0))
    count = sum(x.size for x in jax.tree.leaves(params))
    say(
        f"digits: a Flax CNN of {count:,} parameters, Adam, {len(digits.train_labels)} images of"
        f" 16 x 16 to train on and {TEST_IMAGES} to test, batch {FLAGS.batch}"
    )
    settings = {"epochs": FLAGS.epochs, "batch": FLAGS.batch, "seed": FLAGS.seed}
    try:
        result = train(step, budget, digits, **settings)
    except coop_jax.BudgetExceededError as error:
        say("")
        sys.exit(f"--budget={FLAGS.budget}: {error}")
    say("")
    problems = []
    if FLAGS.verify:
        say("--verify: the same training without a budget")
        free = budgeted(None, FLAGS.policy, FLAGS.eager, FLAGS.fusion)
        reference = train(free, None, digits, **settings)
        say("")
        equal = same_bits(result.params, reference.params)
        say(
            f"peak memory    {result.peak_bytes / MIB:.1f} MiB, without a budget"
            f" {reference.peak_bytes / MIB:.1f} MiB"
            f" ({result.peak_bytes / reference.peak_bytes:.1%} of it)"
        )
        say(f"training time  {result.seconds:.1f} s, without a budget {reference.seconds:.1f} s")
        say(f"parameters     {'bitwise equal' if equal else 'DIFFERENT'}")
        if not equal:
            problems.append("the parameters differ from those of the training without a budget")
    say(f"test accuracy  {result.accuracy:.1%}")
    if result.accuracy < WANTED_ACCURACY:
        problems.append(
            f"test accuracy {result.accuracy:.1%} is below {WANTED_ACCURACY:.0%}: train for longer"
            " (--epochs)"
        )
    if problems:
        sys.exit("failed: " + "; ".join(problems))


if __name__ == "__main__":
    app.run(main)
