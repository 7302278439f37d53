"""Fusion: which operations run as one, so that XLA compiles them together.

Model: an operation is absorbed by those that read its results: it then runs inside each of them,
and its results are never stored. So a fused operation has one sink, the last of its members, and
runs where the sink did. What is stored is what it would be without fusion, less what was absorbed;
a recomputation of a fused operation computes nothing that nobody asked for.

An operation is absorbed where that costs the planner nothing:
  * all that read its results take it; several only if it is cheap to compute several times;
  * at most one member is heavy (a matrix product, a convolution, random bits), and what goes into
    that one is not absorbed with it, as XLA would have to lay it out in memory of its own;
  * what lives longer for it is no more than what need not be stored, or does so for a few
    operations only: nothing that a plan could have dropped for long is kept alive by fusion;
  * no read of a donated array is moved past the operation that replaces it;
  * what XLA has to store inside is no larger than what the sink writes;
  * what is read at once stays within twice of what the most demanding single operation holds, so
    that small budgets still suffice.
Updates of a donated array are absorbed though they are results of the program: those of one
parameter (its moments, itself) run together.

Fused operations give the bits of the same fusion at every budget; they may differ in the last ones
from those of single operations, as XLA contracts products and sums within a loop.

Thread rule: functions of their arguments. Cost: linear in operations and their operands.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coop_jax._src.ir import cost_model
from coop_jax._src.ir.kernel_classes import is_cheap, is_heavy, is_loop, may_be_absorbed
from coop_jax._src.lowering import constants
from coop_jax._src.lowering.passes.fused_kernel import merged
from coop_jax._src.util import env

if TYPE_CHECKING:
    from coop_jax._src.ir.raw_operations import RawOperation
    from coop_jax._src.lowering.builder import Builder


@dataclasses.dataclass(slots=True)
class _Sink:
    """A fused operation in the making: the numbers of its members, last first."""

    members: list[int]
    heavy: int  # the member that is, or -1
    equations: int
    first: int  # all operations from here to the sink are members of it alone
    stored_bytes: int  # of the largest result


def is_default() -> bool:
    """Whether operations are fused wherever nothing is said: unless COOP_JAX_FUSION is 0."""
    return env.is_on("COOP_JAX_FUSION", default=True)


def fuse(
    operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
) -> list[RawOperation]:
    """Operations that compute the same, fused.

    Args:
      operations: in program order, all of them needed.
      flattener: whose values they are of.
      outputs: values that are results of the program.

    Returns:
      Operations in an order in which they can run.
    """
    grouping = _Grouping(operations, flattener, outputs)
    for number in reversed(range(len(operations))):
        grouping.place(number)
    returned = {flattener.storages[v]: k for k, v in reversed(list(enumerate(outputs)))}
    made = []
    for number in range(len(operations)):
        sink = grouping.sinks.get(number)
        if sink is not None:
            members = [operations[m] for m in sorted(sink.members)]
            made.append(merged(members, flattener, returned))
    return made


class _Grouping:
    """Decides, from the last operation to the first, which sinks each belongs to."""

    def __init__(
        self, operations: Sequence[RawOperation], flattener: Builder, outputs: Sequence[int]
    ):
        self.operations = operations
        self.storage_of = flattener.storages
        self.avals = flattener.avals
        self.offsets = flattener.offsets
        self.flattener = flattener
        self.sinks: dict[int, _Sink] = {}
        self.sinks_of: list[tuple[int, ...]] = [()] * len(operations)
        self.outputs = {self.storage_of[v] for v in outputs}
        self.readers: dict[int, list[int]] = collections.defaultdict(list)
        self.parts: set[int] = set()  # storages of which somebody reads a part
        for number, op in enumerate(operations):
            for value in op.operands:
                storage = self.storage_of[value]
                if not self.readers[storage] or self.readers[storage][-1] != number:
                    self.readers[storage].append(number)
                if self.offsets[value] or flattener.is_part(value):
                    self.parts.add(storage)
        # Where each storage is read last, sinks counted where they run.
        self.last_read = {s: max(numbers) for s, numbers in self.readers.items()}
        self.maker = {self.storage_of[v]: n for n, op in enumerate(operations) for v in op.results}
        self.most_at_once = constants.TUNED.fusion_max_memory_factor * max(
            (
                sum(map(self._nbytes, {self.storage_of[v] for v in (*op.operands, *op.results)}))
                for op in operations
            ),
            default=0,
        )
        self.lives_on = self.outputs | (flattener.fixed_outside - self.maker.keys())

    def place(self, number: int) -> None:
        """Decides on one operation; all that read its results are decided."""
        op = self.operations[number]
        readers = {n for v in op.results for n in self.readers[self.storage_of[v]]}
        sinks = tuple(sorted({s for n in readers for s in self.sinks_of[n]}))
        if not sinks or not self._may_be_absorbed(op, number, readers, sinks):
            self._start(op, number)
            return
        self.sinks_of[number] = sinks
        for s in sinks:
            sink = self.sinks[s]
            sink.members.append(number)
            sink.equations += len(op.kernel.equations)
            if len(sinks) == 1 and sink.first == number + 1:
                sink.first = number
            if is_heavy(op.kernel):
                sink.heavy = number
        for value in op.operands:
            storage = self.storage_of[value]
            self.last_read[storage] = max(self.last_read[storage], sinks[-1])

    def _start(self, op: RawOperation, number: int) -> None:
        heavy = not is_loop(op.kernel)
        self.sinks_of[number] = (number,)
        self.sinks[number] = _Sink(
            members=[number],
            heavy=number if heavy else -1,
            equations=len(op.kernel.equations),
            first=number,
            stored_bytes=max((self._nbytes(v) for v in op.results), default=0),
        )

    def _nbytes(self, value: int) -> int:
        return cost_model.nbytes(self.avals[value])

    def _may_be_absorbed(
        self, op: RawOperation, number: int, readers: set[int], sinks: tuple[int, ...]
    ) -> bool:
        kernel = op.kernel
        heavy = is_heavy(kernel)
        if op.effectful or not (heavy or may_be_absorbed(op)):
            return False
        if any(self.storage_of[v] in self.parts for v in op.results):
            return False
        if any(self.storage_of[v] in self.outputs for v in op.results) and not (
            len(sinks) == 1 and not heavy and self._belongs_to_update(op, sinks[0])
        ):
            return False
        if len(sinks) > 1 and not self._is_worth_copying(op, sinks):
            return False
        return all(
            self._takes(self.sinks[s], op, heavy, readers) for s in sinks
        ) and self._keeps_lifetimes(op, number, sinks)

    def _belongs_to_update(self, op: RawOperation, s: int) -> bool:
        """Whether an operation and a sink are parts of the update of one parameter."""
        sink = self.operations[s]
        if len(op.results) > 1 or len(sink.results) > 1 or self.sinks[s].heavy >= 0:
            return False
        first, last = op.results[0], sink.results[0]
        return self.storage_of[last] in self.outputs and bool(
            self.avals[first].shape == self.avals[last].shape
        )

    def _is_worth_copying(self, op: RawOperation, sinks: tuple[int, ...]) -> bool:
        if not is_cheap(op.kernel):
            return False
        read, written = self._traffic(op)
        return len(sinks) <= constants.TUNED.fusion_max_copies or 2 * read <= written

    def _traffic(self, op: RawOperation) -> tuple[int, int]:
        return sum(map(self._nbytes, op.operands)), sum(map(self._nbytes, op.results))

    def _takes(self, sink: _Sink, op: RawOperation, heavy: bool, readers: set[int]) -> bool:
        tuned = constants.TUNED
        if not self._accepts_any(sink) or (heavy and sink.heavy >= 0):
            return False
        if sink.equations + len(op.kernel.equations) > tuned.fusion_max_equations:
            return False
        if sink.heavy in readers:
            return False
        inside = sum(n in sink.members for n in readers)
        nbytes = max(map(self._nbytes, op.results))
        must_store = heavy or inside > 1 or not is_cheap(op.kernel)
        if must_store and nbytes > max(sink.stored_bytes, tuned.fusion_max_inside_bytes):
            return False
        members = [self.operations[m] for m in sink.members]
        made = {self.storage_of[v] for m in (op, *members) for v in m.results}
        read = {self.storage_of[v] for m in (op, *members) for v in m.operands} - made
        # Results of the program are assumed to take the place of what they replace.
        written = {self.storage_of[v] for v in members[0].results} - self.outputs
        at_once = sum(map(self._nbytes, read | written))
        return len(read) <= tuned.fusion_max_operands and at_once <= self.most_at_once

    def _accepts_any(self, sink: _Sink) -> bool:
        last = self.operations[sink.members[0]]
        return not last.effectful and (is_loop(last.kernel) or is_heavy(last.kernel))

    def _keeps_lifetimes(self, op: RawOperation, number: int, sinks: tuple[int, ...]) -> bool:
        """Whether no more bytes are alive between the operation and its last sink than before."""
        if len(sinks) == 1 and self.sinks[sinks[0]].first == number + 1:
            return True  # nothing else runs in between
        if self._outlasts_a_replacement(number, sinks[-1]):
            return False
        tuned, distance = constants.TUNED, sinks[-1] - number
        if distance <= tuned.fusion_near_operations and is_cheap(self.operations[number].kernel):
            return True
        longer = sum(map(self._nbytes, self._longer(number, sinks[-1], tuned.fusion_look_back)))
        shorter = sum(map(self._nbytes, op.results))
        if len(sinks) == 1:
            return longer <= max(shorter, tuned.fusion_slack_bytes)
        return longer < shorter or (longer == shorter and distance <= tuned.fusion_max_distance)

    def _outlasts_a_replacement(self, number: int, last: int) -> bool:
        """Whether a donated array would still be read after what replaces it was computed.

        That could not be written over it then: the new version would lie elsewhere at each step.
        """
        for storage in {self.storage_of[v] for v in self.operations[number].operands}:
            if storage in self.maker or storage in self.flattener.fixed_outside:
                continue
            for n in self.readers[storage]:
                results = {self.storage_of[v] for v in self.operations[n].results}
                if n > number and results & self.outputs and max(self.sinks_of[n]) < last:
                    return True
        return False

    def _longer(self, number: int, last: int, steps: int) -> set[int]:
        """Storages that live longer if an operation runs as late as `last`.

        An operand that can be absorbed, too, costs no more than what it is made from.
        """
        longer = set[int]()
        for storage in {self.storage_of[v] for v in self.operations[number].operands}:
            longer |= self._operand_longer(storage, number, last, steps)
        return longer

    def _operand_longer(self, storage: int, number: int, last: int, steps: int) -> set[int]:
        if storage in self.lives_on or self._read_by_others(storage, number) >= last:
            return set()
        itself = {storage}
        maker = self.maker.get(storage, -1)
        if maker < 0 or steps == 0 or storage in self.parts:
            return itself
        kernel = self.operations[maker].kernel
        copied = len(self.readers[storage]) > 1
        if not is_loop(kernel) or (copied and not is_cheap(kernel)):
            return itself
        made_from = self._longer(maker, last, steps - 1)
        # If they are as large, others may be made of the same.
        return itself if self._nbytes(storage) < sum(map(self._nbytes, made_from)) else made_from

    def _read_by_others(self, storage: int, number: int) -> int:
        last = self.last_read[storage]
        if last != number:
            return last
        others = [max(self.sinks_of[n] or (n,)) for n in self.readers[storage] if n != number]
        return max(others, default=-1)
