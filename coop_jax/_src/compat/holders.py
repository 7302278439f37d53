"""Who else holds the memory of an array: NumPy views, DLPack tensors, the buffer protocol.

On CPU all of these share an array's memory. XLA counts them for each of its buffers, and declines
to write over a buffer whose count is not 0; nothing in JAX's interface tells the count. So it is
read where jaxlib keeps it (`_core.HolderCount`): once in a process an array is looked at while
references of each kind come and go, and the one number that follows all of them is the count. It
has to be found at the same distance in arrays made in other ways, or it counts as hidden. On other
platforms NumPy has copies.

Known of both supported versions of JAX (0.10 to 0.12), on Linux.
Thread rule: any thread; the answer does not change. Cost: some milliseconds, once.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from coop_jax import _core
from coop_jax._src.compat import arrays, transfers

# Objects are looked at up to here, and pointers lie above the first page.
_LOOKED_AT_BYTES = 256
_LEAST_ADDRESS, _MOST_ADDRESS = 1 << 12, 1 << 47

# Distances: in the Python object, in the array's own object, in the buffer.
_Path = tuple[int, int, int]


def are_hidden(device: jax.Device) -> bool:
    """Whether others may share the memory of arrays, and it cannot be told whether they do."""
    return device.platform == "cpu" and count_of_holders(device) is None


@functools.lru_cache(maxsize=64)
def count_of_holders(device: jax.Device) -> _core.HolderCount | None:
    """What counts them for arrays of a device; None where there are none, or they are hidden."""
    if device.platform != "cpu":
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        return _find(_Memory(memory), device)
    finally:
        os.close(memory)


def _references() -> Sequence[Callable[[Any], object]]:
    return (np.asarray, lambda x: x.__dlpack__(), memoryview)


def _find(memory: _Memory, device: jax.Device) -> _core.HolderCount | None:
    with jax.transfer_guard("allow"):
        large = transfers.put(np.ones((64, 64), np.float32), device)
        small = transfers.put(np.ones(3, np.int8), device)
        pool = _core.Pool(1024)
        load, load_arguments = arrays.importer(device)
        lent = load(pool.slot(0, _core.SlotSpec((16,), 0, 32), False), *load_arguments)
        paths = memory.changing(large, _references()[0])
        for array in (large, small, lent):
            for refer in _references():
                paths = memory.following(array, refer, paths)
        found = []
        for path in paths:
            types = {memory.types(array, path) for array in (large, small, lent)}
            if len(types) == 1:
                found.append((path, *types))
    if len(found) != 1:
        return None
    ((array_at, buffer_at, count_at), (array_type, buffer_type)) = found[0]
    return _core.HolderCount(array_at, array_type, buffer_at, buffer_type, count_at)


class _Memory:
    """The memory of this process, to be read without harm where there is none."""

    def __init__(self, file: int):
        self._file = file

    def changing(self, array: Any, refer: Callable[[Any], object]) -> list[_Path]:
        """Paths to numbers that are 0, and 1 while there is a reference."""
        before = self._numbers(array)
        held = refer(array)
        after = self._numbers(array)
        del held
        return [
            (*way, 4 * k)
            for way, numbers in before.items()
            for k, (was, now) in enumerate(zip(numbers, after.get(way, ()), strict=False))
            if (was, now) == (0, 1)
        ]

    def following(
        self, array: Any, refer: Callable[[Any], object], paths: Sequence[_Path]
    ) -> list[_Path]:
        """Those of the paths whose numbers say how many references there are.

        Args:
          array: whose references these are.
          refer: makes one.
          paths: to look at.
        """
        held: list[object] = []
        counted = list(paths)
        for expected in (0, 1, 2):
            counted = [path for path in counted if self._count(array, path) == expected]
            held.append(refer(array))
        held.clear()
        return [path for path in counted if self._count(array, path) == 0]

    def types(self, array: Any, path: _Path) -> tuple[int, int]:
        """What the objects on a path begin with."""
        own = self._words(id(array) + path[0], 8)[0]
        buffer = self._words(own + path[1], 8)[0]
        return self._words(own, 8)[0], self._words(buffer, 8)[0]

    def _numbers(self, array: Any) -> dict[tuple[int, int], tuple[int, ...]]:
        """All that two pointers lead to, as numbers of 32 bits."""
        found = {}
        for array_at, own in self._pointers(id(array), type(array).__basicsize__):
            for buffer_at, buffer in self._pointers(own, _LOOKED_AT_BYTES):
                numbers = self._read(buffer, _LOOKED_AT_BYTES)
                found[array_at, buffer_at] = struct.unpack(f"<{len(numbers) // 4}i", numbers)
        return found

    def _pointers(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """What may be pointers, each with where it is."""
        words = self._words(address, nbytes)
        return [
            (8 * k, word)
            for k, word in enumerate(words)
            if _LEAST_ADDRESS <= word < _MOST_ADDRESS and word % 8 == 0
        ]

    def _count(self, array: Any, path: _Path) -> int:
        array_at, buffer_at, count_at = path
        for own in self._words(id(array) + array_at, 8):
            for buffer in self._words(own + buffer_at, 8):
                for number in struct.iter_unpack("<i", self._read(buffer + count_at, 4)):
                    return int(number[0])
        return -1

    def _words(self, address: int, nbytes: int) -> tuple[int, ...]:
        found = self._read(address, nbytes // 8 * 8)
        return struct.unpack(f"<{len(found) // 8}Q", found)

    def _read(self, address: int, nbytes: int) -> bytes:
        """Nothing where not all of it can be read."""
        try:
            found = os.pread(self._file, nbytes, address)
        except (OSError, OverflowError):
            return b""
        return found if len(found) == nbytes else b""
