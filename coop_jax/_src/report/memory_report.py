"""`MemoryReport`: where the memory of a program goes.

Thread rule: values. Cost: linear in the buffers at the peak.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from typing import Any

from coop_jax._src.report import summary, text
from coop_jax._src.report.buffers import KINDS, Buffer
from coop_jax._src.report.elsewhere import Held
from coop_jax._src.report.hints import Hint
from coop_jax._src.report.xla_buffers import Peak
from coop_jax._src.util.options import format_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class BudgetCost:
    """What a budget costs, as planned without compiling.

    Attributes:
      budget_bytes: the budget, on each device.
      feasible: whether a plan fits.
      overhead: estimated seconds of recomputation / of computation.
    """

    budget_bytes: int
    feasible: bool
    overhead: float


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryReport:
    """Where the memory of a program goes. Sizes in bytes, on one device.

    Attributes:
      name: the function.
      platform: "cpu", "gpu", ...
      devices: how many devices it runs on.
      peak_bytes: what it needs: arguments, results that are not written over them, temporaries.
      argument_bytes, output_bytes, alias_bytes, temporary_bytes: what XLA says of it. The peak is
        argument_bytes + output_bytes - alias_bytes + temporary_bytes.
      library_bytes: what XLA's CPU libraries take beside it, such as patches of convolutions; a
        bound for each operation by itself.
      peak: where in the program it needs most; None where XLA does not say.
      buffers: what is in memory there, largest first; the sizes sum up to `peak_bytes`.
      moments: how many instructions the program runs.
      lifetimes: every buffer of the program and when it lives, for timelines.
      hints: what stands out, most bytes first.
      elsewhere: what the process holds beside the program's arguments.
      budgets: what budgets cost under `coop_jax.jit`; empty if that was not asked for.
      recommended_budget: the smallest of them with an overhead of at most 10%; None if there is
        none.
      refusal: if the budget of the function does not suffice, what is wrong with it; the report is
        then of the program without a budget. Empty otherwise.
    """

    name: str
    platform: str
    devices: int
    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    library_bytes: int
    peak: Peak | None
    buffers: tuple[Buffer, ...] = dataclasses.field(repr=False)
    moments: int
    lifetimes: tuple[Buffer, ...] = dataclasses.field(repr=False)
    hints: tuple[Hint, ...]
    elsewhere: tuple[Held, ...]
    budgets: tuple[BudgetCost, ...] = ()
    recommended_budget: int | None = None
    refusal: str = ""

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind; they sum up to `peak_bytes`."""
        sums = self._sums("kind")
        return {kind: sums[kind] for kind in KINDS if kind in sums}

    @property
    def by_source(self) -> dict[str, int]:
        """Bytes of temporary memory at the peak by source line, most first."""
        return self._sums("source")

    @property
    def by_module(self) -> dict[str, int]:
        """Bytes of temporary memory at the peak by module path, inner modules included."""
        sums: collections.Counter[str] = collections.Counter()
        for buffer in self.buffers:
            parts = buffer.module.split("/") if buffer.module else []
            for end in range(1, len(parts) + 1):
                sums["/".join(parts[:end])] += buffer.nbytes
        return dict(sums.most_common())

    @property
    def elsewhere_bytes(self) -> int:
        """What the process holds beside the program's arguments."""
        return sum(held.nbytes for held in self.elsewhere)

    def _sums(self, field: str) -> dict[str, int]:
        sums: collections.Counter[str] = collections.Counter()
        for buffer in self.buffers:
            if getattr(buffer, field):
                sums[getattr(buffer, field)] += buffer.nbytes
        return dict(sums.most_common())

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()

    def _page(self) -> text.Page:
        each = f" on each of {self.devices} devices" if self.devices > 1 else ""
        kinds = sorted(self.by_kind.items(), key=lambda k: -k[1])
        parts = [f"{kind} {format_bytes(n)}" for kind, n in kinds]
        return text.Page(
            headline=f"{self.name} needs {format_bytes(self.peak_bytes)}{each} ({self.platform})",
            parts=parts,
            total_bytes=self.peak_bytes,
            rows=summary.rows_of(self.buffers),
            hints=[(hint.nbytes, hint.text) for hint in self.hints],
            peak=self._peak_line(),
            modules=list(self.by_module.items()),
            footer=self._footer(),
        )

    def _peak_line(self) -> str:
        if self.peak is None:
            return ""
        parts = [
            f"peak after {self.peak.position:.0%} of the program",
            f"{self.peak.phase} pass" if self.peak.phase != "other" else "",
            f"{self.peak.operation} {summary.short_source(self.peak.source)}".strip(),
            self.peak.module,
        ]
        return ", ".join(p for p in parts if p)

    def _footer(self) -> list[str]:
        lines = [f"{self.name} {self.refusal}"] if self.refusal else []
        if self.library_bytes:
            lines.append(
                f"beside it XLA's CPU libraries take up to {format_bytes(self.library_bytes)}"
            )
        for cost in self.budgets:
            share = f"{cost.budget_bytes / max(1, self.peak_bytes):4.0%}"
            said = f"about {cost.overhead:.1%} more time" if cost.feasible else "no plan"
            lines.append(f"{share}  {format_bytes(cost.budget_bytes):>10}  coop_jax.jit: {said}")
        if self.recommended_budget is not None:
            nbytes = format_bytes(self.recommended_budget)
            lines.append(f"recommended: budget={self.recommended_budget} ({nbytes})")
        return lines

    def to_text(self, *, width: int = text.WIDTH) -> str:
        """The report for a terminal of so many columns, as `print` shows it in 100."""
        return text.text_of(self._page(), width)

    def to_html(self) -> str:
        """The report as a notebook shows it: an element for a page."""
        return text.html_of(self._page())

    def to_json(self, *, lifetimes: bool = False) -> str:
        """The report as JSON, an object with the attributes as keys.

        Args:
          lifetimes: whether every buffer of the program is part of it.
        """
        found: dict[str, Any] = dataclasses.asdict(self)
        found |= {
            "by_kind": self.by_kind,
            "by_source": self.by_source,
            "by_module": self.by_module,
            "elsewhere_bytes": self.elsewhere_bytes,
        }
        if not lifetimes:
            del found["lifetimes"]
        return json.dumps(found)
