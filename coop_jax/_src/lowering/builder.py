"""Values, storages and operations of a program as it is put together, before liveness.

Model: values are numbers; each has an abstract value, and a storage, its own or that of what it is
a view of. Thread rule: one thread at a time. Cost: constant for each value and operation.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from coop_jax._src.compat import arrays, jaxprs, name_stacks
from coop_jax._src.ir import cost_model
from coop_jax._src.ir.equations import Equation
from coop_jax._src.ir.kernels import Kernel, KernelCache
from coop_jax._src.ir.raw_operations import RawOperation
from coop_jax._src.lowering.cse import Made


@dataclasses.dataclass(frozen=True, slots=True)
class PutTogether:
    """A stack that was put together: its parts, the operations that did it, the result."""

    parts: tuple[int, ...]
    operations: tuple[RawOperation, ...]
    whole: int


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Where the equations that are walked come from, beside what each of them says.

    Attributes:
      source: a line of the user's, for equations of programs that JAX traced elsewhere (in its own
        code, or once for several calls); "" where none is known.
      name_stack: what their name stacks stand in.
    """

    source: str = ""
    name_stack: str = ""

    def inside(self, eqn: Any) -> Caller:
        """That of the equations of an equation that calls."""
        info, name = eqn.source_info, eqn.primitive.name
        call = name if name in name_stacks.CHECKPOINTS else ""
        return Caller(
            jaxprs.source_of(info, self.source), self.stack(jaxprs.name_stack_of(info), call)
        )

    def stack(self, *inner: str) -> str:
        """A whole name stack, of those that stand one in the other."""
        return "/".join(filter(None, (self.name_stack, *inner)))


class Builder:
    """Collects values, storages and operations.

    Attributes:
      caller: what operations are emitted for.
      avals: the abstract value of each value number.
      storages: the storage of each value number (its own, or that of what it is a view of).
      offsets: where in its storage each value begins, in bytes.
      operations: in program order.
      constants: (value number, array) of arrays closed over.
      fixed_outside: storages that stay where they are: constants and inputs that are not donated.
      views: equations that make a view, see `passes.fused_kernel`.
      put_together: stacks of which the whole was needed, see `stacking`.
    """

    def __init__(self, cache: KernelCache, *, shares: bool):
        """`shares`: what is computed twice of the same operands is one value (see `cse`)."""
        self.cache = cache
        self.caller = Caller()
        self.avals: list[Any] = []
        self.storages: list[int] = []
        self.offsets: list[int] = []
        self.operations: list[RawOperation] = []
        self.constants: list[tuple[int, Any]] = []
        self.fixed_outside: set[int] = set()
        self._constant_numbers: dict[int, int] = {}
        self._index_numbers: dict[int, int] = {}
        self._shares = shares
        self._made = Made()
        self.views: dict[Any, list[Equation]] = {}
        self.put_together: list[PutTogether] = []

    @property
    def found_again(self) -> set[int]:
        """Values that were found where an operation was to be added."""
        return self._made.found_again

    def can_lie_in_pool(self, aval: Any) -> bool:
        """Whether the pool can hold a value of this dtype."""
        return arrays.dlpack_type(aval.dtype) is not None

    def is_part(self, number: int) -> bool:
        """Whether a value is only a part of its storage."""
        return cost_model.nbytes(self.avals[number]) != cost_model.nbytes(
            self.avals[self.storages[number]]
        )

    def new(self, aval: Any, view_of: int | None = None, at_bytes: int = 0) -> int:
        """The number of a new value, with a storage of its own if it is no view."""
        number = len(self.avals)
        self.avals.append(aval)
        self.storages.append(number if view_of is None else self.storages[view_of])
        self.offsets.append(at_bytes + (0 if view_of is None else self.offsets[view_of]))
        return number

    def constant(self, value: Any, aval: Any) -> int:
        """The number of an array that is closed over, of this abstract value."""
        number = self._constant_numbers.get(id(value))
        if number is None:
            number = self.new(aval)
            if isinstance(value, np.ndarray) and value.dtype != aval.dtype:
                value = np.asarray(value, aval.dtype)
            self.fixed_outside.add(self.storages[number])
            self._constant_numbers[id(value)] = number
            self.constants.append((number, value))
        return number

    def position(self, i: int) -> int:
        """The value number of a position along an axis."""
        if i not in self._index_numbers:
            position = np.asarray(i, np.int32)
            self._index_numbers[i] = self.constant(position, jaxprs.aval_of(position))
        return self._index_numbers[i]

    def emit(
        self,
        kernel: Kernel,
        operands: Sequence[int],
        source: str = "",
        name_stack: str = "",
        *,
        effectful: bool = False,
        anew: bool = False,
    ) -> list[int]:
        """Adds an operation; returns the numbers of its results.

        Where operations are fused those of one that is there already, if not `anew`.
        """
        sharing = self._shares and not (anew or effectful)
        if sharing and (found := self._made.find(kernel, operands)) is not None:
            return found
        results = [self.new(aval) for aval in kernel.out_avals]
        where = source or self.caller.source, self.caller.stack(name_stack)
        self.operations.append(
            RawOperation(kernel, tuple(operands), tuple(results), *where, effectful)
        )
        if sharing:
            self._made.note(kernel, operands, results)
        return results


class Walk(Builder, abc.ABC):
    """A builder that knows what equations, and parts of stacks, become."""

    @abc.abstractmethod
    def equation(self, eqn: Any, operands: list[Any]) -> Sequence[Any]:
        """The results of an equation, given numbers, literals, stacks or references."""

    @abc.abstractmethod
    def number(self, atom: Any) -> int:
        """The number of an operand, which a stack has once it is put together."""

    @abc.abstractmethod
    def part(self, atom: Any, i: int) -> Any:
        """The i-th slice along the leading axis."""
