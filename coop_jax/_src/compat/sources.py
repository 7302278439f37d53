"""Where the user's code is at many moments, noted at little cost and put into words later.

Model: JAX's tracebacks hold code objects and instructions, no frames, and Python's garbage
collector does not look at them; name stacks are kept where they change.

Thread rule: one thread. Cost: some 1 us a moment, by the depth of the stack.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

from jax._src import source_info_util
from jaxlib import _jax

from coop_jax._src.compat import jaxprs


class Sources:
    """Moments in order, from 0 on."""

    __slots__ = ("_changes", "_stacks", "_tracebacks")

    def __init__(self) -> None:
        self._tracebacks: list[Any] = []
        self._changes: list[int] = []  # moments at which the name stack became another one
        self._stacks: list[Any] = []

    def noter(self) -> Callable[[], None]:
        """What notes the moment at which it is called."""
        context = source_info_util._source_info_context
        traceback = _jax.Traceback.get_traceback
        tracebacks, changes, stacks = self._tracebacks, self._changes, self._stacks
        add = tracebacks.append
        last: Any = None

        def note() -> None:
            nonlocal last
            info = context.context
            if info.name_stack is not last:
                last = info.name_stack
                changes.append(len(tracebacks))
                stacks.append(last)
            add(info.traceback or traceback())

        return note

    def at(self, moment: int) -> tuple[str, str]:
        """The user's "file:line (function)" and the name stack; "" where they are not known."""
        source = jaxprs.source_of_traceback(self._tracebacks[moment])
        return source, str(self._stacks[bisect.bisect_right(self._changes, moment) - 1])
