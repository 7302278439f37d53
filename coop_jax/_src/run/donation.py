"""Donated arguments that a call cannot dispose of, because somebody else reads their memory.

`jax.jit` counts such an argument as not donated: it is read, stays as it is, and what would have
replaced it takes memory of its own. So it does here, before anything runs; a warning says what it
costs, once for each kind of call.

Thread rule: under the runtime's lock. Cost: linear in the inputs, on calls that go the long way.
"""

from __future__ import annotations

import collections
import os
import pathlib
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from coop_jax._src.compat import arrays
from coop_jax._src.lowering import constants as lowering_constants
from coop_jax._src.run import constants as tuning
from coop_jax._src.run.argument_passing import Inputs, place_of
from coop_jax._src.run.specialization import Signature


def warn_of_kept(signature: Signature, inputs: Inputs, donated: Sequence[bool]) -> None:
    """Warns of arguments that the caller donated and the call only reads, if there are any.

    Args:
      signature: of the call; warned of once.
      inputs: of the call.
      donated: for each input whether the call disposes of it.
    """
    if signature.warned:
        return
    kept = [
        n
        for n, name in enumerate(signature.donated_names)
        if name
        and signature.kinds.disposable[n]
        and not donated[n]
        and inputs.places[n] is not None
        and inputs.arrays[n].nbytes > lowering_constants.TUNED.small_bytes
    ]
    if not kept:
        return
    signature.warned = True
    nbytes = sum(inputs.arrays[n].nbytes for n in kept)
    by_size = sorted(kept, key=lambda n: -inputs.arrays[n].nbytes)
    largest = by_size[: tuning.TUNED.named_arguments]
    reasons = _Reasons(inputs, signature.constants)
    named = "; ".join(_described(signature, inputs, n, reasons.of(n)) for n in largest)
    others = f"; and {len(kept) - len(largest)} more" if len(kept) > len(largest) else ""
    warnings.warn(
        f"{len(kept)} donated array(s) of {nbytes:,} bytes cannot be updated in place, so this call"
        f" needs as much memory more: {named}{others}. They are read, and stay as they are.",
        UserWarning,
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    """The `stacklevel` of a warning that names the line that called us."""
    here = str(pathlib.Path(__file__).parents[2]) + os.sep
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(here):
        frame, level = frame.f_back, level + 1
    return level


def _described(signature: Signature, inputs: Inputs, number: int, reason: str) -> str:
    x = inputs.arrays[number]
    kind = f"{x.dtype}[{','.join(map(str, x.shape))}]"
    return f"{signature.donated_names[number]} ({kind}), {reason}"


class _Reasons:
    """Why inputs are kept."""

    def __init__(self, inputs: Inputs, constants: Sequence[Any]):
        self._places = inputs.places
        self._count = collections.Counter(inputs.places)
        self._closed_over = {place_of(arrays.stored(x)) for x in constants}

    def of(self, number: int) -> str:
        """The reason, as the end of a sentence about the input."""
        place = self._places[number]
        if place in self._closed_over:
            return "which the function closes over"
        if self._count[place] > 1:
            return "which is passed more than once"
        return (
            "whose memory something else reads (a NumPy array from `np.asarray` or"
            " `jax.device_get`, a checkpoint that is being written, a DLPack tensor)"
        )
