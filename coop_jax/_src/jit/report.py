"""What `coop_jax.jit` found: the plan of a call, by source line.

Thread rule: values. Cost: linear in the plan.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from coop_jax._src.jit.fitting import Attempt
from coop_jax._src.jit.program_planner import PlannedProgram
from coop_jax._src.util.options import format_bytes, format_seconds

_SHOWN_LINES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedLine:
    """What a plan does with the values of one source line.

    Attributes:
      source: "file:line (function)" of the user's program; "" where none is known.
      kept_bytes: of values that are computed once.
      recomputed_bytes: of recomputed values, each time.
      recompute_seconds: the estimated time of that.
    """

    source: str
    kept_bytes: int
    recomputed_bytes: int
    recompute_seconds: float


# In place of what `jax.jit` needs, while nobody has asked for that.
NOT_ASKED = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PlanReport:
    """The plan of a call of `coop_jax.jit`.

    Attributes:
      budget_bytes: of one device; None without a budget.
      jit_bytes: what `jax.jit` needs on one device: arguments, results that are not written over
        them, temporaries, as XLA says. `plan` always has it.
      needed_bytes: the same for the program that runs.
      predicted_bytes: what the plan expected; None where the program is that of `jax.jit`.
      attempts: the plans that were compiled, in order; none where the program is that of `jax.jit`.
      recomputations: how many operations are run again; what bodies of loops compute again is part
        of `recompute_share` alone.
      recompute_share: the estimated part of the time that they take.
      lines: by source line, those with the most recomputed bytes first. Kept bytes are of all that
        is computed once, whenever it lives.
      is_stored: whether the plan was kept by an earlier process; the attempts are those of then.
    """

    budget_bytes: int | None
    jit_bytes: int
    needed_bytes: int
    predicted_bytes: int | None = None
    attempts: tuple[Attempt, ...] = ()
    recomputations: int = 0
    recompute_share: float = 0.0
    lines: tuple[PlannedLine, ...] = ()
    is_stored: bool = False

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> PlanReport:
        """A report from what JSON makes of `dataclasses.asdict`.

        Raises:
          TypeError, KeyError: it is none.
        """
        attempts = tuple(Attempt(**attempt) for attempt in said["attempts"])
        lines = tuple(PlannedLine(**line) for line in said["lines"])
        return cls(**{**said, "attempts": attempts, "lines": lines})

    def __str__(self) -> str:
        budget = "none" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        text = [
            f"budget {budget}, needed {format_bytes(self.needed_bytes)}"
            f" ({self.needed_bytes / max(1, self.jit_bytes):.0%} of {format_bytes(self.jit_bytes)}"
            " under jax.jit)"
        ]
        if self.predicted_bytes is None:
            return f"{text[0]}: the program of jax.jit"
        text.append(
            f"{self.recomputations} operations recomputed, {self.recompute_share:.1%} of the time"
            f" (estimated); "
            + ("a stored plan" if self.is_stored else f"compiled {len(self.attempts)} times")
        )
        text += [
            f"  {format_bytes(line.recomputed_bytes):>12} recomputed"
            f" ({format_seconds(line.recompute_seconds)}), {format_bytes(line.kept_bytes):>12} kept"
            f"  {line.source or 'unknown source'}"
            for line in self.lines[:_SHOWN_LINES]
        ]
        if len(self.lines) > _SHOWN_LINES:
            text.append(f"  and {len(self.lines) - _SHOWN_LINES} more lines")
        return "\n".join(text)


def lines_of(planned: PlannedProgram) -> tuple[PlannedLine, ...]:
    """What a plan keeps and recomputes, by source line."""
    program = planned.program
    runs = collections.Counter(planned.remade.origins)
    kept: collections.Counter[str] = collections.Counter()
    again: collections.Counter[str] = collections.Counter()
    seconds: dict[str, float] = collections.defaultdict(float)
    for number, op in enumerate(program.operations):
        storages = {program.values[v].storage for v in op.results}
        nbytes = sum(program.storages[s].nbytes for s in storages)
        repeated = runs[number] - 1
        if repeated > 0:
            again[op.source] += nbytes * repeated
            seconds[op.source] += op.kernel.cost_seconds * repeated
        else:
            kept[op.source] += nbytes
    found = [PlannedLine(s, kept[s], again[s], seconds.get(s, 0.0)) for s in {*kept, *again}]
    return tuple(sorted(found, key=lambda x: (-x.recomputed_bytes, -x.kept_bytes, x.source)))
