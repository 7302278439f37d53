"""Segments: operations that follow each other, launched as one, each computed as if alone.

To launch an operation takes as long as some operations take themselves: XLA wakes its threads for
each and waits for them. A segment is one executable that calls its operations in order. XLA keeps
each call apart (see `compat.calls`), so an operation gives the same bits in whatever segment; what
only other members read never leaves the executable: it lies in XLA's temporary memory, or in the
pool, in blocks for it or where an operand lies that nothing reads any more (see `scratch_blocks`).
Unlike bundles (see `lowering.passes.launch_clustering`), segments may therefore be chosen by the
budget: the whole program where there is room, a few operations where values have to go and come
back.

That XLA did keep them apart is not taken for granted: `isolation_check` compares what it made of
each member with what it made of the operation alone. What buffers share is not compared: XLA lets a
kernel write over an operand only where both have one layout and each element is read before it is
written, by the same instructions.

Random keys are handled as their data, here as in executables.

Invariants: a segmented program computes the same values in the same order; what has effects or is
not recomputable is never a member.
Thread rule: functions of their arguments; segments live in the kernel cache. Cost: linear in
operations and their operands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat import calls, ffi
from coop_jax._src.execution import executable_cache
from coop_jax._src.ir import cost_model
from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.ir.program import Program
from coop_jax._src.segments import constants


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where a member finds an operand: a value of the segment, or a part of it, in a shape."""

    value: int
    shape: tuple[int, ...]
    dtype: Any
    begin: int  # in elements; -1: the value as it is


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """An operation of a segment, its operands; its results are the values that follow."""

    kernel: Kernel
    sources: tuple[Source, ...]


class Segment(Kernel):
    """Several kernels in order. Results that are scratch come last.

    Attributes:
      members: what it calls.
      given_up: operands that nothing reads any more after it, whose memory is scratch.
      block_bytes: of each block of scratch beside that.
      temporary_bytes: an estimate of what its members hand on to each other beside that, at most at
        once.
      in_order: whether members keep their order, but for neighbours. XLA goes breadth first where
        it may, and takes for one what is computed twice of the same operands; where memory is short
        neither will do.
    """

    __slots__ = ("block_bytes", "given_up", "in_order", "members", "temporary_bytes")

    def __init__(
        self,
        key: Any,
        members: Sequence[Member],
        outputs: Sequence[int],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        profile: cost_model.DeviceProfile,
        temporary_bytes: int,
        given_up: Sequence[int],
        block_bytes: Sequence[int],
        *,
        in_order: bool,
    ):
        super().__init__(key, (), outputs, in_avals, out_avals, profile, 0, ())
        kernels = [m.kernel for m in members]
        self.members = tuple(members)
        self.given_up = tuple(given_up)
        self.block_bytes = tuple(block_bytes)
        self.in_order = in_order
        self.temporary_bytes = temporary_bytes
        self.is_group = True
        self.touches_part = False
        self.flops = sum(k.flops for k in kernels)
        self.moved_bytes = sum(k.moved_bytes for k in kernels)
        self.cost_seconds = sum(k.cost_seconds for k in kernels) - profile.launch_seconds * (
            len(kernels) - 1
        )
        self.label = f"{kernels[0].label}...{kernels[-1].label} ({len(kernels)} operations)"

    def __call__(self, *operands: Any) -> list[Any]:
        values, at_once = list(operands), constants.TUNED.max_concurrent_members
        firsts: list[Any] = []  # of what each member made
        for number, member in enumerate(self.members):
            ins = [_read(values[s.value], s) for s in member.sources]
            waits = self.in_order and number >= at_once
            before = firsts[number - at_once :][:1] if waits else ()
            made = calls.apart(member.kernel.called, ins, str(number), before)
            values += made
            firsts.append(made[0])
        results = [values[k] for k in self.outputs]
        return results + ffi.scratch(results, self.out_avals[len(results) :])

    called = __call__


def _read(value: Any, source: Source) -> Any:
    if source.begin >= 0:
        size = int(np.prod(source.shape))
        value = jax.lax.slice(value.reshape(-1), (source.begin,), (source.begin + size,))
    if value.shape != source.shape:
        value = value.reshape(source.shape)
    if value.dtype != source.dtype:
        value = jax.lax.bitcast_convert_type(value, source.dtype)
    return value


def may_be_member(kernel: Kernel) -> bool:
    """Whether an operation may run in a segment at all."""
    return kernel.recomputable and not kernel.stands_apart


def workspace_bytes(kernel: Kernel) -> int:
    """What an operation needs of XLA's temporary memory, as far as it is compiled."""
    return max((e.workspace_bytes for e in executable_cache.executables(kernel)), default=0)


def library_bytes(kernel: Kernel) -> int:
    """What libraries take of it, which is never in the pool; before it is compiled an estimate."""
    executables = executable_cache.executables(kernel)
    if isinstance(kernel, Segment) and not executables:
        return max(library_bytes(m.kernel) for m in kernel.members)
    return max((e.library_bytes for e in executables), default=0)


def handed_on_bytes(kernel: Kernel) -> int:
    """What it needs of memory that XLA gives; before it is compiled an estimate."""
    if isinstance(kernel, Segment) and not executable_cache.executables(kernel):
        return kernel.temporary_bytes
    return workspace_bytes(kernel) - library_bytes(kernel)


def temporaries(kernel: Kernel) -> list[int]:
    """Buffers of an operation's workspace, of the form that needs most."""
    forms = executable_cache.executables(kernel)
    return max(forms, key=lambda e: e.workspace_bytes).temporaries() if forms else []


def temporary_bytes(program: Program) -> list[int]:
    """Each operation's workspace in a segmented program, an estimate of what is not compiled."""
    return [handed_on_bytes(op.kernel) + library_bytes(op.kernel) for op in program.operations]
