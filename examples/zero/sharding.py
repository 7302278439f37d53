"""The stages of ZeRO (Rajbhandari et al., 2020) as shardings, for XLA to divide the step by.

Model: a mesh of one axis, over which the batch is divided. What a stage divides is divided along
the first axis of an array that the number of devices divides; each device holds all of a smaller
array, such as a counter. XLA adds the collectives: it sums gradients over devices, and gathers a
divided parameter where it is read.

| stage | each device holds a part of |
|---|---|
| 2 | gradients, optimizer state |
| 3 | gradients, optimizer state, parameters (fully sharded data parallelism) |
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

_AXIS = "data"


def device_mesh() -> Mesh:
    """All devices of all processes, in a row."""
    return jax.make_mesh((jax.device_count(),), (_AXIS,), axis_types=(AxisType.Auto,))


@dataclasses.dataclass(frozen=True, slots=True)
class ZeroShardings:
    """Where the arrays of a train step lie.

    Attributes:
      params, gradients, opt_state: trees of shardings, like the trees of arrays.
      batch: of the batch, along its first axis.
      replicated: of what each device holds all of.
    """

    params: Any
    gradients: Any
    opt_state: Any
    batch: NamedSharding
    replicated: NamedSharding


def shardings_of(
    stage: int, mesh: Mesh | AbstractMesh, params: Any, opt_state: Any
) -> ZeroShardings:
    """The shardings of a stage, 2 or 3, for parameters and state of these shapes."""
    replicated = NamedSharding(mesh, PartitionSpec())

    def divided(x: jax.ShapeDtypeStruct) -> NamedSharding:
        for axis, length in enumerate(x.shape):
            if length % mesh.size == 0:
                return NamedSharding(mesh, PartitionSpec(*[None] * axis, _AXIS))
        return replicated

    gradients = jax.tree.map(divided, params)
    return ZeroShardings(
        params=gradients if stage == 3 else jax.tree.map(lambda _: replicated, params),
        gradients=gradients,
        opt_state=jax.tree.map(divided, opt_state),
        batch=NamedSharding(mesh, PartitionSpec(_AXIS)),
        replicated=replicated,
    )
