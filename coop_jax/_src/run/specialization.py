"""What `run` keeps for each signature of arguments: the program, its plans, how it is run."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import jax

from coop_jax import _core
from coop_jax._src.compat import arrays, transfers
from coop_jax._src.compat import refs as compat_refs
from coop_jax._src.compat.key_reuse import ProgramUses, uses_of
from coop_jax._src.execution.compilation import Wanted, compile_gradually
from coop_jax._src.execution.fitting import compiled_workspaces, first_forms
from coop_jax._src.execution.instructions import CompiledPlan
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir import kernels, primitives
from coop_jax._src.ir.program import Program
from coop_jax._src.ir.raw_operations import DynamicControlFlow
from coop_jax._src.lowering.build import build_program
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.planning import planner
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.planning.recorded_calls import Lesson
from coop_jax._src.planning.rematerialized import Unrolled
from coop_jax._src.planning.settling import InputPlaces
from coop_jax._src.planning.workspace import Provision
from coop_jax._src.run import advice
from coop_jax._src.run.argument_passing import InputKinds, Inputs, constants_on, input_kinds
from coop_jax._src.run.call_trees import CallTrees
from coop_jax._src.util import progress
from coop_jax._src.util.call_arguments import donated_names
from coop_jax._src.util.calling_convention import Convention, Fixed
from coop_jax._src.util.incremental_work import GradualWork, Pieces

# Calls in one form: the first ones compile and plan; after so many it is known what they take.
_UNTIL_SETTLED, _JUDGED_AFTER = 3, 10


@dataclasses.dataclass(slots=True)
class Tier:
    """How often a signature was called, and what was made of it since.

    Attributes:
      calls: so far.
      first_seconds: what the first one took, compiling included.
      settled: whether nothing is to be tried any more.
      preparing: the search for segments, which goes on during calls.
      segmented: the signature with segments, if they are better.
      together: calls in segments so far.
      least_alone, least_together: what the shortest call took in single operations, in segments.
      doubted: segments that seemed slower, while single operations are measured once more: the
        machine may have been slower meanwhile.
      again: calls in single operations since.
    """

    calls: int = 0
    first_seconds: float = 0.0
    settled: bool = False
    preparing: GradualWork[Signature | None] | None = None
    segmented: Signature | None = None
    together: int = 0
    least_alone: float = math.inf
    least_together: float = math.inf
    doubted: Signature | None = None
    again: int = 0

    def ran(self, seconds: float) -> None:
        """Notes a call; segments that turn out to be slower are given up."""
        self.calls += 1
        if self.segmented is not None:
            self.together += 1
            if self.together > _UNTIL_SETTLED:
                self.least_together = min(self.least_together, seconds)
            if self.together == _JUDGED_AFTER and self.least_together > self.least_alone:
                self.doubted, self.segmented = self.segmented, None
                self.least_alone = math.inf
        elif self.calls == 1:
            self.first_seconds = seconds
        elif self.doubted is None:
            self.least_alone = min(self.least_alone, seconds)
        else:
            self.again += 1
            if self.again > _UNTIL_SETTLED:
                self.least_alone = min(self.least_alone, seconds)
            if self.again == _JUDGED_AFTER:
                if self.least_together <= self.least_alone:
                    self.segmented = self.doubted
                self.doubted = None

    def give_up(self) -> None:
        """Back to single operations for good."""
        self.settled, self.preparing, self.segmented = True, None, None


class Repeats(Protocol):
    """What repeats calls of a signature that find everything as before; `fast_path` has it."""

    def fit(self, inputs: Inputs) -> bool:
        """Whether these inputs came from where they did in these calls."""

    def add(self, residency: Residency, plan: CompiledPlan, wrapped: Sequence[int]) -> None:
        """Notes a call by plan, and which of its results were wrapped."""

    def repeat(
        self, signature: Signature, form: Signature, leaves: list[Any], trees: CallTrees
    ) -> Any:
        """Carries out a call if it is like one of them."""


@dataclasses.dataclass(slots=True)
class Signature:
    """Everything that depends on the shapes of the arguments only."""

    jaxpr: Any
    out_tree: Any
    out_avals: list[Any]
    donated: tuple[bool, ...]
    donated_names: tuple[str, ...]  # of inputs that the caller donates; "" for the others
    kinds: InputKinds
    program: Program | None  # None: it branches or loops on values, so its order is not known
    constants: list[jax.Array]
    engine_programs: dict[tuple[tuple[bool, ...], Provision | None], _core.Program]
    plans: collections.OrderedDict[Hashable, CompiledPlan]
    planned: int  # how many were made, those that are not kept any more included
    workspaces: list[int] | None  # of each operation in bytes, once they are compiled
    refs: list[Any]  # references that the function closes over: the last inputs
    has_refs: bool  # whether any input is a reference
    tier: Tier
    lesson: Lesson | None = None  # of calls that branch or loop on values
    unrolled: Unrolled | None = None  # of whose plan the program is what it is, in segments
    warned: bool = False  # that donated arguments are kept
    known: Repeats | None = None  # those that need not be looked at closely again
    # Where inputs lay, of all signatures of the function.
    places: InputPlaces = dataclasses.field(default_factory=InputPlaces)
    key_uses: ProgramUses | None = None  # where JAX looks for random keys that are used twice


def traced_signature(
    convention: Convention,
    static: Fixed,
    leaves: Sequence[Any],
    tree: Any,
    donated: Sequence[bool],
    device: jax.Device,
    *,
    fusion: bool,
    passes: PassOptions,
) -> Signature:
    """The signature of a call that was not made yet, from tracing its function.

    Args:
      convention: of the function.
      static: the call's static arguments.
      leaves: of the others.
      tree: their structure.
      donated: which leaves are.
      device: where it will run.
      fusion: whether operations are fused, as for `run`.
      passes: which passes take place.

    Raises:
      What `jax.jit` raises where it traces; ValueError, NotImplementedError: the program cannot
        run here.
    """
    jaxpr, constants, out_tree = convention.trace(static, leaves, tree)
    key_uses = uses_of(jaxpr, constants)
    transfers.check_places(constants, device)
    primitives.check_program(jaxpr)
    jaxpr, constants, refs = compat_refs.hoisted(jaxpr, constants)
    named = [d and not compat_refs.is_ref(x) for d, x in zip(donated, leaves, strict=True)]
    names = donated_names(tree, leaves, named) + ("",) * len(refs)
    # A reference owns its contents, so they are replaced where they are.
    owned = [d or compat_refs.is_ref(x) for d, x in zip(donated, leaves, strict=True)]
    owned += [True] * len(refs)
    program: Program | None
    try:
        cache = kernels.cache_for(device)
        program = build_program(jaxpr, constants, tuple(owned), cache, fusion=fusion, passes=passes)
        constants = [arrays.stored(c) for _, c in program.constants]
    except DynamicControlFlow:
        program = None
    return Signature(
        jaxpr=jaxpr,
        out_tree=out_tree,
        out_avals=[v.aval for v in jaxpr.outvars],
        donated=tuple(owned),
        donated_names=names,
        kinds=input_kinds([v.aval for v in jaxpr.invars], owned, program),
        program=program,
        constants=constants_on(constants, device),
        engine_programs={},
        plans=collections.OrderedDict(),
        planned=0,
        workspaces=None,
        refs=refs,
        has_refs=bool(refs) or any(map(compat_refs.is_ref, leaves)),
        tier=Tier(settled=not fusion),  # what is not fused stays one primitive at a time
        key_uses=key_uses,
    )


def engine_program_of(
    signature: Signature,
    program: Program,
    donated: tuple[bool, ...],
    provision: Provision | None = None,
) -> _core.Program:
    """The engine's view of the program, made on first use."""
    if provision is not None and not provision.own_bytes:
        provision = None
    found = signature.engine_programs.get((donated, provision))
    if found is None:
        found = planner.core_program(program, donated, provision=provision)
        signature.engine_programs[donated, provision] = found
    return found


