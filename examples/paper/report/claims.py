"""The claims of the paper's text, each with the rule that decides it.

Model: a claim is where it stands, what it says, the rule in words, and a function from the tables
to an `Outcome`. The functions are in `overheads` (compute overhead and budgets), `latencies`
(search latency, fragmentation) and `ablations` (appendix B, Table 1). DTR is the union-find form;
the exact one is in the plots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from examples.paper.report import ablations, latencies, overheads
from examples.paper.report.data import Results
from examples.paper.report.rules import NO_DATA, Outcome, verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper: its key in `why.WHY`, its place, what it says, the rule, the test.

    `compares`: it is about methods, so the rule can be put to their published forms, too.
    """

    key: str
    where: str
    text: str
    rule: str
    judge: Callable[[Results], Outcome]
    compares: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A claim with what the tables say of it, of the methods here and as published."""

    claim: Claim
    outcome: Outcome
    verdict: str
    published: Outcome | None  # None: no such rows, or it is not about that


CLAIMS = (
    Claim(
        "overhead-lowest",
        "4.3",
        "Coop has the lowest compute overhead on all eight networks.",
        "Coop's overhead is at most DTE's and at most DTR's, at every network and budget that one"
        " of them completes.",
        overheads.lowest,
    ),
    Claim(
        "order",
        "4.3",
        "Coop < DTE < DTR in overhead on BERT Large, U-Net, BiLSTM and GPT at ratios up to 90%.",
        "Coop < DTE and DTE < DTR, at every network and budget that one of the two completes.",
        overheads.order,
    ),
    Claim(
        "bert-50",
        "4.3",
        "BERT Large at 50% memory: 11% overhead with Coop, 29% with DTE, 41% with DTR.",
        "Coop at most 11%; Coop < DTE; DTE < DTR.",
        overheads.bert_50,
    ),
    Claim(
        "inception-40",
        "4.3",
        "Coop saves up to 60% of the memory of Inception V3; DTR and DTE only half of that.",
        "Coop completes at 40%; DTE and DTR do not complete below 70%.",
        overheads.inception_40,
    ),
    Claim(
        "min-budget-lowest",
        "4.3",
        "Coop trains under the smallest budgets on all eight networks.",
        "Coop's minimum budget is at most DTE's and at most DTR's, on each network.",
        overheads.minimum_lowest,
    ),
    Claim(
        "memory-saving",
        "abstract",
        "Up to 2x memory saving against the baselines.",
        "On some network the minimum budget of DTE or DTR is at least 1.6 times (2, less a fifth)"
        " Coop's; where it was not searched, the largest simulated at which they do not complete"
        " counts.",
        overheads.memory_saving,
    ),
    Claim(
        "high-ratio-images",
        "4.3",
        "ResNet-50, Inception V3 and Swin-T: low overhead for all three methods at high ratios.",
        "At most 10% at 90% and 80% memory, for each of the three methods.",
        overheads.high_ratio_images,
    ),
    Claim(
        "high-ratio-others",
        "4.3",
        "U-Net, BiLSTM and BERT Large: DTR and DTE cost substantially more than Coop even at 90%.",
        "DTE's and DTR's overhead is at least twice Coop's at 90% memory.",
        overheads.high_ratio_others,
    ),
    Claim(
        "gpt-overhead",
        "1",
        "GPT-3 style 2.7B: compute overhead up to about 5x lower than DTR's.",
        "DTR's overhead is at least 4 times (5, less a fifth) Coop's at some budget that both"
        " complete.",
        overheads.gpt_overhead,
    ),
    Claim(
        "gpt-fragmentation",
        "1",
        "GPT-3 style 2.7B: fragmentation up to about 5x lower than DTR's.",
        "DTR's mean fragmentation is at least 4 times (5, less a fifth) Coop's at some budget that"
        " both complete.",
        latencies.gpt_fragmentation,
    ),
    Claim(
        "gpt-latency",
        "1",
        "GPT-3 style 2.7B: search latency about 10x lower than DTR's.",
        "DTR's mean search latency is at least 8 times (10, less a fifth) Coop's at some budget"
        " that both complete.",
        latencies.gpt_latency,
    ),
    Claim(
        "gpt-min-budget",
        "1",
        "GPT-3 style 2.7B: minimum budget 25% below DTR's.",
        "Coop's minimum budget is at most 75% of DTR's.",
        overheads.gpt_minimum,
    ),
    Claim(
        "latency-most",
        "4.3",
        "Coop's search latency is below DTR's and DTE's in most cases.",
        "Coop's mean is the lower one in more than half of the networks and budgets that both"
        " complete, against DTE and against DTR.",
        latencies.most,
    ),
    Claim(
        "latency-bilstm",
        "4.3",
        "BiLSTM with DTR: a search takes more than 10,000 µs at most, five orders of magnitude"
        " longer than on ResNet-50; Coop's stays low (about 10x lower in the figure).",
        "DTR's longest search on BiLSTM is over 10,000 µs; it is at least 10,000 times DTR's least"
        " mean on ResNet-50; DTR's mean on BiLSTM is at least 10 times Coop's at each budget that"
        " both complete.",
        latencies.bilstm,
    ),
    Claim(
        "latency-consistent",
        "4.3",
        "Coop's search latency is more consistent across networks.",
        "Largest over least mean latency of all networks and budgets: smaller for Coop than for"
        " DTE, and than for DTR.",
        latencies.consistent,
    ),
    Claim(
        "latency-resnet",
        "4.3",
        "On ResNet-50 at high ratios Coop's search latency is above DTR's and DTE's.",
        "Coop's mean is above DTE's and DTR's at 90% memory.",
        latencies.resnet,
    ),
    Claim(
        "fragmentation-5",
        "4.3",
        "Coop's fragmentation is under 5% on all networks and budgets.",
        "Mean fragmentation under 5% at every network and budget that Coop completes.",
        latencies.under_5,
    ),
    Claim(
        "fragmentation-lowest",
        "4.3",
        "Coop's fragmentation is substantially below DTR's and DTE's.",
        "Coop's mean is below DTE's and below DTR's at every network and budget that both"
        " complete.",
        latencies.fragmentation_lowest,
    ),
    Claim(
        "fragmentation-dte",
        "4.3",
        "DTE has less fragmentation than DTR in most cases, but its highest remains high.",
        "DTE's mean is below DTR's in more than half of the cases that both complete; DTE's"
        " highest mean is over 5%.",
        latencies.fragmentation_dte,
    ),
    Claim(
        "cutoff-lowest",
        "C",
        "Coop's cutoff budget is below DTR's and DTE's on all eight networks.",
        "Coop's cutoff budget is below DTE's and below DTR's, on each network.",
        overheads.cutoff_lowest,
    ),
    Claim(
        "batch-largest",
        "A",
        "Coop supports the largest batches.",
        "Coop's largest batch is at least DTE's and at least DTR's, on each network (simulated;"
        " the paper compares frameworks).",
        overheads.batch_largest,
    ),
    Claim(
        "ablation-worse",
        "B",
        "Coop without any one of its three modules has a larger overhead.",
        "The overhead without the module is larger, or it does not complete, at every network and"
        " budget that Coop completes and where either recomputes anything.",
        ablations.worse,
    ),
    Claim(
        "ablation-resnet",
        "B",
        "ResNet-50 trains at 30% memory with Coop, at 40% without any one module.",
        "Coop completes at 30%; without each module it completes at 40% and not at 30%.",
        ablations.resnet,
    ),
    Claim(
        "ablation-unet",
        "B",
        "Without the sliding window U-Net has twice the overhead at 40% memory.",
        "The overhead without the window is at least twice Coop's.",
        ablations.unet,
    ),
    Claim(
        "ablation-rank",
        "B",
        "The sliding window affects the overhead most, then in-place, then partitioning.",
        "Mean overhead added without a module, over the networks and budgets that all variants"
        " complete: window > in-place; in-place > partitioning.",
        ablations.rank,
    ),
    Claim(
        "ablation-fragmentation",
        "B",
        "Removing the sliding window or in-place increases fragmentation.",
        "Mean fragmentation without the module is higher at every network and budget that both"
        " complete and where either is not 0.",
        ablations.fragmentation,
    ),
    Claim(
        "ablation-partition",
        "B",
        "Cheap tensor partitioning does not directly affect fragmentation.",
        "Without it mean fragmentation, averaged over what both complete, changes by less than one"
        " percentage point.",
        ablations.partition,
    ),
    Claim(
        "densities",
        "3.4",
        "Super-linear operations cost an order of magnitude more per byte than others.",
        "The median cost density of expensive operations is at least 10 times that of cheap ones,"
        " by the device profile and measured here.",
        ablations.densities,
        compares=False,
    ),
)


def judge_all(results: Results) -> list[Judged]:
    """Every claim with its outcome and verdict, in the page's order."""
    published = results.published()
    found = []
    for claim in CLAIMS:
        outcome = claim.judge(results)
        other = claim.judge(published) if claim.compares else None
        if other is not None and verdict(other.checks) == NO_DATA:
            other = None
        found.append(Judged(claim, outcome, verdict(outcome.checks), other))
    return found
