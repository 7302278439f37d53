"""coop_jax beside PyTorch's memory budget: recomputation of one GPT's train step in as much memory.

Both sides take one forward and backward pass of `plain_jax.GPT` in float32, with the same numbers
and without an optimizer. PyTorch's budget is a share of the activations that its partitioner saves
by itself (`torch._functorch.config.activation_memory_budget`, solver "dp", runtime estimator
"flops"). `torch_gpt`, in a process of its own, says what a step under it holds and computes again.
The memory of each of its rows is then a budget here.

Memory is the most bytes alive at once: parameters, gradients, the batch, what the passes keep
between them, what operations make; not what an operation allocates within itself. Targets are int64
in PyTorch, 4 KiB more. Of `coop_jax.jit` it is what XLA needs for the compiled program.

Recomputation is counted, not timed: GFLOPs of matrix products that run again; "work", the time of
all that runs again, divided by that of all else, as `ir.cost_model` estimates it with the CPU's
rates and without launches, on both sides alike; and how many operations run again.

Columns: PyTorch; then, each first in as many bytes as PyTorch's row, then in the same share of what
it needs itself if nothing is computed again (PyTorch: with the partitioner that saves all):
  single  an operation for each primitive, as PyTorch runs them here
  fused   operations as `coop_jax.run` fuses them
  jit     `coop_jax.jit`: one XLA program (--no_jit leaves it out)
With --inductor PyTorch's memory is that of the code that Inductor, its default backend, generates;
what is computed again is the same. A C++ compiler is needed, and minutes.

A cell with more GFLOPs than PyTorch's row has a "!", one with more work a "w".

Where torch cannot be imported it says so in one line and ends. The package does not depend on it:
`pip install torch`, here or in an environment whose Python --torch_python names.

Run: python -m tests.benchmarks.torch_budget [--torch_python=PYTHON] [--budgets=1,0.5] [--no_jit]
    [--inductor]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import coop_jax  # before there is an array: it sets how the CPU backend starts
from coop_jax._src.ir import cost_model
from tests.benchmarks import plain_jax

_ROOT = pathlib.Path(__file__).parents[2]
_MIB = 2**20
_BUDGETS = "1,0.9,0.8,0.7,0.6,0.5,0.4,0.3,0.2,0.1"
_RATES = dataclasses.replace(cost_model.CPU, launch_seconds=0.0)

Step = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Recomputation:
    """What a step computes again.

    Attributes:
      matmul_flops: of matrix products.
      operations: how many.
      work: estimated time of all that runs again, divided by that of all other operations.
    """

    matmul_flops: float
    operations: int
    work: float

    def __str__(self) -> str:
        return f"{self.matmul_flops / 1e9:.3f} {self.work:6.1%} {self.operations:4}"


@dataclasses.dataclass(frozen=True)
class TorchRow:
    """A step in PyTorch, as `torch_gpt.Row` has it."""

    budget: float | None
    loss: float
    gradient_norm: float
    argument_bytes: int
    held_bytes: int
    peak_bytes: int
    matmul_flops: int
    operations: list[tuple[bool, int, int]]
    inductor_bytes: tuple[int, int] | None = None

    def as_compiled(self) -> TorchRow:
        """With the memory of Inductor's code where that is known."""
        if self.inductor_bytes is None:
            return self
        held_bytes, peak_bytes = self.inductor_bytes
        return dataclasses.replace(self, held_bytes=held_bytes, peak_bytes=peak_bytes)

    @property
    def recomputation(self) -> Recomputation:
        """What it computes again."""
        again = [(flops, moved) for is_again, flops, moved in self.operations if is_again]
        first = [(flops, moved) for is_again, flops, moved in self.operations if not is_again]
        seconds = [
            math.fsum(cost_model.cost_seconds(_RATES, *work) for work in part)
            for part in (again, first)
        ]
        return Recomputation(sum(f for f, _ in again), len(again), seconds[0] / seconds[1])


def gpt_step() -> tuple[Step, Any, np.ndarray]:
    """Loss and gradients of `plain_jax.gpt`: the function, parameters, tokens."""
    model, program = plain_jax.GPT(), plain_jax.gpt()

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return jax.value_and_grad(loss), program.state[0], program.batches[0][0]


def matmul_flops(jaxpr: Any) -> float:
    """FLOPs of the matrix products of a jaxpr, those of inner ones included."""
    total = 0.0
    for equation in jaxpr.eqns:
        avals = [x.aval for x in equation.invars], [x.aval for x in equation.outvars]
        if equation.primitive.name == "dot_general":
            total += cost_model.flops(equation.primitive, equation.params, *avals)
        inner = sum(map(matmul_flops, jax.extend.core.jaxprs_in_params(equation.params)))
        total += inner * equation.params.get("length", 1) if inner else 0.0
    return total


