"""A buffer: what reports and timelines are made of.

Thread rule: values.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

Kind = Literal[
    "parameters",
    "optimizer state",
    "inputs",
    "results",
    "residuals",
    "temporaries",
    "constants",
    "unused",
]

# In the order in which they are listed.
KINDS: tuple[Kind, ...] = get_args(Kind)

# Names in the paths of arguments that parameters have in Flax, Haiku and users' code.
PARAMETER_NAMES = frozenset("params parameters variables weights model batch_stats".split())


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """A value in memory, on one device. "" is for what is not known.

    Attributes:
      nbytes: its size.
      kind: "parameters", "optimizer state", "inputs": arguments; "results": results that are not
        written over arguments; "residuals": temporary, made in the forward part of a
        differentiation or before it and read in the backward part; "temporaries": other temporary
        ones; "constants": held by the executable, not part of the peak; "unused": what alignment
        and fragmentation leave of an allocation.
      shape, dtype: as NumPy writes them; of one device's part.
      allocation: the number of the block of memory that it lies in; -1 for none.
      offset: where in there, in bytes.
      first, last: moments between which it lives, both included, counted from the program's first
        instruction in the order in which they run.
      instruction: the name of XLA's instruction that makes it.
      operation: JAX's primitive.
      source: "file:line (function)", the user's line.
      module: names of modules and scopes joined by "/".
      phase: "forward", "backward" or "other": which part of a differentiation makes it.
      path: of an argument or a result, as a user writes it: "state.params['kernel']".
    """

    nbytes: int
    kind: Kind
    shape: tuple[int, ...] = ()
    dtype: str = ""
    allocation: int = -1
    offset: int = 0
    first: int = 0
    last: int = 0
    instruction: str = ""
    operation: str = ""
    source: str = ""
    module: str = ""
    path: str = ""
    phase: str = "other"
