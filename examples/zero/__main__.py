"""Trains a small GPT with ZeRO over several processes of this machine, under a memory budget.

python -m examples.zero
python -m examples.zero --stage=2 --budget=0.4 --verify
python -m examples.zero --resume --processes=2

Starts the processes; `train` is what each of them does.
"""

from __future__ import annotations

import sys

from absl import app, flags

from examples.zero import processes

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "stage", "3", ["2", "3"], "of ZeRO: what is divided among devices; 3 divides parameters, too"
)
flags.DEFINE_string(
    "budget",
    "0.5",
    "of a device: a fraction such as 0.5 of what the step needs without one, a number of bytes, a"
    " size such as 48MiB, or 'none'",
)
flags.DEFINE_integer("processes", 4, "each with one device; they divide the batch", lower_bound=1)
flags.DEFINE_integer("layers", 4, "of the GPT", lower_bound=1)
flags.DEFINE_integer("steps", 30, "train steps of this run", lower_bound=1)
flags.DEFINE_integer("batch", 32, "sequences of a step, of all processes", lower_bound=1)
flags.DEFINE_integer("seed", 0, "of the parameters and the batches", lower_bound=0)
flags.DEFINE_string("checkpoint", "zero-checkpoint", "the folder of the checkpoint")
flags.DEFINE_bool("resume", False, "continue from the checkpoint, on any number of processes")
flags.DEFINE_bool("verify", False, "train again without a budget and compare the losses")
flags.DEFINE_integer("process", None, "set by the command for each process that it starts")
flags.DEFINE_string("coordinator", None, "likewise: where process 0 listens")


def main(argv: list[str]) -> None:
    """Starts the processes, or is one of them."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    if FLAGS.batch % FLAGS.processes:
        sys.exit(
            f"--processes={FLAGS.processes} does not divide --batch={FLAGS.batch}: each process"
            " takes the same number of sequences"
        )
    if FLAGS.process is not None:
        processes.exit_with_parent()
        from examples.zero import train  # the command itself needs no JAX

        train.run(
            train.Settings(
                stage=int(FLAGS.stage),
                budget=parse_budget(FLAGS.budget),
                layers=FLAGS.layers,
                steps=FLAGS.steps,
                batch=FLAGS.batch,
                seed=FLAGS.seed,
                checkpoint=FLAGS.checkpoint,
                resume=FLAGS.resume,
                verify=FLAGS.verify,
            ),
            train.Process(FLAGS.process, FLAGS.processes, FLAGS.coordinator),
        )
        return
    try:
        processes.run_processes("examples.zero", sys.argv[1:], FLAGS.processes)
    except processes.ProcessFailedError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")


def parse_budget(text: str) -> int | float | str | None:
    """The flag as `coop_jax.jit` takes it: '0.5' is a fraction, '4096' bytes, '48MiB' a size."""
    if text.lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


if __name__ == "__main__":
    app.run(main)
