"""Fusion: which operations run as one, so that XLA compiles them together.

Model: an operation is absorbed by those that read its results: it then runs inside each of them,
and its results are never stored. So a fused operation has one sink, the last of its members, and
runs where the sink did. What is stored is what it would be without fusion, less what was absorbed;
a recomputation of a fused operation computes nothing that nobody asked for.

An operation is absorbed where that costs the planner nothing:
  * all that read its results take it; several only if it is cheap to compute several times;
  * at most one member is heavy (a matrix product, a convolution, random bits), and what goes into
    that one is not absorbed with it, as XLA would have to lay it out in memory of its own;
  * what lives longer for it is no more than what need not be stored: nothing that a plan could have
    dropped is kept alive by fusion;
  * what XLA has to store inside is no larger than what the sink writes.
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
from typing import TYPE_CHECKING, Any

import jax

from coop_jax._src import costs, primitives, switches
from coop_jax._src.compat import jaxprs
from coop_jax._src.equations import Equation, KernelBuilder
from coop_jax._src.kernels import Kernel, KernelCache

if TYPE_CHECKING:
    from coop_jax._src.flattening import Flattener, RawOperation

# Of a fused operation: more take XLA long to compile, and gain nothing.
_EQUATIONS = 96
_OPERANDS = 48

# An operation that is not absorbed by this many readers or fewer is run by itself: what it computes
# is read from memory then, which costs about as much as to compute it.
_COPIES = 8

# What XLA may have to store inside an operation whatever its sink writes.
_INSIDE_BYTES = 1 << 16

# So much may live longer whatever it saves; so far back is looked for what can be absorbed, too.
_SLACK_BYTES = 1 << 12
_LOOK_BACK = 6

_HEAVY = frozenset(("dot_general", "conv_general_dilated", "random_bits", "threefry2x32"))

# Loops that XLA fuses with others, and that cost about as much as reading what they compute.
_CHEAP = frozenset(
    """
    add add_any sub mul neg max min abs sign square and or xor not select_n clamp eq ne lt le gt ge
    floor ceil round is_finite convert_element_type broadcast_in_dim reshape squeeze expand_dims
    transpose iota slice rev copy copy_p stop_gradient real imag conj integer_pow
    shift_left shift_right_logical shift_right_arithmetic reduce_precision bitcast_convert_type
    """.split()
)
_REDUCTIONS = frozenset(
    """
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin
    """.split()
)
_LOOPS = _CHEAP | _REDUCTIONS | primitives.ELEMENTWISE | {"pad", "concatenate"}


@dataclasses.dataclass(slots=True)
class _Sink:
    """A fused operation in the making: the numbers of its members, last first."""

    members: list[int]
    heavy: int  # the member that is, or -1
    leads_in: set[int]  # members that the heavy one depends on, and it
    equations: int
    first: int  # all operations from here to the sink are members of it alone
    stored_bytes: int  # of the largest result


def is_default() -> bool:
    """Whether COOP_JAX_FUSION asks for fusion wherever nothing else is said."""
    return switches.is_on("COOP_JAX_FUSION")


def fuse(
    operations: Sequence[RawOperation], flattener: Flattener, outputs: Sequence[int]
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
    made = []
    for number in range(len(operations)):
        sink = grouping.sinks.get(number)
        if sink is not None:
            made.append(_merged([operations[m] for m in sorted(sink.members)], flattener, outputs))
    return made


class _Grouping:
    """Decides, from the last operation to the first, which sinks each belongs to."""

    def __init__(
        self, operations: Sequence[RawOperation], flattener: Flattener, outputs: Sequence[int]
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
                sink.leads_in.add(number)
        for value in op.operands:
            storage = self.storage_of[value]
            self.last_read[storage] = max(self.last_read[storage], sinks[-1])

    def _start(self, op: RawOperation, number: int) -> None:
        heavy = not is_loop(op.kernel)
        self.sinks_of[number] = (number,)
        self.sinks[number] = _Sink(
            members=[number],
            heavy=number if heavy else -1,
            leads_in={number} if heavy else set(),
            equations=len(op.kernel.equations),
            first=number,
            stored_bytes=max((self._nbytes(v) for v in op.results), default=0),
        )

    def _nbytes(self, value: int) -> int:
        return costs.nbytes(self.avals[value])

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
        if not all(e.primitive.name in _CHEAP for e in op.kernel.equations):
            return False
        read, written = self._traffic(op)
        return len(sinks) <= _COPIES or 2 * read <= written

    def _traffic(self, op: RawOperation) -> tuple[int, int]:
        return sum(map(self._nbytes, op.operands)), sum(map(self._nbytes, op.results))

    def _takes(self, sink: _Sink, op: RawOperation, heavy: bool, readers: set[int]) -> bool:
        if not self._accepts_any(sink) or (heavy and sink.heavy >= 0):
            return False
        if sink.equations + len(op.kernel.equations) > _EQUATIONS:
            return False
        if any(n in sink.leads_in for n in readers):
            return False
        inside = sum(n in sink.members for n in readers)
        nbytes = max(map(self._nbytes, op.results))
        must_store = heavy or inside > 1 or not is_cheap(op.kernel)
        if must_store and nbytes > max(sink.stored_bytes, _INSIDE_BYTES):
            return False
        operands = {v for m in sink.members for v in self.operations[m].operands}
        return len(operands | set(op.operands)) <= _OPERANDS

    def _accepts_any(self, sink: _Sink) -> bool:
        last = self.operations[sink.members[0]]
        return not last.effectful and (is_loop(last.kernel) or is_heavy(last.kernel))

    def _keeps_lifetimes(self, op: RawOperation, number: int, sinks: tuple[int, ...]) -> bool:
        """Whether no more bytes are alive between the operation and its last sink than before."""
        if len(sinks) == 1 and self.sinks[sinks[0]].first == number + 1:
            return True  # nothing else runs in between
        longer = self._longer(number, sinks[-1], _LOOK_BACK)
        shorter = sum(map(self._nbytes, op.results))
        return longer <= max(shorter, _SLACK_BYTES) if len(sinks) == 1 else longer < shorter

    def _longer(self, number: int, last: int, steps: int) -> int:
        """Bytes that live longer if an operation runs as late as `last`.

        An operand that can be absorbed, too, costs no more than what it is made from.
        """
        return sum(
            self._operand_longer(storage, number, last, steps)
            for storage in {self.storage_of[v] for v in self.operations[number].operands}
        )

    def _operand_longer(self, storage: int, number: int, last: int, steps: int) -> int:
        if storage in self.lives_on or self._read_by_others(storage, number) >= last:
            return 0
        maker = self.maker.get(storage, -1)
        if maker < 0 or steps == 0 or storage in self.parts:
            return self._nbytes(storage)
        kernel = self.operations[maker].kernel
        copied = len(self.readers[storage]) > 1
        if not is_loop(kernel) or (copied and not is_cheap(kernel)):
            return self._nbytes(storage)
        return min(self._nbytes(storage), self._longer(maker, last, steps - 1))

    def _read_by_others(self, storage: int, number: int) -> int:
        last = self.last_read[storage]
        if last != number:
            return last
        others = [max(self.sinks_of[n] or (n,)) for n in self.readers[storage] if n != number]
        return max(others, default=-1)


def may_be_absorbed(op: RawOperation) -> bool:
    """Whether an operation can run inside others."""
    return not op.effectful and is_loop(op.kernel)


def is_heavy(kernel: Kernel) -> bool:
    """Whether a kernel is a matrix product or something like it, which others may follow."""
    names = [e.primitive.name for e in kernel.equations]
    return (
        sum(name in _HEAVY for name in names) == 1
        and all(name in _HEAVY or name in _LOOPS for name in names)
        and not kernel.touches_part
    )


def is_loop(kernel: Kernel) -> bool:
    """Whether XLA can fuse all of a kernel with others."""
    return (
        all(e.primitive.name in _LOOPS for e in kernel.equations)
        and kernel.recomputable
        and not kernel.touches_part
    )


def is_cheap(kernel: Kernel) -> bool:
    """Whether XLA computes a kernel again where it is read, rather than store it."""
    return all(e.primitive.name in _CHEAP for e in kernel.equations)


def _merged(
    members: Sequence[RawOperation], flattener: Flattener, outputs: Sequence[int]
) -> RawOperation:
    """One operation of several; the last is their sink."""
    sink = members[-1]
    if len(members) == 1:
        return sink
    merger = _Merger(flattener)
    for op in members:
        merger.find_operands(op)
    for op in members:
        merger.add(op)
    wanted = {flattener.storages[v] for v in outputs}
    results = [r for op in members[:-1] for r in op.results if flattener.storages[r] in wanted]
    if results:  # in the order in which the program returns them, which is often that of its inputs
        order = {flattener.storages[v]: k for k, v in reversed(list(enumerate(outputs)))}
        results = sorted([*results, *sink.results], key=lambda r: order[flattener.storages[r]])
    else:
        results = list(sink.results)
    named = next((op for op in members if is_heavy(op.kernel)), sink)
    kernel = merger.kernel(flattener.cache, results)
    return dataclasses.replace(
        sink,
        kernel=kernel,
        operands=tuple(merger.operands),
        results=tuple(results),
        source=named.source,
        name_stack=named.name_stack,
    )


class _Merger:
    """Writes the equations of several kernels into one."""

    def __init__(self, flattener: Flattener):
        self.flattener = flattener
        self.operands: list[int] = []
        self._made: set[int] = set()  # storages
        self._local: dict[int, int] = {}
        self._builder: Any = None
        self._equations: list[Equation] = []
        self._next = 0

    def find_operands(self, op: RawOperation) -> None:
        """Notes what an operation reads from outside."""
        for value in op.operands:
            if self.flattener.storages[value] not in self._made and value not in self._local:
                self._local[value] = len(self.operands)
                self.operands.append(value)
        self._made.update(self.flattener.storages[v] for v in op.results)
        self._next = len(self.operands)

    def add(self, op: RawOperation) -> None:
        """Adds an operation, after all that it reads from."""
        kernel = op.kernel
        local = {n: self._read(v) for n, v in enumerate(op.operands)}
        for e in kernel.equations:
            operands = tuple(local[x] if isinstance(x, int) else x for x in e.operands)
            results = tuple(range(self._next, self._next + len(e.results)))
            self._next += len(results)
            local.update(zip(e.results, results, strict=True))
            self._equations.append(dataclasses.replace(e, operands=operands, results=results))
        for value, number in zip(op.results, kernel.outputs, strict=True):
            self._local[value] = local[number]

    def _read(self, value: int) -> int:
        found = self._local.get(value)
        if found is None:  # a view of what an earlier member made
            found = self._view(self._local[self.flattener.storages[value]], value)
            self._local[value] = found
        return found

    def _view(self, whole: int, value: int) -> int:
        avals, storage = self.flattener.avals, self.flattener.storages[value]
        for e in view_equations(avals[storage], avals[value]):
            operands = tuple(whole if isinstance(x, int) else x for x in e.operands)
            whole = self._next
            self._next += 1
            self._equations.append(dataclasses.replace(e, operands=operands, results=(whole,)))
        return whole

    def kernel(self, cache: KernelCache, results: Sequence[int]) -> Kernel:
        """The kernel that makes these values."""
        avals = self.flattener.avals
        in_avals = [avals[v] for v in self.operands]
        return cache.kernel(
            self._equations,
            [self._local[v] for v in results],
            in_avals,
            [avals[v] for v in results],
            in_place_operands=_overwritable(self._equations, in_avals, [avals[v] for v in results]),
        )


def view_equations(whole: Any, part: Any) -> list[Equation]:
    """Equations of one operand and one result each that read a value as another shape."""

    def view(x: Any) -> Any:
        if x.dtype != part.dtype:
            x = jax.lax.bitcast_convert_type(x, part.dtype)
        return x.reshape(part.shape)

    jaxpr, constants = jaxprs.trace(lambda x: [view(x)], [jax.ShapeDtypeStruct(*_type(whole))])
    builder = KernelBuilder([whole])
    builder.inline(jaxpr, constants, [0])
    return builder.equations


def _type(aval: Any) -> tuple[Any, Any]:
    return aval.shape, aval.dtype


def _overwritable(
    equations: Sequence[Equation], in_avals: Sequence[Any], out_avals: Sequence[Any]
) -> tuple[int, ...]:
    """Operands that the first result may be written over: read element by element, if at all late.

    Where XLA would have to copy an operand first it says so in what it allocates, and that counts.
    """
    found = []
    for number, aval in enumerate(in_avals):
        if _type(aval) != _type(out_avals[0]):
            continue
        read_by = [e.primitive.name for e in equations if number in e.operands]
        if all(name in primitives.ELEMENTWISE or name in _REDUCTIONS for name in read_by):
            found.append(number)
    return tuple(found)
