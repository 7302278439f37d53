"""An operation before liveness is known, and the signal that there is no fixed order of them."""

from __future__ import annotations

import dataclasses

from coop_jax._src.ir.kernels import Kernel


class DynamicControlFlow(Exception):  # noqa: N818 - a signal, not an error
    """The program branches or loops on a value: its operations are not known ahead."""


@dataclasses.dataclass(frozen=True, slots=True)
class RawOperation:
    """An operation before liveness: operands and results are value numbers."""

    kernel: Kernel
    operands: tuple[int, ...]
    results: tuple[int, ...]
    source: str
    name_stack: str
    effectful: bool
