"""`coop-jax memory`: `coop_jax.memory` of a train step.

Thread rule: functions of their arguments. Cost: compiling the train step.
"""

from __future__ import annotations

import argparse
import html
from typing import TextIO

from coop_jax._src.command_line import files, targets, text
from coop_jax._src.report.api import memory
from coop_jax._src.report.memory_report import MemoryReport

SUMMARY = "where the memory of a train step goes, before it runs"
DESCRIPTION = """\
Compiles a train step without running it, and reports its peak memory, what
lies in memory then, and which lines of code made it. Works for any JAX program,
with coop_jax or plain jax.jit.
"""
EXAMPLES = """\
examples:
  coop-jax memory train.py:make_step
  coop-jax memory train:train_step --args train:example_args --budgets
  coop-jax memory train:make_step --json | jq .peak_bytes
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    targets.add_arguments(parser)
    parser.add_argument(
        "--budgets",
        action="store_true",
        help="also plan what budgets would cost under coop_jax.jit, and recommend one",
    )
    parser.add_argument("--html", metavar="FILE", help="also write the report as a page")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(command=_run)


def _run(given: argparse.Namespace, out: TextIO) -> int:
    if given.html is not None:
        files.check_writable(given.html)
    target = targets.load(given.target, given.arguments)
    report = memory(target.fn, *target.args, budgets=given.budgets, **target.kwargs)
    if given.html is not None:
        with open(given.html, "w", encoding="utf-8") as file:
            file.write(_page(report))
    print(report.to_json() if given.json else report.to_text(width=text.width()), file=out)
    return 1 if report.refusal else 0


def _page(report: MemoryReport) -> str:
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<title>Memory of {html.escape(report.name)}</title>"
        "<style>body { font-family: sans-serif; margin: 2em } td { padding: 0 1em 0 0 }</style>"
        f"</head><body>{report.to_html()}</body></html>\n"
    )
