"""What is compared: the paper's methods, its ablations, and the budgets.

Every method is the same engine with another policy, planned as the paper has it: without the exact
projected cost that `coop_jax.run` tries beside a policy's own (`alternatives=False`). Without the
sliding window Coop uses DTE's heuristic, as in the paper's appendix B. DTR and DTE copy on write.

One thing here is not the paper's, and all three have it: a value that something evicted is made
from stays at its last use. "-drops": without it, as published (DTR's authors evict there).
"""

from __future__ import annotations

from collections.abc import Mapping

from coop_jax import Policy

METHODS: Mapping[str, Policy] = {
    "coop": Policy("coop"),
    "dte": Policy("dte"),
    "dtr": Policy("dtr"),
    "dtr-exact": Policy("dtr", "exact"),
    "coop-exact": Policy("coop", "exact"),
    "coop-drops": Policy("coop", keep_demanded=False),
    "dte-drops": Policy("dte", keep_demanded=False),
    "dtr-drops": Policy("dtr", keep_demanded=False),
    "coop-no-window": Policy("dte", sliding_window=False, cheap_partitioning=True, in_place=True),
    "coop-no-in-place": Policy("coop", in_place=False),
    "coop-no-partition": Policy("coop", cheap_partitioning=False),
}
MAIN = ("coop", "dte", "dtr")

# Of what a step needs under Coop when nothing is evicted.
RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)

# The exact neighbourhood of each evicted tensor is looked up for each candidate: in longer programs
# that takes hours, so they are compared without it.
EXACT_OPERATIONS = 20_000

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
