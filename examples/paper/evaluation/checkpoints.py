"""Static rivals: what users can do by hand, with `jax.checkpoint` inside the network.

No budget, no evictions: what the program with checkpoints needs, and how much longer it takes than
the one without, by the same cost model. Ratios are of the unbudgeted peak without checkpoints.
"""

from __future__ import annotations

import coop_jax
from examples.paper.evaluation.overheads import unbudgeted
from examples.paper.evaluation.tables import Static
from examples.paper.networks import Network


def checkpointed(
    network: Network,
    remat: str,
    program: coop_jax.TracedProgram,
    profile: str,
    plain: coop_jax.Simulation,
) -> Static:
    """The row of a checkpointing option.

    Args:
      network: which.
      remat: the option.
      program: its program with that option.
      profile: what to price for.
      plain: the step without checkpoints.
    """
    simulation = unbudgeted(program, profile)
    return Static(
        network=network.name,
        title=network.title,
        remat=remat,
        peak_bytes=simulation.unbudgeted_peak_bytes,
        ratio=simulation.unbudgeted_peak_bytes / plain.unbudgeted_peak_bytes,
        overhead=simulation.compute_seconds / plain.compute_seconds - 1,
    )
