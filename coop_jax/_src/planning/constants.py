"""The tuned constants of this package: what each trades, and the command that shows it matters.

Model: one frozen value, `TUNED`, read at each use, so that a test or a measurement replaces it as a
whole: `monkeypatch.setattr(constants, "TUNED", dataclasses.replace(constants.TUNED, ...))`.
Limits that follow from something else (the engine's range of worths, pages, what malloc does) are
not tuned: they stand where they are used.

A comment ends with the command that shows a difference if the constant is another one:
  `plans`: `python -m tests.benchmarks.planning_constants NAME=VALUE`, simulated overheads;
  `checkpoints`, `learning`, `workspaces`: `pytest tests/unit/planning/test_checkpoints.py` and so
  on, which fail.
Or with "Not shown": no command is known that does.
Other packages have a `constants` like this one.

Thread rule: a value.
"""

from __future__ import annotations

import dataclasses
import itertools
import math


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module. Shares are of 1, times in seconds; `most_...` is how many or how much."""

    # --- Which plans are tried (`portfolio`) ---

    # Plans that recompute more than this share of the step are compared with those of the other
    # policies: less plans for longer, more takes what one policy has found. `plans`
    costly_share: float = 0.3

    # Programs of more operations are planned in few ways, each fast: planning in seconds against
    # plans that recompute less. `plans`
    large_operations: int = 20_000

    # Plans are made around what is cheapest to keep in these shares of the pool; the rest is for
    # what else is in memory while something is made again, and for gaps. Each is several more plans
    # before the search. `plans`
    kept_shares: tuple[float, ...] = (1.0, 0.9, 0.8)

    # Factors of what kept storages are worth: low ones leave more to the engine, high ones hold on
    # to the cut. Each is several more plans. `plans`
    kept_worths: tuple[float, ...] = (10.0, 1e6)

    # A plan that recomputes this many times as many operations as there are is given up: budgets
    # that suffice against calls that take as long, and time to plan them. Not shown.
    give_up_factor: float = 16.0

    # So many recomputations may be tried and undone for each that a plan may have: planning that
    # comes to an end against plans that are hard to find. `plans`
    tries_per_recomputation: int = 2

    # --- Plans around checkpoints (`checkpoint_plans`, `keep_choices`) ---

    # Plans tried with addresses found ahead: planning time against a plan that recomputes less.
    # `plans`
    most_packed: int = 16

    # Plans tried without, if none of those fits: planning time against a plan that fits.
    # `checkpoints`
    most_unpacked: int = 4

    # The same in large programs, each with no more than this share of what the last one needs: a
    # smaller share comes to what fits in fewer plans, and keeps less than it could. Not shown.
    most_of_large: int = 8
    next_share: float = 0.99

    # Into how many parts a program is divided (0: not at all), and whether at the first of equally
    # narrow places, else at the last. Each is a few dozen minimum cuts. `plans`
    cuts: tuple[tuple[int, bool], ...] = (
        (0, False),
        *itertools.product((6, 12, 24, 48), (False, True)),
    )

    # Numbers of parts where no cut is looked for: linear in the program each, and where memory is
    # shortest the finest are all that fits. Not shown.
    parts: tuple[int, ...] = tuple(parts << k for k in range(10) for parts in (2, 3))

    # How much is kept of what would fit: addresses are found for less, which recomputes more. Not
    # shown.
    cut_shares: tuple[float, ...] = (0.98, 0.95, 0.9, 0.8, 0.6)

    # --- The search for better plans (`local_search`) ---

    # Plans, and calls that are recorded, that recompute less than this share of what they compute
    # are good enough: no search for what nobody notices. `plans`
    good_enough_share: float = 1e-3

    # Other plans are close to the best one, and worth a search of their own, where they recompute
    # no more than so many times as much. `plans`
    close_factor: float = 1.5

    # So many plans are varied side by side, and the best gets this share of the attempts: ways out
    # of a dead end against attempts where they pay most. `plans`
    starts: int = 4
    share_on_the_best: float = 0.7

    # At most so many plans are made, and so many without finding a better one: seconds of a first
    # call against recomputation in all later ones. `plans`
    most_plans: int = 2048
    patience: int = 768

    # With so many searches for room a recomputation counts as twice the effort: `search_effort`
    # stands for the same time in programs that are hard to plan. `plans`
    searches_per_effort: int = 64

    # Candidates planned at once, all variants of what was best before any of them: cores in use
    # against what each learns from the others. As a constant, so that plans do not depend on how
    # many cores there are. `plans`
    round_plans: int = 8

    # Changes of a candidate: this share of them is of a kind of storages, the others of one; of
    # those of a kind, this share is of a stretch of it. Changes of many storages find what holds
    # for each layer, changes of one the rest. `plans`
    share_of_a_kind: float = 0.5
    share_of_a_stretch: float = 0.3

    # Where there are checkpoints this share of the changes is of what is kept, if addresses are not
    # found ahead (else all): what is kept against how the engine goes about it. Not shown.
    share_of_checkpoints: float = 0.5

    # Of the other changes this share is of the side, what is left of the worth: gaps in the pool
    # against what is evicted. `plans`
    share_of_the_side: float = 0.2

    # After a change this share of the candidates is changed again: larger steps, of which fewer are
    # better. `plans`
    share_of_more_changes: float = 0.4

    # Factors of worth that are tried, up or down: small ones do nothing to most plans, large ones
    # all the same. `plans`
    least_factor: float = math.exp(0.3)
    most_factor: float = math.exp(5)

    # --- Calls that are recorded (`recorded_calls`) ---

    # Kinds of arguments that are remembered for a function, and states of the pool for each: memory
    # of the process against calls that are planned. `learning`
    kept_calls: int = 16

    # Searches for each kind of arguments, some seconds each: what hardly ever repeats is not worth
    # more. `learning`
    most_call_searches: int = 8

    # What a result counts, as a factor: each is wanted at the end, so what is evicted instead is
    # not. Not shown.
    results_worth: float = 1e6

    # When this share of the results' bytes is made, the others are about to come, and what they
    # meet goes to the other side. Some (statistics) are made much earlier. Not shown.
    first_results_share: float = 0.05

    # Results that would take more than this share of what is free go anywhere: side by side the
    # next call finds the same state, but beside them this one may not fit. `learning`
    results_share: float = 1 / 3

    # Results keep this share of the pool's left end clear, for small values that are there when a
    # call ends. `learning`
    clear_share: float = 1 / 32

    # Where calls recompute more than this share of what they compute, results are not put side by
    # side: there is no room to spare. `learning`
    tight_share: float = 0.5

    # --- Workspace (`workspace`, `planner`) ---

    # What needs more than such a share of the budget may get blocks of its own: each share is one
    # more plan. Blocks leave the rest of the call more room, and their pages have to be filled
    # again. `workspaces`
    large_workspace_shares: tuple[float, ...] = (1 / 64, 1 / 24, 1 / 8)

    # No block is larger than this share of the budget: small ones find room between what lies in
    # the pool, and each wastes two pages. `workspaces`
    block_share: float = 1 / 32

    # Seconds to give a byte back and to have it filled with zeros when it is touched again, in the
    # pool and by XLA: 2e-10 each, measured. Too little makes plans slower than they say, too much
    # recomputes instead. Not shown.
    refill_seconds_per_byte: float = 4e-10

    # What makes use of blocks has to be so much better than what does not: else a first step and
    # later ones, which differ little, would be planned in different ways. Not shown.
    clearly_better_factor: float = 1.15

    # How long to look for the smallest budget that would do, for an error message: the wait for the
    # error against how near the number is, in programs that take long to plan. Not shown.
    smallest_budget_seconds: float = 10.0


TUNED = Constants()
