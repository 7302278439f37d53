"""`coop_jax.jit` beside `jax.jit` and `jax.checkpoint`: memory, time and compiling of train steps.

Memory is what XLA says that the compiled step needs: arguments, results that are not written over
them, temporaries (`contenders.needed_bytes`). Budgets are shares of what `jax.jit` needs, and as
much as each of the step's variants with `jax.checkpoint` needs, compiled so that XLA keeps their
barriers (see `contenders.KEEP_BARRIERS`).

Times of a step are paired: each round takes steps of every contender in turn, and a ratio is the
median over the rounds. "first" is the time from the function to the result of its first call, which
plans and compiles, divided by that of `jax.jit`; "plans" counts those compiled in it. Beside them
`jax.jit`'s own program is compiled where it may fit. Nothing comes from JAX's persistent cache, and
each step was traced before, so that what JAX remembers of inner functions helps all alike.
"recompute" is the estimated part of the time that recomputations take. "loss" is the relative
difference of the first step's loss from that of `jax.jit`.

The summary counts what must not happen: cells over their budget, cells refused at the memory of
checkpoints, failures, other losses; and what is better few: refusals, and those that name more than
another cell needs; cells that need more memory than one of a larger budget; cells slower than the
checkpoints with whose memory they run. What is compiled meanwhile goes to standard error.

Networks: the paper's eight in their small size, and those of `more_networks`.

Run: python -m tests.benchmarks.compiled_plans [--networks=unet,vit] [--shares=1,0.5]
    [--repeats=9] [--warmups=2] [--in_a_row=2]
"""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

import contextlib
import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
from absl import app, flags

from tests.benchmarks import machine, more_networks
from tests.benchmarks.contenders import (
    KEEP_BARRIERS,
    MIB,
    Contender,
    Program,
    jitted,
    needed_bytes,
    program_of,
)

_KNOWN = (
    *("resnet50", "inception", "unet", "swin", "bert", "gpt3", "bilstm", "spos"),
    *more_networks.NETWORKS,
)
_THEIRS = "theirs:"
_NETWORKS = flags.DEFINE_list(
    "networks",
    list(_KNOWN),
    f"Which of {', '.join(_KNOWN)}; {_THEIRS}NAME is a network of another library, one of"
    " tests.benchmarks.passes (extra `benchmarks`).",
)
_SHARES = flags.DEFINE_list(
    "shares", ["1", "0.9", "0.7", "0.5", "0.4", "0.3"], "Budgets, as shares of what jit needs."
)
_REPEATS = flags.DEFINE_integer("repeats", 9, "Timed rounds.", lower_bound=1)
_WARMUPS = flags.DEFINE_integer("warmups", 2, "Rounds before.", lower_bound=0)
_IN_A_ROW = flags.DEFINE_integer("in_a_row", 2, "Steps in a round.", lower_bound=1)

_ROUNDING = 1e-5  # relative difference of two losses in float32

# What the summary counts; of the first four there must be none.
_OVER = "over budget"
_REFUSED_BESIDE = "refused in as much as checkpoints"
_FAILED = "failed"
_OTHER_LOSS = "other loss"
_REFUSED = "refused, all budgets"
_NAMES_MORE = "refused, and names more than another row needs"
_UNSTEADY = "more memory than with a larger budget"
_SLOWER = "slower than checkpoints in as much memory"
_WRONG = (
    *(_OVER, _REFUSED_BESIDE, _FAILED, _OTHER_LOSS),
    *(_REFUSED, _NAMES_MORE, _UNSTEADY, _SLOWER),
)

_COLUMNS = (
    f"{'':28}{'needs MiB':>10}{'/ jit':>7}{'of budget':>11}{'recompute':>11}{'plans':>10}"
    f"{'first / jit':>13}{'step / jit':>12}{'loss':>9}"
)


class Planned(Contender):
    """`coop_jax.jit` in so many bytes.

    Raises:
      What planning and compiling raises.
    """

    def __init__(self, name: str, program: Program, budget: int):
        step = coop_jax.jit(program.step, budget=budget, donate_argnums=0)
        super().__init__(name, step, program)
        self.step = step

    @functools.cached_property
    def report(self) -> coop_jax.PlanReport:
        """Of its plan; asked for later than the first step, which may compile less."""
        return self.step.plan(self._state, self._batch)

    def measure(self) -> None:
        """Asks XLA what it needs, whatever the report says."""
        self.need = needed_bytes(self.step.lower(self._state, self._batch).compile())


