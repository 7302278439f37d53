"""Where the inputs of a program lie when a call begins: a plan is made for that.

Thread rule: values.
"""

from __future__ import annotations

import dataclasses

# Outside the pool, a block of the pool, to be copied into the pool.
OUTSIDE, FOREIGN, ADOPT = 0, 1, 2


@dataclasses.dataclass(frozen=True, slots=True)
class Residency:
    """Where the inputs lie when a call begins.

    Attributes:
      where: for each input OUTSIDE, FOREIGN or ADOPT.
      offsets: for each FOREIGN input its offset, -1 for others.
      donated: for each input whether its memory may be reused in this call.
      others: (offset, bytes) of blocks of the pool that are no inputs.
      beside_bytes: of arguments that stay outside the pool because others read them, while the call
        works with copies of them.
    """

    where: tuple[int, ...]
    offsets: tuple[int, ...]
    donated: tuple[bool, ...]
    others: tuple[tuple[int, int], ...]
    beside_bytes: int = 0