def planner_of(
    runtime: Runtime,
    signature: Signature,
    program: Program,
    residency: Residency,
    capacity_bytes: int | None = None,
) -> planner.WorkspacePlanner:
    """What plans a call of the program in the runtime, or in one of another capacity."""
    return planner.WorkspacePlanner(
        program,
        lambda way: engine_program_of(signature, program, residency.donated, way),
        residency,
        runtime.capacity_bytes() if capacity_bytes is None else capacity_bytes,
        runtime.workspace_bytes,
    )


def compile_all(signature: Signature, program: Program, runtime: Runtime) -> list[int]:
    """Compiles every operation as it runs first; returns the workspace of each in bytes."""
    if signature.workspaces is None:
        wanted = _wanted_by(program, runtime)
        with progress.shown(runtime.progress):
            signature.workspaces = compiled_workspaces(wanted, runtime.device, runtime.cache)
    assert signature.workspaces is not None
    return signature.workspaces


def compile_all_gradually(signature: Signature, program: Program, runtime: Runtime) -> Pieces[None]:
    """The same in pieces, while calls go on; then the signature knows its workspaces."""
    wanted = _wanted_by(program, runtime)
    yield from compile_gradually(wanted, runtime.device, runtime.cache)
    signature.workspaces = compiled_workspaces(wanted, runtime.device, runtime.cache)


def _wanted_by(program: Program, runtime: Runtime) -> list[Wanted]:
    return first_forms(program, runtime.device, in_place=runtime.policy.in_place)


def is_donatable(signature: Signature) -> bool:
    """Whether an argument that is not donated could be, in favour of a result."""
    inputs = [v.aval for v in signature.jaxpr.invars]
    return advice.is_donatable(inputs, signature.donated, signature.out_avals)
