"""The wire format of protocol buffers, read: XLA hands messages out serialised.

JAX brings no protocol buffers library along; few fields are needed, and their numbers never change.

Thread rule: functions of their arguments. Cost: linear in the message's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def numbers(value: Any) -> list[int]:
    """A repeated number, packed or not."""
    if isinstance(value, int):
        return [value]
    numbers, position = [], 0
    while position < len(value):
        number, position = _varint(value, position)
        numbers.append(number)
    return numbers


def fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a message: numbers as int, everything else as bytes."""
    position, end = 0, len(content)
    while position < end:
        key, position = _varint(content, position)
        kind = key & 7
        if kind == 0:
            number, position = _varint(content, position)
            yield key >> 3, number
            continue
        if kind == 2:
            length, position = _varint(content, position)
        else:
            length = {1: 8, 5: 4}[kind]
        yield key >> 3, content[position : position + length]
        position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
