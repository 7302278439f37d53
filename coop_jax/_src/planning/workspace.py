"""XLA's temporary memory in plans: kept for the whole call, or a block while an operation runs.

What XLA needs beside operands and results of an operation comes from its own allocator, so the
pool has to leave room for it. Two ways are planned. *Reserved*: the most that any operation needs
is kept free throughout; it costs nothing while it is not used. *Own*: an operation that needs much
gets blocks of the pool, as if they were results that nobody reads; before it runs the executor
gives the blocks' pages back to the system, and what XLA frees goes back, too (glibc would keep it).
They may be several, as nobody writes there. So the rest of the call has the whole budget, but those
pages have to be filled anew. Operations that need little share a reservation also then.

Thread rule: plain data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from coop_jax._src.planning import constants

# Whole pages can be given back: a block has to hold those and the rests at its ends.
_PAGES = 2 * 4096

# Larger blocks glibc takes from the system each time and gives back when they are freed, whatever
# was freed before (DEFAULT_MMAP_THRESHOLD_MAX): XLA's memory for one operation is one block.
_NEVER_KEPT_BYTES = 1 << 25


@dataclasses.dataclass(frozen=True, slots=True)
class Provision:
    """How a plan provides for workspace.

    Attributes:
      reserved_bytes: kept free throughout.
      own_bytes: what each operation has of its own, 0 for those that have nothing; () if none has.
      block_bytes: the largest of such blocks.
    """

    reserved_bytes: int
    own_bytes: tuple[int, ...] = ()
    block_bytes: int = 1

    def suffices(self, operation: int, needed_bytes: int) -> bool:
        """Whether an operation may use so much."""
        own = self.own_bytes[operation] if self.own_bytes else 0
        return needed_bytes <= max(self.reserved_bytes, own)

    def blocks(self, operation: int) -> list[int]:
        """The bytes of an operation's own blocks."""
        nbytes = self.own_bytes[operation] if self.own_bytes else 0
        count = -(-nbytes // self.block_bytes)
        return [-(-nbytes // count) + _PAGES] * count if count else []


def provisions(needed: Sequence[int], kept_bytes: int, capacity_bytes: int) -> list[Provision]:
    """The ways to provide for operations: the simple one, then the one that may fit into least.

    Args:
      needed: bytes for each operation.
      kept_bytes: reserved in any case.
      capacity_bytes: the budget.
    """
    ways = [Provision(max([kept_bytes, *needed]))]
    block = max(16 * _PAGES, int(capacity_bytes * constants.TUNED.block_share))
    for part in constants.TUNED.large_workspace_shares:
        small = max(kept_bytes, int(capacity_bytes * part))
        own = tuple(n if n > small else 0 for n in needed)
        if any(own) and all(own != way.own_bytes for way in ways):
            ways.append(
                Provision(max([kept_bytes, *(n for n in needed if n <= small)]), own, block)
            )
    return ways


def refill_seconds(provision: Provision, runs: Sequence[int]) -> float:
    """What it takes to fill the pages of own blocks anew, if those operations run, in order."""
    if not provision.own_bytes:
        return 0.0
    return constants.TUNED.refill_seconds_per_byte * sum(provision.own_bytes[n] for n in runs)


def malloc_seconds(provision: Provision, runs: Sequence[int], needed: Sequence[int]) -> float:
    """The same for workspace that malloc takes from the system each time.

    Args:
      provision: says which operations have blocks of their own instead.
      runs: operations, in order.
      needed: workspace of each operation in bytes.
    """
    own = provision.own_bytes
    taken = (needed[n] for n in runs if not (own and own[n]))
    taken_bytes = sum(nbytes for nbytes in taken if nbytes > _NEVER_KEPT_BYTES)
    return constants.TUNED.refill_seconds_per_byte * taken_bytes
