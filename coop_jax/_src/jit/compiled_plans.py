"""Plans of a call, compiled: what a plan emits, called as the user calls the function.

Model: a plan's program is a function of leaves. It is traced under `jax.jit` with the arguments of
the user's function, so that JAX's dispatch finds it for them; what XLA has compiled to see what it
needs is what runs. Where plans are kept on disk it is exported first, and runs as another process
will read it.

Thread rule: a `Planning` belongs to one thread.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from coop_jax._src.compat import compiled_memory, jaxprs, processes, stored_programs
from coop_jax._src.compat.guards import Guard
from coop_jax._src.ir import cost_model
from coop_jax._src.jit.emission import emitted, first_read
from coop_jax._src.jit.options import JitOptions
from coop_jax._src.jit.plain_program import PlainProgram
from coop_jax._src.jit.program_planner import PlannedProgram, ProgramPlanner


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan under `jax.jit`.

    Attributes:
      jitted: JAX's function; it refuses what it was not made for.
      guard: what refuses.
      unguarded: the same function for what is done with it outside of calls, such as its jaxpr;
        None if it was kept on disk without that.
      sizes: what XLA needs for it on one device.
      watched: the number of an argument's leaf that it reads; None if it reads none.
      exported: the program as it is kept on disk; None if it is not to be.
    """

    jitted: Any
    guard: Guard
    unguarded: Any
    sizes: compiled_memory.Sizes
    watched: int | None
    exported: bytes | None = None

    @property
    def needed_bytes(self) -> int:
        """What XLA needs for it on one device, all together."""
        return self.sizes.needed


class Planning:
    """Plans of a call, and what is compiled of them.

    Args:
      options: what the user says of the function.
      args, kwargs: of the call.
      plain: what `jax.jit` makes of it.
      exports: whether plans are exported, to be kept.
    """

    def __init__(
        self,
        options: JitOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plain: PlainProgram,
        *,
        exports: bool = False,
    ):
        self._options, self._args, self._kwargs = options, args, kwargs
        self._plain, self._exports = plain, exports
        self._out_tree = jax.tree.structure(plain.traced.out_info)

    def planner(self) -> ProgramPlanner:
        """The planner of the call.

        Raises:
          NotImplementedError: it cannot be planned.
        """
        options, plain = self._options, self._plain
        return ProgramPlanner(
            plain.traced.jaxpr,
            [info.donated for info in jax.tree.leaves(plain.traced.args_info)],
            plain.device,
            options.profile or cost_model.profile_for(plain.device.platform),
            options.policy,
            respect_checkpoints=options.respect_checkpoints,
            compile=self._compiled_quickly if plain.devices > 1 else None,
        )

    def compiled(self, planned: PlannedProgram) -> CompiledPlan:
        """A plan under `jax.jit`."""
        program = planned.remade.program
        if self._plain.spans_processes:
            labels = [op.kernel.label for op in program.operations]
            check_agreement(f"{planned.remade.origins} {labels}", "plans")
        written = function = emitted(program)
        exported = None
        if self._exports:
            avals = [program.values[v].aval for v in program.inputs]
            specs = [jaxprs.spec_of(aval) for aval in avals]
            exported = stored_programs.exported(function, specs, self._plain.device)
            if exported is not None:
                function = stored_programs.loaded(exported)
        made = self._compiled(function, first_read(program), exported)
        unguarded = self._jitted(self._called_alike(written, None, None))
        return dataclasses.replace(made, unguarded=unguarded)

    def stored(self, exported: bytes, watched: int | None) -> CompiledPlan:
        """A plan that was kept, under `jax.jit`."""
        return self._compiled(stored_programs.loaded(exported), watched, exported)

    def _compiled(
        self, function: Callable[..., list[Any]], watched: int | None, exported: bytes | None
    ) -> CompiledPlan:
        guard = Guard()
        jitted = self._jitted(self._called_alike(function, guard, watched))
        with guard.opened():
            made = jitted.lower(*self._args, **self._kwargs).compile()
        sizes = compiled_memory.sizes_of(made)
        return CompiledPlan(jitted, guard, None, sizes, watched, exported)

    def _jitted(self, function: Callable[..., Any]) -> Any:
        platform, given = self._plain.device.platform, self._options.compiler_options
        return self._options.jitted(function, compiled_memory.options_for_plans(platform, given))

    def _compiled_quickly(self, function: Callable[..., list[Any]]) -> jax.stages.Compiled:
        """A function of the inputs, for all devices; not to run."""
        guard, given = Guard(), self._options.compiler_options
        options = compiled_memory.quick_options(self._plain.device.platform, given) or given
        jitted = self._options.jitted(self._called_alike(function, guard, None), options)
        with guard.opened():
            made: jax.stages.Compiled = jitted.lower(*self._args, **self._kwargs).compile()
        return made

    def _called_alike(
        self, function: Callable[..., list[Any]], guard: Guard | None, watched: int | None
    ) -> Callable[..., Any]:
        """A function of leaves as one of the user's arguments and results.

        `watched` is the number of a leaf that it reads, for the guard.
        """
        convention, out_tree = self._options.convention, self._out_tree
        out_avals = self._plain.traced.jaxpr.out_avals

        @functools.wraps(convention.fn)
        def following(*args: Any, **kwargs: Any) -> Any:
            if guard is not None:
                guard.check()
            _, leaves, _ = convention.flatten(args, kwargs)
            if guard is not None and watched is not None:
                leaves[watched] = guard.watched(leaves[watched])
            results = map(jaxprs.as_weak_as, function(*leaves), out_avals)
            return jax.tree.unflatten(out_tree, results)

        return following


def check_agreement(text: str, what: str) -> None:
    """Compares a text among the processes that run a program together.

    Raises:
      RuntimeError: they differ.
    """
    if not processes.agree(text):
        raise RuntimeError(
            f"coop_jax.jit: the processes that run this program together have different {what}."
            " They must call the same function, with arguments of the same shapes and the same"
            " budget, on devices of the same kind, under the same versions and environment."
        )
