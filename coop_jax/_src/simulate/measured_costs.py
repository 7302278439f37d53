"""Measured costs: how long each operation of a real run took, kept by what it computes.

Model: while costs are recorded, every operation that a runtime carries out adds its seconds to the
entry of its structural key. Of one that runs very often samples are thinned out evenly, so that all
recorded steps count, and not only the first. A simulation then prices the operations of a plan with
the median of each. Decisions do not depend on them: the runtime plans with roofline costs, and so
does the simulation. An operation that was never seen is priced by roofline, scaled by what measured
times are of roofline times in the median of the others.
Invariants: keys are the same in every process and JAX version that traces the same operation.
Thread rule: recording adds under the runtime's lock.
Source: paper section 4.1 (costs are measured on the device).
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from coop_jax._src.simulate import constants
from coop_jax._src.simulate.traced_program import AnyKernel, TracedProgram, kernel_key
from coop_jax._src.util import options
from coop_jax._src.util.budget import MOST_BYTES
from coop_jax._src.util.errors import ProgramFileError
from coop_jax._src.util.options import shown

if TYPE_CHECKING:
    from coop_jax._src.execution.executables import Executable
    from coop_jax._src.execution.runtime import Runtime

_FORMAT, _VERSION = "coop_jax costs", 1


class MeasuredCosts:
    """Seconds of operations, measured. Made by `record_costs`, or read by `MeasuredCosts.load`."""

    def __init__(self) -> None:
        self.device = ""
        self.workspace_bytes = 0
        self._samples: dict[str, list[float]] = {}
        self._seen: dict[str, int] = {}
        self._keys: dict[AnyKernel, str] = {}

    def __len__(self) -> int:
        """How many different operations were measured."""
        return len(self._samples)

    def add(self, kernel: AnyKernel, seconds: float) -> None:
        """Adds a measurement of an operation."""
        key = self._key(kernel)
        samples = self._samples.setdefault(key, [])
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        # One of `every` is kept; when there are too many, every second of them.
        every = 1 << (max(0, seen - 1) // constants.TUNED.kept_samples).bit_length()
        if seen % every:
            return
        if len(samples) >= constants.TUNED.kept_samples:
            del samples[::2]
        samples.append(seconds)

    def _key(self, kernel: AnyKernel) -> str:
        found = self._keys.get(kernel)
        if found is None:
            found = self._keys[kernel] = kernel_key(kernel)
        return found

    def seconds_of(self, kernel: AnyKernel) -> float | None:
        """The median of what was measured of an operation, None if nothing was."""
        samples = self._samples.get(self._key(kernel))
        return statistics.median(samples) if samples else None

    def cost_seconds(self, traced: TracedProgram) -> list[float]:
        """Seconds of each operation of a program.

        Raises:
          ValueError: none of them was measured.
        """
        operations = traced.program.operations
        known = [self.seconds_of(op.kernel) for op in operations]
        ratios = [
            seconds / op.kernel.cost_seconds
            for seconds, op in zip(known, operations, strict=True)
            if seconds is not None and op.kernel.cost_seconds > 0
        ]
        if operations and not ratios:
            raise ValueError("these costs were measured on another program: no operation matches")
        scale = statistics.median(ratios) if ratios else 1.0
        return [
            op.kernel.cost_seconds * scale if seconds is None else seconds
            for seconds, op in zip(known, operations, strict=True)
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the costs as JSON: for each operation its median seconds and number of samples."""
        kernels = {
            key: {"seconds": statistics.median(samples), "samples": len(samples)}
            for key, samples in sorted(self._samples.items())
        }
        head = {"format": _FORMAT, "version": _VERSION, "device": self.device}
        with open(options.file_path(path), "w", encoding="utf-8") as file:
            json.dump(
                {**head, "workspace_bytes": self.workspace_bytes, "kernels": kernels},
                file,
                indent=1,
            )
            file.write("\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> MeasuredCosts:
        """Reads costs that `save` wrote.

        Raises:
          ProgramFileError: the file is no such file, with the line where that is known.
        """
        path = options.file_path(path)
        with open(path, encoding="utf-8") as file:
            try:
                text = file.read()
            except UnicodeDecodeError as error:
                raise ProgramFileError(f"{path}, line 1: not text ({error})", 1) from error
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            line = error.lineno
            raise ProgramFileError(f"{path}, line {line}: not JSON ({error.msg})", line) from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits
            raise ProgramFileError(f"{path}: not to be read ({error})", 1) from error
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ProgramFileError(f"{path}, line 1: not a file of measured costs", 1)
        if data.get("version") != _VERSION:
            raise ProgramFileError(
                f"{path}, line 1: version {shown(data.get('version'))} is unknown", 1
            )
        costs = MeasuredCosts()
        try:
            costs.device = str(data["device"])
            costs.workspace_bytes = _bytes(data["workspace_bytes"])
            entries = data["kernels"].items()
            costs._samples = {str(k): [_seconds(entry["seconds"])] for k, entry in entries}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            line = _line_of(text, error)
            raise ProgramFileError(f"{path}, line {line}: {error!r}", line) from error
        return costs


def _bytes(value: Any) -> int:
    count = int(value)
    if not 0 <= count < MOST_BYTES:
        raise ValueError(f"workspace_bytes must be 0 or more, and below 2**62, got {shown(value)}")
    return count


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"seconds must not be negative, got {shown(value)}")
    return seconds


