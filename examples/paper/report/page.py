"""The page: blocks of text, tables and pictures, written as Markdown and as HTML.

Model: `blocks` decides what is on the page, `markdown` and `html` only how it looks.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from html import escape

from examples.paper.report import losses, nearby, rules
from examples.paper.report.claims import Judged
from examples.paper.report.data import TITLES, Results, known, percent, title
from examples.paper.report.why import WHY

UNEXPLAINED = "not explained yet"
_SHOWN = 6  # checks that fail are listed up to this many for each claim

CAPTIONS = {
    "overhead": (
        "Compute overhead",
        "Recompute time over compute time at budgets that are the same bytes for all methods. A"
        " cross: out of memory below. Per-layer checkpointing, the sanity line, is what users can"
        " place by hand: it needs the memory at its star, and nothing to its right beats it that"
        " lies above the dotted line. A panel is cut where only thrashing would be seen.",
    ),
    "latency": (
        "Search latency",
        "Time to choose what to evict for one request: mean and 99th percentile, on a log scale.",
    ),
    "fragmentation": (
        "Memory fragmentation",
        "Free bytes over pool bytes when a request finds no block, mean over those moments.",
    ),
    "budgets": (
        "Cutoff and minimum budgets",
        "The least budget that works (filled) and the least at which nothing is evicted (hollow).",
    ),
    "published": (
        "The methods as published",
        "Two things here are not the papers', and every method in the other plots has them: what"
        " nothing holds any more goes first and at no cost, and a value that something evicted is"
        " made from stays at its last use. Dotted: without both. Beside them Coop with exact"
        " neighbours instead of union-find.",
    ),
    "ablation-overhead": (
        "Ablation: overhead",
        "Coop without each of its three modules. Without the window it has DTE's heuristic, as in"
        " the paper; dashed: Coop with the window and that heuristic.",
    ),
    "nearby": (
        "Methods at nearby budgets",
        "At how many ratios the first recomputes more / less / neither, each ratio judged at nine"
        " budgets within 1% of it: more or less is what holds at eight of them. 'Neither' is a"
        " difference that moving the budget by a percent makes, too.",
    ),
    "ablation-published": (
        "Ablation: overhead, as published",
        "The same of Coop as published: without the two things that are not the paper's.",
    ),
    "ablation-fragmentation": (
        "Ablation: fragmentation",
        "Mean fragmentation of Coop without each of its three modules.",
    ),
    "batch": ("Largest batch", "The largest batch that fits the device, simulated."),
    "table1": ("Cost densities (Table 1)", "Microseconds for each 10^6 bytes of output."),
    "real": (
        "Real runs",
        "Small sizes really run on a CPU: measured against simulated overhead. On the diagonal the"
        " simulation is right.",
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, or a heading if `level` is not 0."""

    text: str
    level: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """A table."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A plot, which lies beside the page as PNG and SVG."""

    name: str
    alt: str


Block = Text | Rows | Items | Picture


def blocks(r: Results, judged: Sequence[Judged], drawn: Sequence[str]) -> list[Block]:
    """What is on the page.

    Args:
      r: the tables.
      judged: the claims with verdicts.
      drawn: names of the plots that there are.
    """
    found: list[Block] = [
        Text("The Coop paper's evaluation", 1),
        Text(
            "Does Coop, as built here, do what its paper says? Each of the paper's networks is"
            " simulated at the paper's size by the engine that the runtime uses, under Coop, DTE"
            " and DTR, at budgets from 90% to 20% of what it needs without one. The first table"
            " sets each claim of the paper's text beside our number; the plots follow. Verdicts"
            " are computed from the tables in this folder, by the rule in their row."
        ),
        Items(
            (
                "reproduced: every check of the rule holds",
                "partly: at least half of the checks hold; not reproduced: fewer",
                "incomplete: all that could be decided hold, but tables lack rows; no data: none"
                " could be decided",
                "Out of memory (OOM) counts as an infinite overhead; where both of two methods are"
                " out of memory nothing is compared. A plan that only thrashes counts as OOM",
            )
        ),
    ]
    if r.about:
        found.append(Text(f"Simulated with: {r.about}."))
    if r.missing:
        found.append(Text("Missing here, and left out below: " + ", ".join(r.missing) + "."))
    absent = [title(n) for n in TITLES if n not in {row.network for row in r.overhead}]
    if r.overhead and absent:
        found.append(Text("Not simulated: " + ", ".join(absent) + "."))
    found += _claims(judged)
    found += _losses(r)
    for name, (heading, caption) in CAPTIONS.items():
        found += [Text(heading, 2), Text(caption)]
        if name == "table1":
            found.append(_table1(r))
        elif name == "nearby":
            found.append(Rows(*nearby.table(r)) if r.nearby else Text("No data for this table."))
        else:
            picture = Picture(name, heading)
            found.append(picture if name in drawn else Text("No data for this plot."))
        if name == "real" and r.real:
            found += _real(r)
    return found


