"""From what JAX traced to programs that fit: whole loops, plans for XLA's memory.

Loops, branches and what works over devices stay one operation each, as do the user's checkpoints
where they are to be respected. XLA launches nothing between operations, so each costs its work
alone.

Thread rule: a `ProgramPlanner` belongs to one thread.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.ir import cost_model, primitives
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Operation, Program
from coop_jax._src.jit.local_sizes import localized, share_of, work_share
from coop_jax._src.jit.loops import Lowering, workspace_bytes
from coop_jax._src.jit.residual_rewrite import with_choices
from coop_jax._src.jit.residuals import Choices, pairs_of
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.planning import planner, policies
from coop_jax._src.planning.planner import PlanSettings, WorkspacePlanner
from coop_jax._src.planning.policies import Policy
from coop_jax._src.planning.rematerialized import Unrolled, unrolled

# What scans may stack of the bytes that they do without a plan: in so many steps. Of what fits, so
# many that stack most are compared.
_SHARES = 60
_NEIGHBOURS = 3

# The least capacity is found to such a part of the largest.
_LEAST_STEPS = 400

_CHECKPOINTS = frozenset(("checkpoint", "remat2", "remat_call"))


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedProgram:
    """A plan as a program.

    Attributes:
      capacity_bytes: what it was planned for.
      predicted_bytes: the most that is alive at one time.
      program: what was planned: what JAX traced, with what its scans stack.
      remade: the same with its recomputations.
      recompute_share: the estimated part of the time that is spent on computing again.
    """

    capacity_bytes: int
    predicted_bytes: int
    program: Program
    remade: Unrolled
    recompute_share: float


class ProgramPlanner:
    """Plans of one traced function at any capacity.

    Args:
      jaxpr: what JAX traced, with its constants.
      donated: for each input whether it is donated.
      device: where it will run.
      profile: of that device; what costs are.
      policy: how to plan.
      respect_checkpoints: whether what `jax.checkpoint` encloses stays as the user has it.
      compile: compiles a function of the same inputs and outputs for all devices, where there are
        several; None for one.

    Raises:
      NotImplementedError: the program reads or writes mutable arrays.
    """

    def __init__(
        self,
        jaxpr: Any,
        donated: Sequence[bool],
        device: jax.Device,
        profile: cost_model.DeviceProfile,
        policy: Policy,
        *,
        respect_checkpoints: bool,
        compile: Callable[[Callable[..., list[Any]]], Any] | None,
    ):
        opaque = primitives.CONTROL_FLOW | primitives.UNSUPPORTED
        if respect_checkpoints:
            opaque |= _CHECKPOINTS
        self._settings = PlanSettings(policy, profile.alignment_bytes, profile)
        passes = PassOptions.from_environment()
        if compile is not None:  # they do not know where what they make would lie
            passes = dataclasses.replace(
                passes, rearrangement_sinking=False, transpose_folding=False
            )
        cache = KernelCache(device, keeps_shardings=compile is not None)
        lowering = Lowering(cache, opaque, self._settings, passes)
        program = lowering.program(jaxpr, tuple(donated))
        if compile is not None:
            program = localized(program, compile)
        self._family = _Family(program, lowering)

    def plan(self, capacity_bytes: int) -> PlannedProgram | None:
        """The best plan that is alive in so many bytes; None if there is none."""
        variant = self._family.best(self._settings, capacity_bytes)
        if variant is None:
            return None
        plan = variant.plan(self._settings, capacity_bytes)
        if not plan.feasible:
            return None
        return PlannedProgram(
            capacity_bytes,
            planner.peak_bytes(plan.stats),
            variant.program,
            unrolled(variant.program, plan),
            variant.seconds(plan) / max(variant.all_seconds + variant.seconds(plan), 1e-30),
        )

    def least_capacity(self) -> int:
        """The least capacity with a plan, to some tenths of a percent of the largest."""
        return self._family.smallest().least_capacity(self._settings)


class _Variant:
    """A program of those that compute the same: other stacks, other plans."""

    def __init__(self, program: Program, again_seconds: float, lowering: Lowering):
        self.program = program
        self._again_seconds = again_seconds  # in loops, whatever is planned
        whole = planner.work_seconds(program, lowering.settings.profile)
        self._work = [
            seconds * work_share(program, op)
            for seconds, op in zip(whole, program.operations, strict=True)
        ]
        self._residency = planner.first_residency(program)
        self._needed = [_workspace_bytes(program, op, lowering) for op in program.operations]
        self.all_seconds = sum(self._work) - again_seconds

    def plan(self, settings: PlanSettings, capacity_bytes: int) -> _core.Plan:
        return self._planner(capacity_bytes).plan(settings, self._needed)[0]

    def seconds(self, plan: _core.Plan) -> float:
        """What is computed again takes so long, by estimate."""
        return float(plan.stats.recompute_seconds) + self._again_seconds

    def least_capacity(self, settings: PlanSettings) -> int:
        plain = dataclasses.replace(settings, policy=policies.without_search(settings.policy))
        high = planner.peak_bytes(self.plan(plain, planner.UNLIMITED_BYTES).stats)
        low, resolution = 0, max(1, high // _LEAST_STEPS)
        while high - low > resolution:
            middle = (low + high) // 2
            if self.plan(plain, middle).feasible:
                high = middle
            else:
                low = middle
        return high

    def _planner(self, capacity_bytes: int) -> WorkspacePlanner:
        return WorkspacePlanner(
            self.program,
            lambda way: planner.core_program(
                self.program, self._residency.donated, self._work, way
            ),
            self._residency,
            capacity_bytes,
            0,
        )


def _workspace_bytes(program: Program, op: Operation, lowering: Lowering) -> int:
    """On one device."""
    nbytes = workspace_bytes(op.kernel, lowering)
    storages = {program.values[v].storage for v in (*op.operands, *op.results)}
    return int(nbytes * share_of(program, storages)) if nbytes else 0


class _Family:
    """A program with more or less stacked by its scans; made as far as asked for."""

    def __init__(self, program: Program, lowering: Lowering):
        self._lowering = lowering
        self._program = program
        choices = [Choices(pair, lowering) for pair in pairs_of(program, lowering)]
        self._pairs = [c.pair for c in choices]
        shares = [1 - k / _SHARES for k in range(_SHARES + 1)]
        stacked = [c.cheapest([int(share * c.most_bytes) for share in shares]) for c in choices]
        # The most stacked first; nothing is chosen for the program as it is.
        self._chosen = list(dict.fromkeys([(), *zip(*stacked, strict=True)]))
        self._made: dict[int, _Variant] = {}

    def best(self, settings: PlanSettings, capacity_bytes: int) -> _Variant | None:
        """The one whose plan computes least again; None if none fits.

        The more is stacked, the less fits; where hardly all fits, other values have to go instead,
        so what stacks a little less is looked at, too.
        """
        if len(self._chosen) == 1:
            return self._variant(0)
        plain = dataclasses.replace(settings, policy=policies.without_search(settings.policy))

        @functools.cache
        def seconds(number: int) -> float:
            variant = self._variant(number)
            plan = variant.plan(plain, capacity_bytes)
            return variant.seconds(plan) if plan.feasible else math.inf

        fits = range(len(self._chosen))
        first = bisect.bisect_left(fits, True, key=lambda k: seconds(k) < math.inf)
        tried = range(first, min(first + _NEIGHBOURS, len(self._chosen)))
        return self._variant(min(tried, key=seconds)) if tried else None

    def smallest(self) -> _Variant:
        """The one that stacks least."""
        return self._variant(len(self._chosen) - 1)

    def _variant(self, number: int) -> _Variant:
        if number not in self._made:
            chosen = self._chosen[number]
            program, seconds = self._program, sum(choice.seconds for choice in chosen)
            if chosen:
                pairs = list(zip(self._pairs, chosen, strict=True))
                program = with_choices(self._program, pairs, self._lowering)
            self._made[number] = _Variant(program, seconds, self._lowering)
        return self._made[number]
