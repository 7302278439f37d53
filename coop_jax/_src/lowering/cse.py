"""What a program computes twice of the same operands, found when it is computed again.

A scan's body often computes something of its constants, and would hold it once for each step until
the backward pass. But what XLA fuses into what reads it costs less to compute again than to store;
so of that only what is made of arguments in a few operations is one value, and what was computed
just before, as the gradients of a recurrent cell do.

Thread rule: a `Made` belongs to one flattener. Cost: linear in the operands.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from coop_jax._src.ir.kernel_classes import is_loop
from coop_jax._src.ir.kernels import Kernel
from coop_jax._src.lowering import constants


class Made:
    """The results of operations by what computes them.

    Attributes:
      found_again: values that were asked for more than once.
    """

    def __init__(self) -> None:
        self.found_again: set[int] = set()
        self._results: dict[Hashable, tuple[list[int], float]] = {}  # and until when they are found
        self._count = 0
        self._depths: dict[int, int] = {}  # operations since an argument; 0 if missing

    def find(self, kernel: Kernel, operands: Sequence[int]) -> list[int] | None:
        """The results of that operation if they are there and may be shared."""
        found = self._results.get((kernel.key, tuple(operands)))
        if found is None or found[1] < self._count:
            return None
        results = found[0]
        self.found_again.update(results)
        return list(results)

    def note(self, kernel: Kernel, operands: Sequence[int], results: Sequence[int]) -> None:
        """Notes an operation that has no effects, to be found again."""
        depth = 1 + max((self._depths.get(v, 0) for v in operands), default=0)
        self._depths.update(dict.fromkeys(results, depth))
        self._count += 1
        if kernel.recomputable:
            always = depth <= constants.TUNED.cse_max_depth or not is_loop(kernel)
            until = math.inf if always else self._count + constants.TUNED.cse_max_distance
            self._results[kernel.key, tuple(operands)] = list(results), until