def simulated(program: coop_jax.TracedProgram, budget: int) -> Recomputation | None:
    """Of a program's plan; None if none fits."""
    found = coop_jax.simulate(program, budget=budget)
    if not found.feasible:
        return None
    operations, seconds = program.program.operations, program.cost_seconds(_RATES)
    runs = [action for action in found.actions if isinstance(action, coop_jax.Run)]
    again = [run.operation for run in runs if run.recompute]
    first = [run.operation for run in runs if not run.recompute]
    flops = 0.0
    for number in again:
        kernel = operations[number].kernel
        specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in kernel.in_avals]
        flops += matmul_flops(jax.make_jaxpr(kernel)(*specs).jaxpr)
    work = math.fsum(seconds[n] for n in again) / math.fsum(seconds[n] for n in first)
    return Recomputation(flops, len(again), work)


def compiled(step: Step, args: tuple[Any, ...], budget: int) -> Recomputation | None:
    """Of the plan of `coop_jax.jit`; None if none fits."""
    planned = coop_jax.jit(step, budget=budget)
    try:
        report = planned.plan(*args)
    except coop_jax.BudgetExceededError:
        return None
    plain = matmul_flops(jax.make_jaxpr(step)(*args).jaxpr)
    flops = matmul_flops(planned.trace(*args).jaxpr.jaxpr) - plain
    share = report.recompute_share
    return Recomputation(flops, report.recomputations, share / (1 - share))


class Contenders:
    """coop_jax's three ways to take a step in so many bytes."""

    def __init__(self, step: Step, args: tuple[Any, ...], *, jit: bool):
        self._step, self._args = step, args
        self._programs = {
            name: coop_jax.trace_program(step, *args, fusion=fusion)
            for name, fusion in (("single", False), ("fused", True))
        }
        self.unbudgeted_bytes = {
            name: coop_jax.simulate(program).unbudgeted_peak_bytes
            for name, program in self._programs.items()
        }
        if jit:
            self.unbudgeted_bytes["jit"] = coop_jax.jit(step).plan(*args).needed_bytes

    def recomputation(self, name: str, budget: int) -> Recomputation | None:
        """Of one of them; None if it does not fit."""
        if name == "jit":
            return compiled(self._step, self._args, budget)
        return simulated(self._programs[name], budget)


def write_gpt(folder: pathlib.Path, params: Any, tokens: np.ndarray, heads: int) -> None:
    """Writes what `torch_gpt.read_gpt` reads."""
    leaves, _ = jax.tree.flatten_with_path(params["params"])
    names = ["/".join(key.key for key in path) for path, _ in leaves]
    said = {
        "heads": heads,
        "shapes": {name: leaf.shape for name, (_, leaf) in zip(names, leaves, strict=True)},
        "tokens": tokens.tolist(),
    }
    (folder / "gpt.json").write_text(json.dumps(said))
    numbers = b"".join(np.asarray(leaf, np.float32).tobytes() for _, leaf in leaves)
    (folder / "parameters").write_bytes(numbers)


def torch_version(python: str) -> str | None:
    """Of torch in an environment; None if it cannot be imported there."""
    program = "import torch; print(torch.__version__)"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def torch_rows(python: str, folder: pathlib.Path, budgets: Sequence[str]) -> Iterator[TorchRow]:
    """Rows of `torch_gpt`, that without recomputation first.

    Raises:
      RuntimeError: its process failed.
    """
    command = [python, "-m", "tests.benchmarks.torch_gpt", str(folder), *budgets]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield TorchRow(**json.loads(line)).as_compiled()
    if process.returncode:
        raise RuntimeError(f"PyTorch's side ended with {process.returncode}")


@dataclasses.dataclass
class Verdict:
    """Of how many rows a contender computes less again than PyTorch, as much, and more."""

    less: int = 0
    equal: int = 0
    more: int = 0

    def add(self, ours: float, theirs: float) -> None:
        """One row."""
        if math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-6):
            self.equal += 1
        elif ours < theirs:
            self.less += 1
        else:
            self.more += 1

    def __str__(self) -> str:
        return f"less in {self.less} rows, as much in {self.equal}, more in {self.more}"


def cell(ours: Recomputation | None, theirs: Recomputation) -> str:
    """With marks where it is not better."""
    if ours is None:
        return "does not fit"
    more = "!" if ours.matmul_flops > theirs.matmul_flops * (1 + 1e-6) else " "
    return f"{ours}{more}{'w' if ours.work > theirs.work else ' '}"


