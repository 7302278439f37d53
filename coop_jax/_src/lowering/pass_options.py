"""Which of the optional transformations of a program take place: one switch a pass.

All are on, but for measurements of what each saves (`tests/benchmarks/passes`) and for doubts.
A program computes the same with any of them off. Its last bits may be others where XLA compiles
other operations together (`fusion`, `launch_clustering`, and all that decides what these find) or
sums a product in another order (`transpose_folding`); at every budget they are the same.

Not optional, hence not here: flattening of calls and scans, views, dead code elimination and what
is in place, on which the memory accounting rests.
"""

from __future__ import annotations

import dataclasses

from coop_jax._src.util import env


@dataclasses.dataclass(frozen=True, slots=True)
class PassOptions:
    """The passes of `lowering`, each on or off.

    Those after `stacks_written_early` run only where operations are fused at all (`fusion=` of
    `run`); `fusion` here is the one pass alone.

    Attributes:
      conditional_to_select: a `cond` of cheap branches is computed by selecting. Without it the
        order of operations is not known ahead, and the call is interpreted.
      part_by_part: element by element operations on stacks are done part by part.
      stacks_written_early: stacks needed as a whole are written as their parts are made.
      cse: what is computed twice of the same operands is one value.
      transpose_folding: see the module of that name, as for the others.
      early_updates: likewise.
      fusion: likewise.
      launch_clustering: likewise.
    """

    conditional_to_select: bool = True
    part_by_part: bool = True
    stacks_written_early: bool = True
    cse: bool = True
    transpose_folding: bool = True
    early_updates: bool = True
    fusion: bool = True
    launch_clustering: bool = True

    @classmethod
    def from_environment(cls) -> PassOptions:
        """All but those that COOP_JAX_DISABLE_PASSES lists, separated by commas.

        Raises:
          ValueError: it lists something that is no pass.
        """
        disabled = env.names("COOP_JAX_DISABLE_PASSES", pass_names())
        return cls(**dict.fromkeys(disabled, False))


def pass_names() -> tuple[str, ...]:
    """The names of all passes, in the order in which they take place."""
    return tuple(field.name for field in dataclasses.fields(PassOptions))
