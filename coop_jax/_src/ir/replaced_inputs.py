"""Which results of a step replace which of its donated arguments.

Thread rule: functions of their arguments. Cost: linear in the inputs and outputs.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any


def replaced_inputs(
    inputs: Sequence[tuple[int, Any]],
    donated: Sequence[bool],
    outputs: Sequence[tuple[int, Any]],
) -> dict[int, int]:
    """Storages of outputs -> the donated inputs they replace: of a kind, first by first.

    What is returned as it is replaces nothing, and is not replaced.

    Args:
      inputs: storage and kind (shape and dtype) of each.
      donated: whether it is.
      outputs: storage and kind of each.
    """
    returned = {s for s, _ in inputs} & {s for s, _ in outputs}
    free: dict[Any, list[int]] = collections.defaultdict(list)
    for number in reversed(range(len(inputs))):
        storage, kind = inputs[number]
        if donated[number] and storage not in returned:
            free[kind].append(number)
    replaced: dict[int, int] = {}
    for storage, kind in outputs:
        if free[kind] and storage not in replaced and storage not in returned:
            replaced[storage] = free[kind].pop()
    return replaced
