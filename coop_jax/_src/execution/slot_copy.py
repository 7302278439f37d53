"""Arrays copied into slots of the pool."""

from __future__ import annotations

import jax

from coop_jax._src.compat import arrays, ffi
from coop_jax._src.execution import donation_probe
from coop_jax._src.execution.donation_probe import Placement


def copy_into(slot: jax.Array, source: jax.Array) -> jax.Array:
    """Copies an array into a slot of its size and dtype; the result lies in the slot's memory.

    It is done when this returns: what is read there later need not know of it.
    """
    device = slot.device
    if donation_probe.probe(device) is Placement.COPIED:
        return ffi.store(slot, source)
    copied = ffi.copy_into(slot, source)
    if not arrays.runs_synchronously(device):
        arrays.wait_for_launch(copied)
    return copied
