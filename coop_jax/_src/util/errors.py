"""What coop_jax raises, and how a failed plan becomes a message.

`BudgetExceededError` carries every number a user needs to decide what to change; the text is made
from the same numbers, so that a program and a person read the same thing.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from coop_jax._src.util import held_memory
from coop_jax._src.util.held_memory import HeldStorage
from coop_jax._src.util.options import format_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class BudgetReport:
    """The state of the pool at the request that could not be met. All sizes in bytes.

    Attributes:
      requested_bytes: the size of the request, contiguous.
      budget_bytes: the cap on everything.
      in_use_bytes: held at that moment, workspace and arrays outside the pool included.
      pinned_bytes: the part of it that may not be evicted.
      largest_free_block_bytes: the largest free block.
      largest_window_bytes: the largest run of free and evictable neighbours.
      operation: the operation that made the request, or "inputs", "workspace".
      source: its source line, or "" where there is none.
      smallest_budget_bytes: a budget that works, if one is known: the smallest to 1%, or as near as
        some seconds of search come.
      lower_bound_bytes: no budget below it would do; what the operation that asked holds and asks
        for at once, with what is beside the pool.
      thrashing: room could be found only by evicting recomputed values again and again; planning
        was given up.
      fused: whether operations were fused; single ones need less at once.
      unbudgeted_peak_bytes: the call's peak without a budget, if known.
      held: what was in memory at that moment, largest first; together `in_use_bytes`, and those
        that `is_pinned` together `pinned_bytes`.
      requested: what the request consists of, largest first, where it is for what lies outside the
        pool; together `requested_bytes`.
      donatable: whether an argument that is not donated could be.
      at_limit: recomputation would exceed `Runtime(max_recompute=)`; implies `thrashing`.
      enough_bytes: a budget for all values of the call at that moment, evicted ones included, if
        larger than the budget; None for programs that are planned ahead of time.
    """

    requested_bytes: int
    budget_bytes: int
    in_use_bytes: int
    pinned_bytes: int
    largest_free_block_bytes: int
    largest_window_bytes: int
    operation: str
    source: str
    smallest_budget_bytes: int | None
    thrashing: bool = False
    fused: bool = False
    unbudgeted_peak_bytes: int | None = None
    held: tuple[HeldStorage, ...] = ()
    requested: tuple[HeldStorage, ...] = ()
    donatable: bool = False
    at_limit: bool = False
    enough_bytes: int | None = None
    lower_bound_bytes: int = 0

    @property
    def pinned(self) -> tuple[HeldStorage, ...]:
        """Of `held`, what could not be evicted, largest first; together `pinned_bytes`."""
        return tuple(storage for storage in self.held if storage.is_pinned)

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes in use at that moment by kind, most first; together `in_use_bytes`."""
        return held_memory.by_kind(self.held)

    def describe(self) -> str:
        """The report as text, with advice."""
        return _describe(self)

    def to_json(self) -> str:
        """The report as JSON, an object with the attributes as keys."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> BudgetReport:
        """The report of which `to_json` made this text.

        Raises:
          ValueError, TypeError, KeyError: it is another text.
        """
        return cls(**_from_json(text, "held", "requested"))


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledBudgetReport:
    """Why `coop_jax.jit` found no program within the budget. All sizes in bytes per device.

    Attributes:
      budget_bytes: the cap on arguments, results and temporary memory.
      smallest_budget_bytes: bytes of the smallest program that was compiled, a budget that works.
      jit_bytes: what `jax.jit` needs.
      attempts: how many plans were compiled.
      argument_bytes, result_bytes, temporary_bytes: what XLA needs for the smallest of the plans;
        results that are written over arguments are not counted.
      alive_bytes: the same as planned: arguments, results, and what else is alive at the fullest
        moment. XLA needs some percent more or less.
      alive: what that consists of, largest first; together `alive_bytes`.
    """

    budget_bytes: int
    smallest_budget_bytes: int
    jit_bytes: int
    attempts: int
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    alive_bytes: int
    alive: tuple[HeldStorage, ...] = ()

    @property
    def smallest_plan_bytes(self) -> int:
        """What XLA needs for the smallest of the plans."""
        return self.argument_bytes + self.result_bytes + self.temporary_bytes

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of `alive` by kind, most first; together `alive_bytes`."""
        return held_memory.by_kind(self.alive)

    def describe(self) -> str:
        """The report as text."""
        kept = {(s.shape, s.dtype) for s in self.alive if s.kind == "arguments"}
        donatable = any(s.kind == "results" and (s.shape, s.dtype) in kept for s in self.alive)
        donate = f"{_DONATE}, " if donatable else ""
        return "\n".join(
            [
                f"the budget does not suffice: of {self.attempts} compiled plans none fits.",
                _row("smallest budget that would do", self.smallest_budget_bytes),
                f"What to change: {donate}raise budget= to at least that, or make the batch"
                " smaller.",
                _row("budget", self.budget_bytes),
                _row("under jax.jit", self.jit_bytes),
                f"{_row('the smallest plan', self.smallest_plan_bytes)}: arguments"
                f" {format_bytes(self.argument_bytes)}, results {format_bytes(self.result_bytes)},"
                f" temporaries {format_bytes(self.temporary_bytes)}",
                f"{_row('as planned', self.alive_bytes)}: {held_memory.kinds_text(self.alive)}",
                *held_memory.rows(self.alive),
            ]
        )

    def to_json(self) -> str:
        """The report as JSON, an object with the attributes as keys."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> CompiledBudgetReport:
        """The report of which `to_json` made this text.

        Raises:
          ValueError, TypeError, KeyError: it is another text.
        """
        return cls(**_from_json(text, "alive"))


def _to_json(report: BudgetReport | CompiledBudgetReport) -> str:
    return json.dumps({**dataclasses.asdict(report), "by_kind": report.by_kind})


def _from_json(text: str, *storages: str) -> dict[str, Any]:
    """The fields of a report; those of these names are storages."""
    said: dict[str, Any] = json.loads(text)
    del said["by_kind"]
    for name in storages:
        said[name] = tuple(map(HeldStorage.from_json, said[name]))
    return said


class BudgetExceededError(MemoryError):
    """The program does not fit its budget.

    Raised before anything runs if the program is known ahead of time. `coop_jax.timeline` shows
    what lay where up to that moment.

    Attributes:
      report: the numbers, see `BudgetReport`; of `coop_jax.jit` a `CompiledBudgetReport`.
      evidence: what `coop_jax.timeline` reads; None where nothing was kept, as in a copy.
    """

    def __init__(self, report: BudgetReport | CompiledBudgetReport, evidence: object | None = None):
        super().__init__(report)
        self.report = report
        self.evidence = evidence
        self._is_located = False

    def locate(self, source: str) -> None:
        """Says which line of the user's program asked; the first to say it is the innermost."""
        if self._is_located or not source or not isinstance(self.report, BudgetReport):
            return
        self._is_located = True
        self.report = dataclasses.replace(self.report, source=source)
        self.args = (self.report,)

    def say_donatable(self, donatable: bool) -> None:
        """Says whether an argument could be donated, which the first to know did not."""
        if isinstance(self.report, BudgetReport):
            self.report = dataclasses.replace(self.report, donatable=donatable)
            self.args = (self.report,)

    def __str__(self) -> str:
        """The report as text, with advice."""
        return self.report.describe()

    def __reduce__(
        self,
    ) -> tuple[type[BudgetExceededError], tuple[BudgetReport | CompiledBudgetReport]]:
        return type(self), (self.report,)


