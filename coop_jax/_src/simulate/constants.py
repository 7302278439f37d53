"""Tuned constants of simulation; see `planning.constants` for how to read them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """See the module."""

    # Searches for a budget (`budget_search`) end this close to it, as a share of the unbudgeted
    # peak: plans that are made against how near the budget is. Not shown.
    resolution_fraction: float = 0.002

    # Samples that are kept of each operation (`measured_costs`): memory against the precision of
    # the median. Not shown.
    kept_samples: int = 128

    # Runs of which the fastest is this CPU's (`cpu_calibration`): time against noise. Not shown.
    calibration_runs: int = 7


TUNED = Constants()