def _smallest_budget(error: coop_jax.BudgetExceededError) -> int:
    """What the refusal names."""
    assert isinstance(error.report, coop_jax.CompiledBudgetReport)
    return error.report.smallest_budget_bytes


@dataclasses.dataclass(slots=True, eq=False)
class Cell:
    """A row of the table.

    Attributes:
      name: of the contender.
      budget: bytes; None without one.
      rival: the cell of the checkpoints whose memory is the budget.
      contender: takes the steps; None if it failed.
      first_seconds: until the first step was done.
      failed: why there are no steps.
      would_do: bytes, the smallest budget that a refusal names; 0 if it was not refused.
    """

    name: str
    budget: int | None = None
    rival: Cell | None = None
    contender: Contender | None = None
    first_seconds: float = 0.0
    failed: str = ""
    would_do: int = 0

    def start(self, make: Callable[[], Contender]) -> Cell:
        """Makes the contender and takes the first step."""
        with self._failing():
            begin = time.perf_counter()
            contender = make()
            made = time.perf_counter() - begin
            contender.take(timed=False, steps=1)
            self.first_seconds = made + contender.first
            if isinstance(contender, Planned):
                contender.measure()
            self.contender = contender
        print(f"  {self.name}: {self.failed or self._compiled()}", file=sys.stderr, flush=True)
        return self

    def _compiled(self) -> str:
        """What it needs; of each plan that was compiled what it was for, predicted and needed."""
        text = f"{self.steps.need / MIB:.1f} MiB"
        for attempt in self.steps.report.attempts if isinstance(self.steps, Planned) else ():
            sizes = attempt.planned_bytes, attempt.predicted_bytes, attempt.needed_bytes
            text += "; " + ", ".join(f"{size / MIB:.1f}" for size in sizes)
        return text

    def take(self, timed: bool) -> None:
        """Takes the steps of a round."""
        if not self.failed:
            with self._failing():
                self.steps.take(timed, _IN_A_ROW.value)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except coop_jax.BudgetExceededError as error:
            self.would_do = _smallest_budget(error)
            self.failed = f"refused: {self.would_do / MIB:.1f} MiB would do"
        except Exception as error:  # a row of the table, and the others follow
            text = str(error).strip().partition("\n")[0]
            self.failed = f"failed: {type(error).__name__}: {text[:90]}"

    @property
    def steps(self) -> Contender:
        """The contender of a cell that did not fail."""
        assert self.contender is not None
        return self.contender

    def is_over(self) -> bool:
        """Whether it needs more than its budget."""
        return not self.failed and self.budget is not None and self.steps.need > self.budget

    def ratio_to_rival(self) -> float | None:
        """Of the times of a step; None without a rival, or if one of the two failed."""
        if self.rival is None or self.failed or self.rival.failed:
            return None
        return self.steps.ratio(self.rival.steps)

    def loss_difference(self, jit: Cell) -> float:
        """Of the first step, relative."""
        one, other = self.steps.loss, jit.steps.loss
        assert one is not None
        assert other is not None
        return abs(one - other) / max(abs(other), 1e-30)

    def row(self, jit: Cell) -> str:
        """A line of the table."""
        if self.failed:
            return f"{self.name:28}{self.failed}"
        need = self.steps.need
        text = f"{self.name:28}{need / MIB:10.1f}{need / jit.steps.need:7.2f}"
        if isinstance(self.steps, Planned):
            report = self.steps.report
            within = f"{need / (self.budget or need):.1%}" + (" OVER" if self.is_over() else "")
            text += f"{within:>11}{report.recompute_share:11.1%}{len(report.attempts):10}"
        else:
            text += f"{'':11}{'':11}{'':10}"
        ratio = self.steps.ratio(jit.steps)
        first = self.first_seconds / jit.first_seconds
        return f"{text}{first:13.2f}{ratio:12.2f}{self.loss_difference(jit):9.0e}"


