"""What traces, and the interpreter, need of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from coop_jax._src.eager.operation_cache import Prepared
from coop_jax._src.ir.refs import RefCell


class Value(Protocol):
    """A session's handle of one array. Only its abstract value is looked at."""

    @property
    def aval(self) -> Any:
        """Its abstract value."""
        ...


class Session(Protocol):
    """Executes primitives and owns the memory behind the values; `session` has it."""

    def apply(
        self, primitive: Any, operands: Sequence[Any], params: dict[str, Any]
    ) -> Sequence[Value]:
        """Executes now. Operands are values, or concrete arrays and scalars. Always a sequence."""
        ...

    def concrete(self, value: Any) -> jax.Array:
        """The contents, brought back first where they were evicted."""
        ...

    def as_value(self, x: Any) -> Value:
        """The value of a stack as a whole."""
        ...

    def cell_of(self, ref: Any) -> RefCell:
        """The cell of a reference of the caller's."""
        ...

    def release_hint(self, value: Any) -> None:
        """Nothing is likely to read this again: its memory may go. It must stay recoverable."""
        ...

    def treasure_results_of(self, values: Sequence[Value]) -> bool:
        """What is made of these, and of that, takes most of the program; whether that was so."""
        ...

    def treasure_no_results(self, but: bool) -> None:
        """From now on nothing more is; `but`: what `treasure_results_of` returned."""
        ...


class Machine(Session, Protocol):
    """A session that runs operations for the interpreter."""

    def run_known(self, eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
        """Runs an equation that was run before; None where more has to be known of it."""

    def prepare(self, eqn: Any, operands: Sequence[Any]) -> Prepared | None:
        """The operation that an equation is; None where it is none."""

    def run(self, prepared: Prepared, operands: Sequence[Any]) -> list[Any]:
        """Runs an operation."""

    def function(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """The result of a function of arrays, run as one operation."""

    def alias(self, value: Any) -> Any:
        """Another value of the same storage."""
