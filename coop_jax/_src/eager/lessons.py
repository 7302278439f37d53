"""What is known of the calls of one eager function, by the kinds of its arguments.

Thread rule: under the runtime's lock. Cost: linear in the arguments.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Sequence
from typing import Any

from coop_jax._src.compat import contexts
from coop_jax._src.eager.values import operand_key
from coop_jax._src.planning import constants
from coop_jax._src.planning.recorded_calls import Lesson


class Lessons:
    """What is known of the calls of one function; the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: collections.OrderedDict[Hashable, Lesson] = collections.OrderedDict()

    def of(self, leaves: Sequence[Any], tree: Hashable) -> Lesson:
        """Of calls with arguments of these kinds."""
        # Numbers that are no arrays may differ from call to call (the number of the step).
        kinds = [operand_key(x) if hasattr(x, "shape") else type(x) for x in leaves]
        key = tree, tuple(kinds), contexts.current()
        lesson = self._known.setdefault(key, Lesson())
        self._known.move_to_end(key)
        if len(self._known) > constants.TUNED.kept_calls:
            self._known.popitem(last=False)
        return lesson

    def forget(self, lesson: Lesson) -> None:
        """It is learned anew."""
        for key in [key for key, known in self._known.items() if known is lesson]:
            self._known.pop(key, None)
