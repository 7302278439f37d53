"""From what JAX traced to programs that fit: whole loops, plans for XLA's memory.

Loops, branches and what works over devices stay one operation each, as do the user's checkpoints
where they are to be respected. XLA launches nothing between operations, so each costs its work
alone.

Thread rule: a `ProgramPlanner` belongs to one thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coop_jax._src.compat import jaxprs, refs
from coop_jax._src.ir import cost_model, primitives
from coop_jax._src.ir.kernels import KernelCache
from coop_jax._src.ir.program import Program
from coop_jax._src.jit.filled_scans import with_filled_scans
from coop_jax._src.jit.fillers import without_fillers_bytes
from coop_jax._src.jit.local_sizes import localized
from coop_jax._src.jit.loops import Lowering
from coop_jax._src.jit.program_family import Family, Planned
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.planning import planner
from coop_jax._src.planning.planner import PlanSettings
from coop_jax._src.planning.policies import Policy
from coop_jax._src.planning.rematerialized import Unrolled, unrolled

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

    @property
    def overhead(self) -> float:
        """Recompute seconds / compute seconds."""
        return self.recompute_share / max(1 - self.recompute_share, 1e-30)


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
        opened, _ = jaxprs.open_closed(jaxpr)
        if any(refs.is_ref_aval(v.aval) for v in (*opened.invars, *opened.constvars)):
            raise NotImplementedError(
                "coop_jax.jit cannot plan a function that reads or writes mutable references"
                " (jax.new_ref) that are its arguments or that it closes over. It runs where what"
                " jax.jit makes of it is within the budget; else pass arrays and return new ones."
            )
        opaque = primitives.CONTROL_FLOW | primitives.UNSUPPORTED
        if respect_checkpoints:
            opaque |= _CHECKPOINTS
        self._settings = PlanSettings(policy, profile.alignment_bytes, profile)
        passes = PassOptions.from_environment()
        if compile is not None:  # it does not know where what it makes would lie
            passes = dataclasses.replace(passes, transpose_folding=False)
        cache = KernelCache(device, keeps_shardings=compile is not None)
        lowering = Lowering(cache, opaque, self._settings, passes)
        program = with_filled_scans(lowering.program(jaxpr, tuple(donated)), lowering)
        program = without_fillers_bytes(program) if compile is None else localized(program, compile)
        self._family = Family(program, lowering)

    def plan(self, capacity_bytes: int) -> PlannedProgram | None:
        """The best plan that is alive in so many bytes; None if there is none."""
        found = self._family.plan(self._settings, capacity_bytes)
        if found is None:
            return None
        return PlannedProgram(
            capacity_bytes,
            planner.peak_bytes(found.plan.stats),
            found.program,
            unrolled(found.program, found.plan),
            found.again_seconds / max(found.seconds, 1e-30),
        )

    def predict(self, capacity_bytes: int) -> Planned:
        """What `plan` goes by, feasible or not."""
        return self._family.best(self._settings, capacity_bytes)

    def predict_plain(self) -> Planned:
        """What is expected of the program of `jax.jit`: nothing is computed again."""
        return self._family.as_it_is(self._settings)

    def expected_bytes(self) -> int:
        """What the program of `jax.jit` is expected to need, mostly less than it does."""
        return planner.peak_bytes(self.predict_plain().plan.stats)

    def least_capacity(self) -> int:
        """The least capacity with a plan, to some tenths of a percent of the largest."""
        return self._family.least_capacity(self._settings)
