"""Several processes of one command on this machine, which end together.

Model: each process is the same Python module with the same arguments and two more, its number and
the address at which process 0 listens. The output of process 0 is shown; what the others print is
dropped. Errors go to files, and those of the process that failed first are what is shown.

Invariant: no process outlives this one. Each reads its standard input, a pipe, to the end, which
comes when this process ends in whatever way, and exits then (`exit_with_parent`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO

_GRACE_SECONDS = 5.0
_SHOWN_LINES = 30


class ProcessFailedError(RuntimeError):
    """A process ended with an error; the message has the end of what it said."""


def run_processes(module: str, arguments: Sequence[str], count: int) -> None:
    """Runs `python -m module` in several processes until all are done.

    Args:
      module: what each runs; it calls `exit_with_parent` first.
      arguments: of its command line; `--process` and `--coordinator` are added.
      count: how many processes.

    Raises:
      ProcessFailedError: one failed; the others have been stopped.
    """
    coordinator = f"localhost:{_free_port()}"
    ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()  # number and exit code
    running: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_stop, running)
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        for number in range(count):
            command = [sys.executable, "-m", module, *arguments]
            process = subprocess.Popen(
                [*command, f"--process={number}", f"--coordinator={coordinator}"],
                stdin=subprocess.PIPE,
                stdout=None if number == 0 else subprocess.DEVNULL,
                stderr=errors[number],
            )
            running.append(process)
            threading.Thread(target=_wait, args=(number, process, ended), daemon=True).start()
        for _ in range(count):
            number, code = ended.get()
            if code:
                raise ProcessFailedError(
                    f"process {number} of {count} {_ending(code)}, and the others were stopped:\n"
                    + _last_lines(errors[number])
                )


def exit_with_parent() -> None:
    """Ends this process when the one that started it has ended."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _wait(
    number: int, process: subprocess.Popen[bytes], ended: queue.SimpleQueue[tuple[int, int]]
) -> None:
    ended.put((number, process.wait()))


def _last_lines(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_SHOWN_LINES:]) or "(it said nothing)"


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"failed with exit code {returncode}"


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _free_port() -> int:
    """A port that nothing listens at; something might before process 0 does, and then it fails."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port
