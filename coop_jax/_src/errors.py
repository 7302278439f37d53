"""What coop_jax raises, and how a failed plan becomes a message.

`BudgetExceededError` carries every number a user needs to decide what to change; the text is made
from the same numbers, so that a program and a person read the same thing.
"""

from __future__ import annotations

import dataclasses

from coop_jax._src.options import format_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class BudgetReport:
    """The state of the pool at the request that could not be met. All sizes in bytes.

    Attributes:
      requested_bytes: what the operation asked for, in one contiguous piece.
      budget_bytes: the cap on everything.
      in_use_bytes: held at that moment, workspace and arrays outside the pool included.
      pinned_bytes: the part of it that may not be evicted.
      largest_free_block_bytes: the largest free block.
      largest_window_bytes: the largest run of free and evictable neighbours.
      operation: the operation that asked, or what else did ("inputs", "workspace").
      source: its source line, or "" where there is none.
      smallest_budget_bytes: the least budget that would do, where it is known.
      thrashing: room could be found, but only by evicting again and again what was just brought
        back; the search for an end of that was given up.
      fused: whether operations were fused; single ones need less at once.
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


class BudgetExceededError(MemoryError):
    """The program does not fit its budget.

    Raised before the first operation runs where the program is known ahead.

    Attributes:
      report: the numbers, see `BudgetReport`.
    """

    def __init__(self, report: BudgetReport):
        super().__init__(_describe(report))
        self.report = report

    def __reduce__(self) -> tuple[type[BudgetExceededError], tuple[BudgetReport]]:
        return type(self), (self.report,)


def _describe(report: BudgetReport) -> str:
    where = f" ({report.source})" if report.source else ""
    rows = [
        ("requested", report.requested_bytes),
        ("budget", report.budget_bytes),
        ("in use", report.in_use_bytes),
        ("pinned (may not be evicted now)", report.pinned_bytes),
        ("largest free block", report.largest_free_block_bytes),
        ("largest window that could be evicted", report.largest_window_bytes),
    ]
    reason = (
        "cannot bring back what it reads without evicting it again"
        if report.thrashing
        else "needs memory that no eviction can free"
    )
    lines = [f"the budget does not suffice: {report.operation}{where} {reason}."]
    lines += [f"  {name}: {format_bytes(count)} ({count} bytes)" for name, count in rows]
    if report.smallest_budget_bytes is None:
        lines.append(
            "  smallest budget that would do: not known for a program that depends on its values"
        )
    else:
        smallest = report.smallest_budget_bytes
        lines.append(
            f"  smallest budget that would do: {format_bytes(smallest)} ({smallest} bytes)"
        )
    lines.append(
        "What to change: raise budget= to at least that, donate the arguments that the function"
        " replaces (donate_argnums=), make the batch smaller, or split the operation named above."
        + (" Without fusion (fusion=False) some programs fit into less." if report.fused else "")
    )
    return "\n".join(lines)
