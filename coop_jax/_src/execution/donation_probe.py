"""Does XLA write an operation's output into the slot that it was given to own?

A slot is memory that XLA did not allocate ("foreign"), donated to an operation so that XLA writes
the output there. On CPU this is known to work, and every executable is checked at its first run. On
other platforms it depends on the version: some keep foreign memory as it is and allocate elsewhere,
some abort the process. So it is tried once, in another process: whatever goes wrong there means
`COPIED`, and then nothing of the pool is ever donated. Operations write where XLA likes, and their
outputs are copied into their slots (see `executables.Executable`). Results are the same; it costs a
copy for each output, and workspace for the outputs of one operation.

Invariant: the answer for a kind of device does not change while the process lives, since compiled
operations depend on it.
Thread rule: any thread; the first caller asks, the others wait for the answer.
"""

from __future__ import annotations

import enum
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import jax

from coop_jax._src.compat import devices
from coop_jax._src.execution import constants

_LOGGER = logging.getLogger(__name__)

# What the other process prints in front of its answer.
PREFIX = "coop_jax placement: "


class Placement(enum.StrEnum):
    """How outputs come into the pool.

    Attributes:
      DONATED: XLA writes them into the slots it is given.
      COPIED: XLA must not be given slots; outputs are copied into them.
    """

    DONATED = "donated"
    COPIED = "copied"


_Key = tuple[str, str, str]
_found: dict[_Key, Placement] = {}
_lock = threading.Lock()


def key_of(device: jax.Device) -> _Key:
    """What the answer depends on: platform, version of jaxlib, kind of device."""
    return device.platform, devices.jaxlib_version(), device.device_kind


def probe(device: jax.Device) -> Placement:
    """How outputs come into the pool on this device; asked once per kind of device and process."""
    key = key_of(device)
    found = _found.get(key)
    if found is None:
        with _lock:
            found = _found.get(key)
            if found is None:
                found = _found[key] = _probe(device)
    return found


def _probe(device: jax.Device) -> Placement:
    if device.platform == "cpu":
        return Placement.DONATED
    found, reason = ask(check_command(device), constants.TUNED.probe_timeout_seconds)
    if found is Placement.COPIED:
        _LOGGER.warning(
            "jaxlib %s does not write into memory of the pool on %s (%s): outputs are copied into"
            " the pool, which takes more time and workspace",
            devices.jaxlib_version(),
            device.device_kind,
            reason,
        )
    return found


def check_command(device: jax.Device) -> list[str]:
    """The command that tries it on a device of this kind, this one if it can be told."""
    # A module that coop_jax itself does not import: Python warns of running one that it does.
    module = "coop_jax._src.execution.donation_probe_main"
    ordinal = getattr(device, "local_hardware_id", None)
    number = str(-1 if ordinal is None else ordinal)
    return [sys.executable, "-m", module, device.platform, number, device.device_kind]


def ask(command: Sequence[str], timeout_seconds: float) -> tuple[Placement, str]:
    """Runs the check in another process.

    Returns:
      What it found, and the reason if that is `COPIED`.
    """
    environment = dict(os.environ)
    # This process may hold nearly all of the device's memory; the check takes little of the rest.
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # What can be imported here, however it came to be importable, can be imported there.
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Placement.COPIED, f"the check took longer than {timeout_seconds:g} s"
    except OSError as error:
        return Placement.COPIED, f"the check could not be started: {error}"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Placement.COPIED, f"the check ended with status {done.returncode}: {last}"
    answers = [x for x in done.stdout.splitlines() if x.startswith(PREFIX)]
    answer = answers[-1].removeprefix(PREFIX) if answers else "no answer"
    if answer == Placement.DONATED:
        return Placement.DONATED, ""
    return Placement.COPIED, answer
