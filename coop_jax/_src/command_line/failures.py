"""What goes wrong on the command line: whose mistake it is, the message, the exit code.

Model: a mistake in what was typed, or in what it names, is one line on stderr that says what to do,
and code 2. What the user's code raises is shown as Python would, from the user's first frame on,
and code 1. Whose error it is, its traceback says: the user's if a frame of it is neither in this
package nor in what it stands on (JAX, NumPy, the standard library).

Thread rule: functions of their arguments.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sysconfig
import traceback
from types import TracebackType

from coop_jax._src.util.errors import BudgetExceededError, ProgramFileError

BAD_INPUT, FAILED = 2, 1
INTERRUPTED, CLOSED_PIPE = 128 + 2, 128 + 13  # as shells say of SIGINT and SIGPIPE

PROGRAM = "coop-jax"
_PACKAGE = pathlib.Path(__file__).parents[2]


def _file_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    return str(spec.origin)


_NOT_THE_USERS = tuple(
    f"{folder}/"
    for folder in (
        _PACKAGE,
        *(pathlib.Path(_file_of(name)).parent for name in ("jax", "jaxlib", "numpy")),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
    )
)
_INSTALLED = ("/site-packages/", "/dist-packages/")  # lie within the standard library's folder
_LONGEST = 600  # characters of a message


class UsageError(Exception):
    """What was typed, or what it names, makes no sense; the message says what to do."""


class FailureError(Exception):
    """What was asked for cannot be had; the message says why."""


def described(error: BaseException) -> tuple[str, int]:
    """The message for an error, without a line's end, and the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return f"{PROGRAM}: interrupted", INTERRUPTED
    if isinstance(error, BudgetExceededError):
        return f"{PROGRAM}: error: {error}", FAILED
    if isinstance(error, FailureError):
        return _line(str(error)), FAILED
    if isinstance(error, UsageError):
        return _line(str(error)), BAD_INPUT
    if isinstance(error, SystemExit):
        return _line(
            f"the module ended the process (SystemExit: {error.code}): start what is not to run on"
            " import below `if __name__ == '__main__':`"
        ), FAILED
    begin = _users_part(error.__traceback__)
    if begin is not None or isinstance(error, SyntaxError):
        shown = traceback.format_exception(type(error), error, begin)
        return "".join(shown).rstrip("\n"), FAILED
    if isinstance(error, ProgramFileError):
        return _line(f"{_said(error)}: write the file again with coop_jax.save_program"), BAD_INPUT
    if isinstance(error, (TypeError, ValueError, OSError)):
        return _line(_said(error)), BAD_INPUT
    return _line(
        f"{type(error).__name__}: {_said(error)}; --traceback shows where it happened"
    ), FAILED


def _line(message: str) -> str:
    return f"{PROGRAM}: error: {message}"


def _said(error: BaseException) -> str:
    """The first paragraph of an error's message, on one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    words = str(error).strip().partition("\n\n")[0].split()
    text = " ".join(words) or type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on; None if there is none."""
    while trace is not None and not _is_the_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_the_users(file: str) -> bool:
    if file.startswith("<frozen "):
        return False
    if any(part in file for part in _INSTALLED):
        return not file.startswith(_NOT_THE_USERS[:4])
    return not file.startswith(_NOT_THE_USERS)
