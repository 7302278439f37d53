"""The command `coop-jax`: arguments, subcommands, exit codes.

Exit codes: 0; 1 what was asked for failed, or the user's code did; 2 bad input; 130 interrupted
(as shells say where the signal ended the process); 141 nobody reads stdout any more.

Thread rule: the main thread. Cost: that of the subcommand.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from coop_jax._src.command_line import doctor, failures, memory, simulate, targets, timeline
from coop_jax._src.command_line.failures import UsageError

_COMMANDS = {"memory": memory, "timeline": timeline, "simulate": simulate, "doctor": doctor}
_DESCRIPTION = """\
Shows where the memory of a JAX train step goes, before it runs, and what a
memory budget would cost.
"""
_EXAMPLES = """\
examples:
  coop-jax memory train.py:make_step
  coop-jax timeline train.py:make_step -o step.html --budget 50%
  coop-jax simulate program.json --budget 75%,50% --policy coop,dtr,lookahead
  coop-jax doctor

`coop-jax COMMAND --help` describes a command.
Exit codes: 0 success, 1 failure (also of your code), 2 bad input, 130 Ctrl-C.
"""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage: a mistake is one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def _parser() -> _Parser:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        failures.PROGRAM, description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=as_written
    )
    version = importlib.metadata.version("coop-jax")
    parser.add_argument("--version", action="version", version=f"coop-jax {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, module in _COMMANDS.items():
        explained = "" if module is doctor else f"{targets.HELP}\n"
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=explained + module.EXAMPLES,
            formatter_class=as_written,
        )
        module.add(command)
        command.add_argument(
            "--traceback", action="store_true", help="show where an error was raised"
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      argv: its arguments; those of the process if not given.

    Returns:
      The exit code.

    Raises:
      SystemExit: after `--help` and `--version`.
    """
    try:
        try:
            return _answered(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.CLOSED_PIPE


def _answered(argv: Sequence[str]) -> int:
    parser = _parser()
    if not argv:
        parser.print_help(sys.stderr)
        return failures.BAD_INPUT
    given = argparse.Namespace(traceback=False)
    try:
        parser.parse_args(argv, given)
    except UsageError as error:
        print(failures.described(error)[0], file=sys.stderr)
        return failures.BAD_INPUT
    try:
        out = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints
            code: int = given.command(given, out)
        return code
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        message, code = failures.described(error)
        if given.traceback:
            traceback.print_exception(error)
        if message.startswith(failures.PROGRAM) or not given.traceback:
            print(message, file=sys.stderr)
        return code
