"""What `run` keeps for each signature of arguments, and where arguments lie when a call begins."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src import kernels, planning
from coop_jax._src.arguments import flat_function as flat_function
from coop_jax._src.arguments import flatten_arguments as flatten_arguments
from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.compat import refs as compat_refs
from coop_jax._src.compiling import compile_together
from coop_jax._src.errors import BudgetExceededError
from coop_jax._src.instructions import CompiledPlan, copies_operands
from coop_jax._src.planning import ADOPT, FOREIGN, OUTSIDE, Residency
from coop_jax._src.program import Program
from coop_jax._src.runtime import Runtime

# Calls in segments: the first ones compile and plan; after so many it is known what they take.
_UNTIL_SETTLED, _JUDGED_AFTER = 3, 10


@dataclasses.dataclass(slots=True)
class Tier:
    """How often a signature was called, and what was made of it since.

    Attributes:
      calls: so far.
      first_seconds: what the first one took, compiling included.
      settled: whether nothing is to be tried any more.
      segmented: the signature with segments, if they are better.
      together: calls in segments so far.
      least_alone, least_together: what the shortest call took in single operations, in segments.
    """

    calls: int = 0
    first_seconds: float = 0.0
    settled: bool = False
    segmented: Signature | None = None
    together: int = 0
    least_alone: float = math.inf
    least_together: float = math.inf

    def ran(self, seconds: float) -> None:
        """Notes a call; segments that turn out to be slower are given up."""
        self.calls += 1
        if self.segmented is not None:
            self.together += 1
            if self.together > _UNTIL_SETTLED:
                self.least_together = min(self.least_together, seconds)
            if self.together == _JUDGED_AFTER and self.least_together > self.least_alone:
                self.give_up()
        elif self.calls == 1:
            self.first_seconds = seconds
        else:
            self.least_alone = min(self.least_alone, seconds)

    def give_up(self) -> None:
        """Back to single operations for good."""
        self.settled, self.segmented = True, None


@dataclasses.dataclass(slots=True)
class Signature:
    """Everything that depends on the shapes of the arguments only."""

    jaxpr: Any
    out_tree: Any
    out_avals: tuple[Any, ...]
    donated: tuple[bool, ...]
    program: Program | None  # None: it branches or loops on values, so its order is not known
    constants: list[jax.Array]
    engine_programs: dict[tuple[bool, ...], _core.Program]
    plans: collections.OrderedDict[Hashable, CompiledPlan]
    planned: int  # how many were made, those that are not kept any more included
    workspace_bytes: int
    refs: list[Any]  # references that the function closes over: the last inputs
    tier: Tier


def contents_of(refs: Sequence[Any]) -> list[jax.Array]:
    """What references hold.

    Raises:
      ValueError: one of them is there twice.
    """
    if len({id(r) for r in refs}) < len(refs):
        raise ValueError(
            "a mutable reference was passed twice, or passed and closed over: which of its versions"
            " is meant would depend on the order of execution"
        )
    return [compat_refs.contents(r) for r in refs]


def leaf_key(leaf: Any) -> Hashable:
    aval = jaxprs.aval_of(leaf)
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False), compat_refs.is_ref(leaf)


def as_array(value: Any, device: jax.Device) -> jax.Array:
    if not isinstance(value, jax.Array):
        value = jax.device_put(value, device)
    value = arrays.on_device(value, device)
    arrays.wait(value)
    if getattr(value, "weak_type", False):
        value = arrays.with_aval(
            value, weak_type=False, committed=False, shape=value.shape, dtype=value.dtype
        )
    return value  # type: ignore[no-any-return]


def engine_program_of(
    signature: Signature, program: Program, donated: tuple[bool, ...]
) -> _core.Program:
    found = signature.engine_programs.get(donated)
    if found is None:
        found = planning.core_program(program, donated)
        signature.engine_programs[donated] = found
    return found


def compile_all(signature: Signature, program: Program, runtime: Runtime) -> int:
    """Compiles every operation as it runs first; returns the largest workspace in bytes."""
    if signature.workspace_bytes < 0:
        device, cache = runtime.device, runtime._cache
        in_place = runtime.policy.in_place
        wanted = [
            (
                op.kernel,
                tuple(
                    kernels.OUTSIDE
                    if program.storages[program.values[r].storage].outside
                    else pair
                    if pair >= 0 and (in_place or copies_operands(op, device))
                    else kernels.SLOT
                    for r, pair in zip(op.results, op.in_place, strict=True)
                ),
                op.source,
            )
            for op in program.operations
        ]
        compile_together(wanted, device, cache)
        signature.workspace_bytes = max(
            (k.executable(modes, device, cache).workspace_bytes for k, modes, _ in wanted),
            default=0,
        )
    return signature.workspace_bytes


def residency_of(
    runtime: Runtime,
    program: Program,
    inputs: Sequence[jax.Array],
    places: Sequence[int | None],
) -> Residency:
    """Where the inputs lie, and which of them this call may dispose of.

    Memory that two inputs share (the same array twice, a view of one in the other), or that anybody
    else may read (another array, a NumPy view), is only read, whatever was donated. Of inputs that
    share a block of the pool the first stands for it; the others count as outside, which is safe.
    """
    memory = runtime.memory()
    count = collections.Counter(p for p in places if p is not None)
    offsets = [-1 if p is None else memory.pool.offset_of(p) for p in places]
    seen: set[int] = set()
    where, donated = [], []
    for number, (x, place, offset) in enumerate(zip(inputs, places, offsets, strict=True)):
        storage = program.storages[program.values[program.inputs[number]].storage]
        mine = program.donated[number] and not storage.outside
        mine = mine and place is not None and count[place] == 1
        if offset >= 0 and offset not in seen:
            seen.add(offset)
            alone = mine and memory.pool.live_count(offset) == 1
            where.append(FOREIGN)
            donated.append(bool(alone and arrays.drop_numpy_view(x)))
        else:
            where.append(ADOPT if mine and offset < 0 else OUTSIDE)
            donated.append(bool(mine and offset < 0))
            offsets[number] = -1
    others = tuple(b for b in memory.pool.live_blocks() if b[0] not in seen)
    return Residency(tuple(where), tuple(offsets), tuple(donated), others)


def separate(
    program: Program, inputs: Sequence[jax.Array], places: list[int | None]
) -> list[jax.Array]:
    """The inputs; of donated ones that share memory outside the pool, and are viewed, copies.

    A view is of memory in the pool. What is shared cannot be moved there; a copy can. `places` are
    where the inputs lie, and then where the copies do.
    """
    storages = [program.storages[program.values[v].storage] for v in program.inputs]
    viewed = [
        number
        for number, (storage, donated) in enumerate(zip(storages, program.donated, strict=True))
        if donated and not storage.outside and len(storage.values) > 1
    ]
    separated = list(inputs)
    if viewed:
        count = collections.Counter(p for p in places if p is not None)
        for number in viewed:
            place = places[number]
            if place is not None and count[place] > 1:
                separated[number] = inputs[number].copy()
                arrays.wait(separated[number])
                places[number] = place_of(separated[number])
    return separated


def place_of(x: jax.Array) -> int | None:
    """The address of an array's memory; None if it has none."""
    if x.size == 0 or not hasattr(x, "unsafe_buffer_pointer"):
        return None
    return arrays.address_of(x)


def delete_donated(
    program: Program,
    residency: Residency,
    inputs: Sequence[jax.Array],
    outputs: Sequence[jax.Array],
) -> None:
    """Donated arguments are gone after the call, whether their memory was used or not."""
    returned = {id(x) for x in outputs}
    for number, x in enumerate(inputs):
        if residency.donated[number] and id(x) not in returned and not x.is_deleted():
            x.delete()


def exceeded(
    runtime: Runtime,
    program: Program,
    engine_program: _core.Program,
    residency: Residency,
    plan: _core.Plan,
    workspace_bytes: int,
    *,
    fused: bool,
) -> BudgetExceededError:
    failure = plan.failure
    assert failure is not None
    index = plan.failed_operation
    operation, source = "placing the arguments and outputs", ""
    if 0 <= index < len(program.operations):
        op = program.operations[index]
        operation, source = f"operation '{op.kernel.label}'", op.source
    smallest = planning.smallest_budget(
        program,
        engine_program,
        residency,
        runtime._settings,
        workspace_bytes,
        runtime.capacity_bytes(),
    )
    return runtime.exceeded(failure, operation, source, smallest, fused=fused)
