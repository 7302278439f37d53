"""`coop-jax doctor`: whether coop_jax works on this machine, and as well as it could.

Thread rule: functions of their arguments. Cost: some ten seconds.
"""

from __future__ import annotations

import argparse
import json
from typing import TextIO

from coop_jax._src.command_line import checks, self_test, text
from coop_jax._src.command_line.checks import Check, Status
from coop_jax._src.util import progress

SUMMARY = "whether coop_jax works on this machine"
DESCRIPTION = """\
Checks versions, devices and settings, then runs a small train step under a
budget with run, remat_eager and jit, and compares the results. Each check is
ok, a warning or failed, with what to do. Takes some ten seconds. Exits with 1
if a check failed.
"""
EXAMPLES = """\
examples:
  coop-jax doctor
  JAX_PLATFORMS=cpu coop-jax doctor
  coop-jax doctor --json > doctor.json
"""
_CHECKS = (*checks.ALL, *self_test.ALL)


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(command=_run)


def _run(given: argparse.Namespace, out: TextIO) -> int:
    found = []
    # The lines that are printed are progress enough.
    shown = progress.shown(None if given.json else False)
    with shown, progress.progress_bar(len(_CHECKS), "checking") as bar:
        for name, ask in _CHECKS:
            check = checks.asked(name, ask)
            found.append(check)
            if not given.json:
                print(_text(check), file=out, flush=True)
            bar.update()
    failed = [check for check in found if check.status is Status.FAILED]
    if given.json:
        listed = [
            {"name": c.name, "status": c.status, "found": c.found, "advice": c.advice}
            for c in found
        ]
        print(json.dumps({"ok": not failed, "checks": listed}, indent=1), file=out)
    else:
        print(_summary(found), file=out)
    return 1 if failed else 0


def _text(check: Check) -> str:
    columns = text.width()
    start = f"{check.status:8} {check.name:18} "
    lines = [text.paragraph(start, check.found, columns)]
    if check.advice:
        lines.append(text.paragraph(" " * len(start) + "-> ", check.advice, columns))
    return "\n".join(lines)


def _summary(found: list[Check]) -> str:
    failed = sum(check.status is Status.FAILED for check in found)
    warnings = sum(check.status is Status.WARNING for check in found)
    if failed:
        return f"{failed} of {len(found)} checks failed"
    warned = f", {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""
    return f"coop_jax works here{warned}"
