"""Tuned constants of `run`; see `planning.constants` for how to read them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # --- Plans (`planned_call`) and what repeats (`fast_path`, `call_trees`) ---

    # States of the pool that plans are kept for, for each signature: memory of the process against
    # planning again. `pytest tests/unit/run/test_repeating.py`
    kept_plans: int = 16

    # The first of them are searched for where the policy searches: time of calls that find the pool
    # in a new state against recomputation in them. Not shown.
    searched_plans: int = 4

    # States in which calls repeat without Python: two where a caller keeps the last step's results.
    # More are compared in each call. Not shown.
    repeated_states: int = 4

    # Calls whose arguments' structure is learned: leaves may be of other types at first. Not shown.
    learned_structures: int = 4

    # --- When to make segments (`tiering`) ---

    # Seconds of waking XLA's threads for an operation and waiting for them, and of passing an
    # array, on two cores: high ones make segments earlier and larger. Not shown.
    launch_seconds: float = 3e-5
    array_seconds: float = 1e-6

    # Calls before segments are made. The first two find the pool in other states than later ones,
    # the third sets up replay in C++; the others are measured. Not shown.
    measured_calls: int = 5

    # Share of a call's time that making segments may add to it: slower calls meanwhile against fast
    # ones sooner. Not shown.
    preparation_fraction: float = 0.5

    # --- Which segments (`tiering`, `segment_candidates`) ---

    # Candidates that are compiled, and how often each: operations that have to stand apart and the
    # memory of a segment are known only then. Compilation against a better candidate. Not shown.
    max_candidates: int = 3
    max_compilations: int = 8

    # A candidate that takes more than this factor of the time expected is compared with others, of
    # at least the second factor as many segments. Not shown.
    as_expected_factor: float = 1.03
    more_segments_factor: float = 1.4

    # A call with segments has to take at most this factor of the time without: estimates are not
    # measurements. Not shown.
    worthwhile_factor: float = 0.97

    # Planning a candidate stops when it recomputes this share of its operations. Not shown.
    candidate_give_up_fraction: float = 0.5

    # Sizes of segments that are tried, each half of the one before: plans against a better size.
    # Not shown.
    segment_sizes: int = 6

    # Shares of the free budget that segments of a rematerialized program may fill: each is a
    # candidate. Not shown.
    room_fractions: tuple[float, ...] = (
        *(1.0, 0.98, 0.95, 0.91, 0.86),
        *(0.8, 0.7, 0.6, 0.5, 0.4, 0.3),
    )

    # Share of that room, at most `segments`' `large_workspace_bytes`, that is left to XLA's
    # memory: segments that fit as planned against smaller ones. Not shown.
    xla_room_fraction: float = 1 / 64

    # --- Messages (`donation`) ---

    # Arguments that a warning names: there may be hundreds.
    named_arguments: int = 3


TUNED = Constants()
