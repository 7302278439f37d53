"""Tuned constants of `coop_jax.jit`; see `planning.constants` for how to read them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # --- Programs of a function (`planned_function`) ---

    # Signatures whose programs are kept: memory of the process against compiling again. Not shown.
    kept_programs: int = 64

    # How long plans are searched where the user names no policy: half a second instead of one or
    # two, with which plans of seven networks at 70 to 40% of their memory recompute as much as with
    # 1,000,000, to 0.1% of the time. `python -m tests.benchmarks.first_step --kinds=jit,coop_jit`
    search_effort: int = 300_000

    # --- Whether `jax.jit`'s program fits (`programs`) ---

    # What is expected is 0.5 to 1.13 of what XLA needs (18 networks, 6 of them of other libraries).
    # From this multiple of the budget on, that program is not compiled to see that it does not fit:
    # time of the first call against a plan where none is needed.
    # `python -m tests.benchmarks.compiled_plans`
    certain_excess: float = 1.3

    # --- Until XLA's program fits (`fitting`) ---

    # The first plan is for this share of the budget, since XLA needs 2 to 8% more than a plan has
    # alive: compilations against recomputation. `python -m tests.benchmarks.compiled_plans`
    first_fraction: float = 0.93

    # Each further plan is for this share of what would fit by the last one. Likewise.
    correction: float = 0.985

    # Plans compiled for a budget before the smallest ones are tried. Not shown.
    max_attempts: int = 4

    # Where none fits, plans of so many times the least capacity are: XLA may need less for one that
    # has a little more alive. A scanned GPT needs 2% less with the second than with the first.
    # `python -m tests.benchmarks.compiled_plans --networks=scanned_gpt`
    least_capacity_factors: tuple[float, ...] = (1.0, 1.03, 1.06, 1.15)

    # --- What scans stack (`program_family`) ---

    # Candidates between all that a scan stacks without a plan and nothing; of those that fit, how
    # many that stack most are compared: planning time against recomputation. Not shown.
    stacking_candidates: int = 60
    compared_candidates: int = 3

    # The least capacity is found to this part of the largest. Not shown.
    least_capacity_fraction: float = 1 / 400

    # --- Budgets before a call (`budget_search`) ---

    # How close a capacity is found to the least within an overhead, as a share of the largest:
    # about seven plans. A budget is then tried, and raised so often by at least as much, until a
    # call with it is within the overhead. `pytest tests/behaviour/test_jit_budgets.py`
    overhead_resolution: float = 0.01
    max_tried_budgets: int = 4


TUNED = Constants()
