"""What may help a call that does not fit its budget.

Thread rule: functions of their arguments. Cost: linear in the arguments and results.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any


def is_donatable(inputs: Sequence[Any], donated: Sequence[bool], outputs: Sequence[Any]) -> bool:
    """Whether a result could take over the memory of an argument that is not donated.

    Args:
      inputs: abstract values of arguments.
      donated: of each argument.
      outputs: abstract values of results.
    """
    free = collections.Counter(map(_kind, outputs))
    free.subtract(_kind(a) for a, d in zip(inputs, donated, strict=False) if d)
    return any(free[_kind(a)] > 0 for a, d in zip(inputs, donated, strict=False) if not d)


def _kind(aval: Any) -> Any:
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)