def _line_of(text: str, error: Exception) -> int:
    """The line with the value that an error complains of, 1 if it cannot be told."""
    shown = str(error).rsplit(" ", 1)[-1]
    at = text.find(shown) if isinstance(error, ValueError) else -1
    return text.count("\n", 0, max(at, 0)) + 1


@contextlib.contextmanager
def record_costs(*runtimes: Runtime) -> Iterator[MeasuredCosts]:
    """Records the seconds of each operation that the runtimes run in the `with` block.

    Measured where operations run in order on the caller's thread (CPU); elsewhere times include the
    wait for the device. The first run of each operation is not counted, nor is a call that began
    before.

    Args:
      *runtimes: `step.runtime`, or any `Runtime`.

    Yields:
      The costs, which fill as operations run.

    Example:
      >>> import coop_jax, jax.numpy as jnp
      >>> rt = coop_jax.Runtime("64MiB")
      >>> step = coop_jax.run(lambda x: (x @ x).sum(), runtime=rt)
      >>> x = jnp.ones((64, 64))
      >>> with coop_jax.record_costs(rt) as costs:
      ...     values = [step(x), step(x)]
      >>> len(costs)
      1
    """
    for runtime in runtimes:
        if not hasattr(runtime, "counters"):
            raise TypeError(f"expected a coop_jax.Runtime, got {shown(runtime)}")
    costs = MeasuredCosts()

    def record(executable: Executable, seconds: float) -> None:
        costs.workspace_bytes = max(costs.workspace_bytes, executable.workspace_bytes)
        costs.add(executable.kernel, seconds)

    for runtime in runtimes:
        costs.device = getattr(runtime.device, "device_kind", runtime.device.platform)
    with _recorder(runtimes, record):
        yield costs


@contextlib.contextmanager
def record_runs(runtime: Runtime) -> Iterator[list[float]]:
    """Records the seconds of every operation that a runtime runs meanwhile, in order.

    Recomputed ones are among them: the k-th number belongs to the k-th run of the plan's actions.
    As in `record_costs`, the first run of each operation is not counted: let some steps run before.

    Yields:
      The seconds, a list that grows.
    """
    runs: list[float] = []
    with _recorder([runtime], lambda _, seconds: runs.append(seconds)):
        yield runs


@contextlib.contextmanager
def _recorder(
    runtimes: Sequence[Runtime], record: Callable[[Executable, float], None]
) -> Iterator[None]:
    """Has operations of the runtimes told to a function, and afterwards to whom they were."""
    before = [runtime.counters.recorder for runtime in runtimes]
    for runtime in runtimes:
        runtime.counters.recorder = record
    try:
        yield
    finally:
        for runtime, recorder in zip(runtimes, before, strict=True):
            runtime.counters.recorder = recorder
