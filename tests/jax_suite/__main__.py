"""Runs JAX's own test files under `coop_jax.remat_eager`; see README.md beside this file.

Each file runs in a process of its own, with every test inside an eager call that evicts all it can
before each operation. What fails runs again in plain JAX: what fails there too, or what an
exclusion names, is no finding. Prints a table; exits with 1 if there are findings or nothing was
recomputed.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]

FILES = """
lax_test lax_numpy_test lax_numpy_indexing_test lax_numpy_reducers_test lax_numpy_operators_test
lax_numpy_einsum_test lax_numpy_ufuncs_test lax_numpy_vectorize_test lax_numpy_setops_test
lax_control_flow_test nn_test random_test random_lax_test custom_api_test api_test
lax_autodiff_test lax_vmap_test linalg_test fft_test lax_scipy_test jet_test image_test
checkify_test error_check_test debug_nans_test debugging_primitives_test python_callback_test
x64_context_test key_reuse_test stateful_rng_test array_test state_test mutable_array_test
custom_linear_solve_test custom_root_test scipy_stats_test sparse_test sparse_bcoo_bcsr_test
""".split()


COLUMNS = (
    *("tests", "skipped", "in JAX", "here", "excluded", "findings"),
    *("operations", "recomputations"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Failures that are expected, and why."""

    reason: str
    tests: str
    error: str

    def holds_for(self, test: str, message: str) -> bool:
        return bool(re.search(self.tests, test) and re.search(self.error, message))


def rules() -> list[Rule]:
    """The exclusions."""
    entries = tomllib.loads((HERE / "exclusions.toml").read_text())["rule"]
    return [Rule(e["reason"], e.get("tests", ""), e.get("error", "")) for e in entries]


def run_file(
    options: argparse.Namespace, name: str, mode: str, tests: Sequence[str] | None = None
) -> dict[str, Any]:
    """Runs a file, or some tests of it, and gives the plugin's results."""
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder) / "results.json"
        path = options.checkout / "tests" / f"{name}.py"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no"]
        command += ["-p", "tests.jax_suite.plugin", "-p", "no:cacheprovider", "--noconftest"]
        command += ["-c", str(options.checkout / "pyproject.toml")]
        command += ["--rootdir", str(options.checkout), f"--coop={mode}"]
        command += [f"--coop-results={results}", f"--coop-seconds={options.seconds}"]
        if tests is None:
            command += [f"--coop-shard={options.shard}", str(path)]
        else:
            command += [str(path.parent / test) for test in tests]
        environment = {
            **os.environ,
            "JAX_NUM_GENERATED_CASES": str(options.cases),
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if not results.exists():
            raise SystemExit(f"{name}: pytest did not finish\n{done.stdout}\n{done.stderr}")
        found: dict[str, Any] = json.loads(results.read_text())
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Of one file: every test's outcome, the row of the table, and what failed.

    Attributes:
      outcomes: by test, as the plugin writes them.
      row: a number for each of `COLUMNS`.
      reasons: of excluded failures, with how often each holds.
      findings: failures that nothing explains.
    """

    outcomes: dict[str, Any]
    row: dict[str, int]
    reasons: collections.Counter[str]
    findings: list[str]


def result_of(options: argparse.Namespace, name: str, known: Sequence[Rule]) -> Result:
    """Runs a file, and what failed in plain JAX as well."""
    eager = run_file(options, name, "eager")
    outcomes = eager["tests"]
    failed = [test for test, x in outcomes.items() if x["outcome"] == "failed"]
    plain = run_file(options, name, "plain", failed)["tests"] if failed else {}
    counts = collections.Counter(x["outcome"] for x in outcomes.values())
    reasons: collections.Counter[str] = collections.Counter()
    findings = []
    for test in failed:
        message = outcomes[test]["error"]
        if plain[test]["outcome"] != "passed":
            outcomes[test]["excluded"] = "does not pass in plain JAX here either"
            counts["skipped"] += 1
            continue
        counts["plain"] += 1
        reason = next((r.reason for r in known if r.holds_for(test, message)), None)
        if reason is None:
            findings.append(f"{test}\n    {message.splitlines()[0] if message else ''}")
        else:
            outcomes[test]["excluded"] = reason
            reasons[reason] += 1
    row = {
        "tests": len(outcomes),
        "skipped": counts["skipped"],
        "in JAX": counts["passed"] + counts["plain"],
        "here": counts["passed"],
        "excluded": reasons.total(),
        "findings": len(findings),
        "operations": eager["totals"]["operations"],
        "recomputations": eager["totals"]["rematerialisations"],
    }
    return Result(outcomes, row, reasons, findings)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=pathlib.Path, required=True, help="JAX's repository")
    parser.add_argument("--tests", help="comma-separated names of test files; default: all")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th test from the i-th on")
    parser.add_argument("--cases", type=int, default=2, help="generated cases for each test")
    parser.add_argument("--seconds", type=float, default=120.0, help="for one test")
    parser.add_argument("--jobs", type=int, default=1, help="files that run at a time")
    parser.add_argument("--report", type=pathlib.Path, help="JSON file for all outcomes")
    options = parser.parse_args()
    options.checkout = options.checkout.resolve()
    known = rules()
    totals: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    findings: list[str] = []
    report: dict[str, Any] = {}
    names = options.tests.split(",") if options.tests else FILES
    _print_row("file", {column: column for column in COLUMNS})
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = [pool.submit(result_of, options, name, known) for name in names]
        for name, future in zip(names, results, strict=True):
            result = future.result()
            _print_row(name, result.row)
            totals.update(result.row)
            reasons.update(result.reasons)
            findings += result.findings
            report[name] = result.outcomes
            if options.report is not None:
                options.report.write_text(json.dumps(report, indent=1))
    _print_row("all", totals)
    print("\nexcluded:")
    for reason, count in reasons.most_common():
        print(f"{count:5}  {reason}")
    if findings:
        print("\nfindings:", *findings, sep="\n")
    if not totals["recomputations"]:
        print("nothing was recomputed: this run proves nothing")
    return 1 if findings or not totals["recomputations"] else 0


def _print_row(name: str, row: Any) -> None:
    cells = (f"{row[column]:>{max(len(column), 6) + 2}}" for column in COLUMNS)
    print(f"{name:28}" + "".join(cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
