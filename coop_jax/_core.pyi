"""Types of the extension module: the pool and the engine."""

from collections.abc import Sequence
from typing import overload

from typing_extensions import CapsuleType

class SlotSpec:
    """Shape and element type of a slot; made once for each kind, reused for every slot."""

    def __init__(
        self, shape: Sequence[int], dlpack_type_code: int, bits: int, nbytes: int = -1
    ) -> None:
        """Describe a slot; ``nbytes`` (when not -1) overrides what shape and ``bits`` amount to."""

    @property
    def nbytes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

class Pool:
    """One range of memory in which slots are handed out."""

    @overload
    def __init__(self, capacity_bytes: int) -> None: ...
    @overload
    def __init__(
        self,
        base_pointer: int,
        capacity_bytes: int,
        owner: object,
        device_type: int,
        device_id: int,
    ) -> None: ...
    @property
    def base(self) -> int:
        """The address of offset 0."""

    @property
    def capacity_bytes(self) -> int: ...
    def slot(self, offset: int, spec: SlotSpec, exclusive: bool = False) -> CapsuleType:
        """Return a DLPack capsule at ``offset``.

        Raises:
            RuntimeError: the memory is still in use (with ``exclusive``, also by the same extent).
            ValueError: the slot leaves the pool.
        """

    def live_blocks(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of everything that somebody holds, in address order."""

    def live_count(self, offset: int) -> int:
        """Return how many slots at ``offset`` are alive."""

    def drain_freed(self) -> list[int] | None:
        """Return the offsets let go of entirely since the last call, None when there are none."""

    def offset_of(self, pointer: int) -> int:
        """Return the offset of an address, -1 outside the pool."""

    def discard(self, offset: int, nbytes: int) -> None:
        """Give whole pages inside an unused range back to the system (host pools only)."""

    def resident_bytes(self) -> int:
        """Return the physical memory behind a host pool, -1 for others. Slow: for tests."""

    def validate(self) -> None:
        """Raise RuntimeError naming the invariant that does not hold."""

def ffi_targets() -> dict[str, CapsuleType]:
    """Return the XLA custom call handlers of "coop_copy" by platform name ("cpu", "CUDA")."""
