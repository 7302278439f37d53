"""What is compared: the paper's methods, its ablations, and the budgets.

Every method is the same engine with another policy, planned as the paper has it: without the exact
projected cost that `coop_jax.run` tries beside a policy's own (`alternatives=False`). Without the
sliding window Coop uses DTE's heuristic, as in the paper's appendix B. DTR and DTE copy on write.

Two things here are not the papers', and all methods have them: what nothing holds any more (values
recomputed on the way to others) goes first and at no cost, and a value that something evicted is
made from stays at its last use. "-published": without both.

"coop-by-size" is Coop with DTE's heuristic: between it and Coop without the window lies the window
alone, between it and Coop the heuristic alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from coop_jax import Policy

_PUBLISHED = {"keep_demanded": False, "unheld_first": False}
_NO_WINDOW = {"sliding_window": False, "cheap_partitioning": True, "in_place": True}

METHODS: Mapping[str, Policy] = {
    "coop": Policy("coop"),
    "dte": Policy("dte"),
    "dtr": Policy("dtr"),
    "dtr-exact": Policy("dtr", "exact"),
    "coop-exact": Policy("coop", "exact"),
    "coop-published": Policy("coop", **_PUBLISHED),
    "dte-published": Policy("dte", **_PUBLISHED),
    "dtr-published": Policy("dtr", **_PUBLISHED),
    "coop-by-size": Policy("dte", sliding_window=True, cheap_partitioning=True, in_place=True),
    "coop-no-window": Policy("dte", **_NO_WINDOW),
    "coop-no-in-place": Policy("coop", in_place=False),
    "coop-no-partition": Policy("coop", cheap_partitioning=False),
    "coop-no-window-published": Policy("dte", **_NO_WINDOW, **_PUBLISHED),
    "coop-no-in-place-published": Policy("coop", in_place=False, **_PUBLISHED),
    "coop-no-partition-published": Policy("coop", cheap_partitioning=False, **_PUBLISHED),
}
MAIN = ("coop", "dte", "dtr")
PUBLISHED = ("coop-published", "dte-published", "dtr-published")
ABLATIONS = ("coop-no-window", "coop-no-in-place", "coop-no-partition")
ABLATIONS_PUBLISHED = tuple(f"{method}-published" for method in ABLATIONS)

# Of what a step needs under Coop when nothing is evicted.
RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)

# Programs of more operations are compared without what takes hours there: the exact neighbourhood,
# looked up for each candidate; and methods that rescan or thrash where they hardly fit, which is
# below LEAST_PUBLISHED for those as published, and at the least budget for all but Coop.
LONG = 20_000
LEAST_PUBLISHED = 0.7

# Compared at budgets near each ratio, too: what changes with every percent of memory says little.
NEARBY = (*MAIN, "coop-by-size", *ABLATIONS)
NEARBY_FACTORS = tuple(1 + quarter / 400 for quarter in range(-4, 5))

# In the latency figure only: there the three methods are compared.
LATENCY_ONLY = ("gpt2",)

# A plan that recomputes more operations than a step has (and some) counts as out of memory. Methods
# that hardly fit thrash, and it takes minutes to see that they get nowhere.
GIVE_UP = 1.0

# Simulated devices: how much memory they have.
DEVICE_BYTES: Mapping[str, int] = {
    "a100-80gb": 80 * 10**9,
    "a100-80gb-fp32": 80 * 10**9,
    "rtx-2080ti": 11 * 10**9,
    "h200": 141 * 10**9,
}
