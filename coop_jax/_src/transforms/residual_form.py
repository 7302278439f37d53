"""How what linearization keeps becomes the linear function again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax._src.transforms.budgeted_call import fill


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How the residuals of a first part become its second part again.

    Attributes:
      smooth: which results have tangents.
      cotangents: abstract values of those results' cotangents.
      tree: of the linear function, whose leaves come from `sources`.
      sources: for each leaf a number of a residual, or ~number of an operand, or the leaf itself.
      operands: numbers of the operands that are leaves, in order of first use.
      residuals: how many there are.
    """

    smooth: tuple[bool, ...]
    cotangents: tuple[Any, ...]
    tree: Any
    sources: tuple[Any, ...]
    operands: tuple[int, ...]
    residuals: int

    def apply(
        self,
        kept: Sequence[Any],
        operands: Sequence[Any],
        values: Sequence[Any],
        given: tuple[bool, ...] | None,
    ) -> list[Any]:
        """The second part, of residuals, the operands that it reads, and (co)tangents."""
        by_number = dict(zip(self.operands, operands, strict=True))
        leaves = [
            s.leaf if isinstance(s, Constant) else kept[s] if s >= 0 else by_number[~s]
            for s in self.sources
        ]
        linear = jax.tree_util.tree_unflatten(self.tree, leaves)
        if given is None:
            return list(linear(*values))
        return list(linear(fill(given, values, self.cotangents)))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A leaf that is no tracer."""

    leaf: Any