def _claims(judged: Sequence[Judged]) -> list[Block]:
    counts = Counter(one.verdict for one in judged)
    tally = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    table = Rows(
        ("Section", "The paper", "Here", "Verdict", "As published", "Verdict", "Rule"),
        tuple(
            (
                c.claim.where,
                c.claim.text,
                c.outcome.ours,
                c.verdict,
                "–" if c.published is None else c.published.ours,
                "–" if c.published is None else rules.verdict(c.published.checks),
                c.claim.rule,
            )
            for c in judged
        ),
    )
    found: list[Block] = [Text("Claims", 2), Text(f"Of {len(judged)} claims: {tally}."), table]
    explained = [c for c in judged if c.verdict in (rules.PARTLY, rules.NOT)]
    if explained:
        found.append(Text("Why not", 2))
    for one in explained:
        fails = [check.what for check in one.outcome.checks if check.holds is False]
        more = len(fails) - _SHOWN
        listed = "; ".join(fails[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        found += [
            Text(f"{one.claim.text} ({one.verdict})", 3),
            Text(f"Does not hold: {listed}."),
            Text("Why: " + (WHY.get(one.claim.key) or UNEXPLAINED)),
        ]
    return found


def _losses(r: Results) -> list[Block]:
    found: list[Block] = [
        Text("Where per-layer checkpointing wins", 2),
        Text(
            "Budgets at which a policy recomputes more than per-layer checkpointing, or is out of"
            " memory, although it may use as much as that needs or more. Again: the part that went"
            " into operations that had been recomputed before, as no checkpoint by hand does."
        ),
    ]
    if not any(row.remat == "per-layer" for row in r.static) or not r.overhead:
        return [*found, Text("No data.")]
    lost = losses.find(r)
    if not lost:
        return [*found, Text("Nowhere.")]
    head = ("Network", "Per-layer: peak, overhead", "Policy", "Loses at (its overhead)")
    found.append(Rows(head, tuple(loss.cells() for loss in lost)))
    why = [
        f"{title(network)}: {WHY.get(f'per-layer:{network}') or UNEXPLAINED}"
        for network in known(loss.network for loss in lost)
    ]
    return [*found, Text("Why:"), Items(tuple(why))]


def _table1(r: Results) -> Block:
    if not r.table1:
        return Text("No data for this table.")
    return Rows(
        ("Operation", "Kind", "Device profile (µs/MB)", "Measured here (µs/MB)"),
        tuple(
            (x.operation, x.kind, f"{x.profile_us_per_mb:,.3g}", f"{x.measured_us_per_mb:,.3g}")
            for x in r.table1
        ),
    )


def _real(r: Results) -> list[Block]:
    within = sum(
        abs(x.measured_overhead - x.simulated_overhead) <= 0.15 * x.measured_overhead
        for x in r.real
    )
    step = sum(
        abs(x.simulated_overhead - x.measured_overhead) <= 0.15 * (1 + x.measured_overhead)
        for x in r.real
    )
    return [
        Text(
            f"The simulated overhead is within 15% of the measured one in {within} of"
            f" {len(r.real)} runs; the simulated time of a step, recomputing included, in {step}."
        ),
        Rows(
            ("Network", "Policy", "Memory ratio", "Simulated", "Measured", "Evictions"),
            tuple(
                (
                    x.title,
                    x.policy,
                    percent(x.ratio),
                    percent(x.simulated_overhead, 1),
                    percent(x.measured_overhead, 1),
                    f"{x.evictions:,}",
                )
                for x in r.real
            ),
        ),
    ]


def markdown(page: Sequence[Block]) -> str:
    """The page as Markdown."""
    parts = []
    for block in page:
        match block:
            case Text(text, level):
                parts.append(f"{'#' * level} {text}" if level else text)
            case Items(items):
                parts.append("\n".join(f"- {item}" for item in items))
            case Rows(head, rows):
                lines = [head, ("---",) * len(head), *rows]
                parts.append("\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines))
            case Picture(name, alt):
                parts.append(f"![{alt}]({name}.png)\n\n[SVG]({name}.svg)")
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_CSS = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:.9em}td,th{border-bottom:1px solid #ddd;"
    "padding:.35em .6em;text-align:left;vertical-align:top}img{max-width:100%}"
    ".reproduced{color:#00694c}.partly{color:#8a6d00}.not-reproduced{color:#b34700}"
)


def html(page: Sequence[Block]) -> str:
    """The page as HTML, with the SVG plots."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>The Coop paper's evaluation</title><style>{_CSS}</style>",
    ]
    for block in page:
        match block:
            case Text(text, level):
                tag = f"h{level}" if level else "p"
                parts.append(f"<{tag}>{escape(text)}</{tag}>")
            case Items(items):
                parts.append("<ul>" + "".join(f"<li>{escape(x)}</li>" for x in items) + "</ul>")
            case Rows(head, rows):
                top = "".join(f"<th>{escape(x)}</th>" for x in head)
                body = "".join("<tr>" + "".join(map(_td, row)) + "</tr>" for row in rows)
                parts.append(f"<table><tr>{top}</tr>{body}</table>")
            case Picture(name, alt):
                parts.append(f'<p><img src="{name}.svg" alt="{escape(alt)}"></p>')
    return "\n".join(parts) + "</html>\n"


def _td(text: str) -> str:
    verdicts = (rules.REPRODUCED, rules.PARTLY, rules.NOT)
    mark = f' class="{text.replace(" ", "-")}"' if text in verdicts else ""
    return f"<td{mark}>{escape(text)}</td>"