def _describe(report: BudgetReport) -> str:
    where = f" ({report.source})" if report.source else ""
    reason = (
        "takes more recomputation than the runtime's max_recompute allows"
        if report.at_limit
        else "cannot bring back what it reads without evicting it again"
        if report.thrashing
        else f"needs {format_bytes(report.requested_bytes)} at once, more than the whole budget"
        if report.requested_bytes > report.budget_bytes
        else "needs memory that no eviction can free"
    )
    lines = [
        f"the budget does not suffice: {report.operation}{where} {reason}.",
        f"  smallest budget that would do: {_smallest(report)}",
        _changes(report),
        _row("requested", report.requested_bytes),
        *held_memory.rows(report.requested),
        _row("budget", report.budget_bytes),
    ]
    peak, enough = report.unbudgeted_peak_bytes, report.enough_bytes
    if enough is not None:
        lines.append(_row("enough to recompute nothing so far", enough))
    if peak:
        share = report.budget_bytes / peak
        lines.append(f"{_row('without a budget', peak)}, of which the budget is {share:.0%}")
    kinds = f": {held_memory.kinds_text(report.held)}" if report.held else ""
    pinned = _row("pinned (may not be evicted now)", report.pinned_bytes)
    in_use = _row("in use", report.in_use_bytes) + kinds
    lines += [
        _row("largest free block", report.largest_free_block_bytes),
        _row("largest window that could be evicted", report.largest_window_bytes),
    ]
    if report.thrashing:  # little is pinned: what could be evicted is in the way, too
        lines += [pinned, in_use, *held_memory.rows(report.held)]
    else:
        lines += [in_use, pinned, *held_memory.rows(report.pinned)]
    return "\n".join(lines)


_DONATE = (
    "donate the arguments that the function replaces (donate_argnums=, or donate= of"
    " equinox.filter_jit)"
)


def _row(name: str, count: int) -> str:
    return f"  {name}: {format_bytes(count)} ({count} bytes)"


def _changes(report: BudgetReport) -> str:
    """Advice, what costs least first."""
    changes = []
    if report.donatable:
        changes.append(_DONATE)
    if "other arrays" in report.by_kind:
        changes.append("drop results of earlier calls that nobody needs")
    raised = "raise budget="
    if _would_do(report):
        raised += " to at least that"
    elif report.enough_bytes is not None:
        raised += f" (to {format_bytes(report.enough_bytes)}: nothing so far is recomputed)"
    changes.append(raised)
    changes.append("make the batch smaller")
    if report.operation.startswith("operation"):
        split = "split the operation named above"
        changes.insert(0 if report.requested_bytes > report.budget_bytes else len(changes), split)
    return f"What to change: {', '.join(changes[:-1])}, or {changes[-1]}." + (
        " Without fusion (fusion=False) some programs fit into less." if report.fused else ""
    )


def _would_do(report: BudgetReport) -> bool:
    smallest = report.smallest_budget_bytes
    return smallest is not None and smallest > report.budget_bytes


def _smallest(report: BudgetReport) -> str:
    smallest = report.smallest_budget_bytes
    if smallest is None:
        known = report.unbudgeted_peak_bytes is not None
        least = f"at least {format_bytes(report.lower_bound_bytes)}"
        least += f" ({report.lower_bound_bytes} bytes)"
        if known:
            return f"{least}; none was found"
        return f"{least}; more is not known for a program that depends on its values"
    text = f"{format_bytes(smallest)} ({smallest} bytes)"
    if _would_do(report):
        return text
    return f"not known with what lies in the pool now; {text} if nothing else did"


class ProgramFileError(ValueError):
    """A program file or operation log that cannot be read; the message says where and why.

    Attributes:
      line: the line of the file, from 1.
    """

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.line = line
