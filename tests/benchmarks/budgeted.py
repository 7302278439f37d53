"""A way to take the train steps of `contenders`: by `coop_jax.run`."""

from __future__ import annotations

import coop_jax  # first: it sets how the CPU backend starts  # isort: skip

from typing import Any

from tests.benchmarks.contenders import MIB, Contender, Figures, Program


class Budgeted(Contender):
    """`coop_jax.run` in so many bytes; None: without a budget."""

    def __init__(self, name: str, program: Program, budget: int | None, **options: Any):
        step = coop_jax.run(program.step, budget, donate_argnums=0, **options)
        super().__init__(name, step, program)
        self.step = step

    def _elapsed(self) -> float:
        try:
            return super()._elapsed()
        except coop_jax.BudgetExceededError as error:
            self.failed = f"does not fit into {error.report.budget_bytes / MIB:.1f} MiB"
            return 0.0

    def figures(self) -> Figures:
        """After the last step."""
        stats = self.step.runtime.stats()
        recompute = stats.recompute_seconds / (stats.compute_seconds or 1)
        return Figures(stats.peak_bytes, recompute, self._launches())

    def _launches(self) -> int:
        (signature,) = self.step._signatures.values()
        form = signature.tier.segmented or signature
        (*_, known) = form.plans.values()
        return len(known.plan.execution_order)