def _cells(program: Program) -> list[Cell]:
    """All contenders of a network, after their first steps; `jax.jit` is the first."""
    jax.eval_shape(program.step, program.state, program.batch)

    def planned(name: str, budget: int, rival: Cell | None = None) -> Cell:
        return Cell(name, budget, rival).start(functools.partial(Planned, name, program, budget))

    jit = Cell("jax.jit").start(functools.partial(jitted, "jax.jit", program))
    found = [jit]
    if jit.failed:
        return found
    for share in sorted(map(float, _SHARES.value), reverse=True):
        found.append(planned(f"coop_jax at {share:.0%}", int(share * jit.steps.need)))
    for remat, variant in program.checkpointed.items():
        name = f"checkpoints {remat}"
        rival = Cell(name).start(functools.partial(jitted, name, variant, KEEP_BARRIERS))
        found.append(rival)
        if not rival.failed:
            found.append(planned(f"coop_jax beside {remat}", rival.steps.need, rival))
    return found


def _wrong_with(cell: Cell, cells: Sequence[Cell]) -> Iterator[str]:
    """What of `_WRONG` holds of a cell among those of its network."""
    if cell.failed:
        yield _REFUSED if cell.would_do else _FAILED
        if cell.would_do and cell.rival is not None:
            yield _REFUSED_BESIDE
        if any(cell.would_do > need for _, need, _ in _fitting(cells)):
            yield _NAMES_MORE
        return
    if cell.is_over():
        yield _OVER
    if cell.loss_difference(cells[0]) > _ROUNDING:
        yield _OTHER_LOSS
    if cell in _needing_more(cells):
        yield _UNSTEADY
    if (cell.ratio_to_rival() or 0) > 1:
        yield _SLOWER


def _fitting(cells: Sequence[Cell]) -> list[tuple[int, int, Cell]]:
    """Those with a budget that were not refused: the budget, what they need, the cell."""
    return [(c.budget, c.steps.need, c) for c in cells if c.budget is not None and not c.failed]


def _needing_more(cells: Sequence[Cell]) -> list[Cell]:
    """Those that need more than one of a larger budget."""
    planned = _fitting(cells)
    return [
        cell
        for budget, need, cell in planned
        if any(other > budget and less < need for other, less, _ in planned)
    ]


def _program_of(name: str) -> Program:
    if name.startswith(_THEIRS):
        from tests.benchmarks.passes import networks  # needs the libraries

        return networks.network(name.removeprefix(_THEIRS))
    return program_of(name)


def _print_network(name: str) -> list[Cell]:
    """Prints its table; returns its cells."""
    print(f"{name}:", file=sys.stderr, flush=True)
    cells = _cells(_program_of(name))
    for number in range(-_WARMUPS.value, _REPEATS.value):
        for cell in cells:
            cell.take(timed=number >= 0)
    jit = cells[0]
    if jit.failed:
        print(f"\n{name}: {jit.failed}", flush=True)
        return cells
    print(
        f"\n{name}: jax.jit needs {jit.steps.need / MIB:.1f} MiB, its first call takes"
        f" {jit.first_seconds:.1f} s, a step {statistics.median(jit.steps.seconds) * 1e3:.0f} ms"
    )
    print(_COLUMNS)
    for cell in cells:
        print(cell.row(jit), flush=True)
    return cells


def _print_summary(tables: Mapping[str, list[Cell]]) -> None:
    wrong: dict[str, list[str]] = {title: [] for title in _WRONG}
    beside: dict[str, list[float]] = {}
    budgets = 0
    for network, cells in tables.items():
        for cell in cells:
            budgets += cell.budget is not None
            for title in _wrong_with(cell, cells):
                wrong[title].append(f"{network} {cell.name}")
            ratio = cell.ratio_to_rival()
            if cell.rival is not None and ratio is not None:
                beside.setdefault(cell.rival.name, []).append(ratio)
    print(f"\n{len(tables)} networks, {budgets} budgets")
    for title, names in wrong.items():
        print(f"{title}: {len(names)}" + "".join(f"\n    {name}" for name in names))
    for name, ratios in beside.items():
        mean = statistics.geometric_mean(ratios)
        print(
            f"time of a step, divided by that of {name} in as much memory: geometric mean"
            f" {mean:.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        )


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    theirs = {name for name in _NETWORKS.value if name.startswith(_THEIRS)}
    if unknown := set(_NETWORKS.value) - set(_KNOWN) - theirs:
        raise app.UsageError(f"unknown networks: {sorted(unknown)}")
    jax.config.update("jax_enable_compilation_cache", False)
    print(machine.heading(_REPEATS.value, _WARMUPS.value))
    _print_summary({name: _print_network(name) for name in _NETWORKS.value})


if __name__ == "__main__":
    app.run(main)