def rises(values: Sequence[tuple[float, int]]) -> list[float]:
    """The budgets that need more than a larger one; (budget, bytes), the largest budget first."""
    return [
        budget
        for number, (budget, nbytes) in enumerate(values)
        if any(nbytes > other for _, other in values[:number])
    ]


def print_rows(contenders: Contenders, rows: Sequence[TorchRow]) -> None:
    """The table, and what it says."""
    none = rows[0]
    ways = [(n, w) for w in ("bytes", "share") for n in contenders.unbudgeted_bytes]
    verdicts = {way: (Verdict(), Verdict()) for way in ways}
    print("PyTorch, then coop_jax; recomputed: GFLOPs, work, operations")
    titles = "".join(f"{f'{name}, same {way}':>24}" for name, way in ways)
    print(f"{'budget':>6}{'MiB':>7}{'share':>7}{'held':>7}{'':4}{'PyTorch':>17}{titles}")
    for row in rows[1:]:
        share, theirs = row.peak_bytes / none.peak_bytes, row.recomputation
        text = f"{row.budget:6}{row.peak_bytes / _MIB:7.1f}{share:7.2f}{row.held_bytes / _MIB:7.1f}"
        text += f"{theirs!s:>21}"
        for name, way in ways:
            own = contenders.unbudgeted_bytes[name]
            budget = row.peak_bytes if way == "bytes" else int(share * own)
            ours = contenders.recomputation(name, budget)
            text += f"{cell(ours, theirs):>24}"
            if ours is not None:
                verdicts[name, way][0].add(ours.matmul_flops, theirs.matmul_flops)
                verdicts[name, way][1].add(ours.work, theirs.work)
        print(text, flush=True)
    for (name, way), (flops, work) in verdicts.items():
        print(f"{name}, same {way}: GFLOPs {flops}; work {work}")
    for title, sizes in (
        ("holds between the passes", [(row.budget or 0, row.held_bytes) for row in rows[1:]]),
        ("needs at its peak", [(row.budget or 0, row.peak_bytes) for row in rows[1:]]),
    ):
        found = ", ".join(map(str, rises(sizes))) or "none"
        print(f"budgets with which PyTorch {title} more than with a larger one: {found}")


def print_agreement(none: TorchRow, contenders: Contenders, step: Step, args: Any) -> None:
    """Whether both sides compute the same, and what they need without recomputation."""
    loss, gradients = jax.jit(step)(*args)
    norm = math.sqrt(sum(float(jnp.vdot(g, g)) for g in jax.tree.leaves(gradients)))
    flops = matmul_flops(jax.make_jaxpr(step)(*args).jaxpr)
    print(
        f"loss {float(loss):.6f}, PyTorch {none.loss:.6f}; norm of gradients {norm:.6f}, PyTorch"
        f" {none.gradient_norm:.6f}; GFLOPs of matrix products {flops / 1e9:.3f}, PyTorch"
        f" {none.matmul_flops / 1e9:.3f}"
    )
    needs = ", ".join(f"{n} {b / _MIB:.1f}" for n, b in contenders.unbudgeted_bytes.items())
    print(
        f"MiB without recomputation: PyTorch {none.peak_bytes / _MIB:.1f}, of these arguments"
        f" {none.argument_bytes / _MIB:.1f} and held between the passes"
        f" {none.held_bytes / _MIB:.1f}; coop_jax {needs}"
    )


def main(argv: Sequence[str]) -> None:
    """Prints the table, or why there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch_python", default=sys.executable, help="A Python that has torch.")
    parser.add_argument("--budgets", default=_BUDGETS, help="PyTorch's, in falling order.")
    parser.add_argument("--inductor", action="store_true", help="Memory of what it generates.")
    parser.add_argument("--no_jit", action="store_true", help="Leaves out coop_jax.jit.")
    options = parser.parse_args(argv)
    version = torch_version(options.torch_python)
    if version is None:
        print(f"torch cannot be imported by {options.torch_python}: nothing to compare with")
        return
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"coop_jax {coop_jax.__version__}, JAX {jax.__version__}, PyTorch {version}")
    step, params, tokens = gpt_step()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_gpt(folder, params, tokens, plain_jax.GPT.heads)
        wanted = options.budgets.split(",") + ["inductor"] * options.inductor
        rows = list(torch_rows(options.torch_python, folder, wanted))
    contenders = Contenders(step, (params, tokens), jit=not options.no_jit)
    print_agreement(rows[0], contenders, step, (params, tokens))
    print_rows(contenders, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
