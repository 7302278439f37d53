"""The check behind `donation_probe.probe`, run as a module with PLATFORM NUMBER KIND.

Donates slots of a small pool to operations of several kinds and looks where the outputs lie and
what they hold. Prints one line; may die with the process where XLA aborts, which is why it runs in
one of its own.

Thread rule: one thread. Memory: a pool of 16 MiB and what XLA itself needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax._src.compat import arrays, transfers
from coop_jax._src.execution.donation_probe import PREFIX, Placement
from coop_jax._src.execution.pool_memory import PoolMemory

_ROWS = 256
_STRIDE_BYTES = 1 << 20

_OPERATIONS: dict[str, Callable[[jax.Array], list[jax.Array]]] = {
    "an elementwise operation": lambda a: [a * 2 + 1],
    "a matrix product": lambda a: [a @ a],
    "a reduction": lambda a: [a - a.mean(0)],
    "two outputs": lambda a: [a + 1, a + 2],
}


def check(device: jax.Device) -> str:
    """Tries every kind of placement; returns what went wrong, empty if nothing did."""
    memory = PoolMemory(16 * _STRIDE_BYTES, device)
    operand = transfers.put(
        np.arange(_ROWS * _ROWS, dtype=np.float32).reshape(_ROWS, _ROWS), device
    )
    spec = memory.spec(operand)
    offset = _STRIDE_BYTES
    for name, function in _OPERATIONS.items():
        expected = jax.jit(function)(operand)
        offsets = [offset + k * _STRIDE_BYTES for k in range(len(expected))]
        offset += len(expected) * _STRIDE_BYTES
        slots = [memory.slot(o, spec) for o in offsets]
        results = _with_slots(function, len(slots))(*slots, operand)
        del slots
        if reason := _misplaced(memory, name, results, offsets, expected):
            return reason
    # In place: what lies in the pool is read and overwritten by the same operation.
    source = results[0]
    updated = jax.jit(lambda a: jnp.maximum(a, 3) + 1, donate_argnums=0)
    expected = [updated(jnp.array(source))]
    return _misplaced(memory, "an update in place", [updated(source)], offsets[:1], expected)


def _with_slots(function: Callable[[jax.Array], list[jax.Array]], slots: int) -> Any:
    def run(*arguments: jax.Array) -> list[jax.Array]:
        return function(arguments[-1])

    return jax.jit(run, donate_argnums=tuple(range(slots)), keep_unused=True)


def _misplaced(
    memory: PoolMemory,
    name: str,
    results: list[jax.Array],
    offsets: list[int],
    expected: list[jax.Array],
) -> str:
    jax.block_until_ready(results)
    for result, offset, values in zip(results, offsets, expected, strict=True):
        if arrays.address_of(result) != memory.pool.base + offset:
            return f"the output of {name} was not written into its slot"
        lying_there = np.asarray(memory.view(offset, memory.spec(result)))
        if lying_there.tobytes() != np.asarray(values).tobytes():
            return f"the slot of {name} does not hold its output"
    return ""


def _device(platform: str, number: int, kind: str) -> jax.Device:
    devices = [d for d in jax.local_devices(backend=platform) if d.device_kind == kind]
    same = [d for d in devices if d.local_hardware_id == number]
    return (same or devices)[0]


def main(arguments: list[str]) -> None:
    """Prints the answer for the device that the arguments name."""
    platform, number, kind = arguments
    reason = check(_device(platform, int(number), kind))
    print(PREFIX + (reason or Placement.DONATED), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
