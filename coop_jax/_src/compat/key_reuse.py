"""`jax_debug_key_reuse`: a random key that was used is refused a second time.

Model: JAX has a signature of each primitive and program, which says of which operands it uses keys
up, and keeps in each array of keys what of it was used. `ProgramUses` applies that of a traced
program to each call; `eager.trace.key_trace` applies those of primitives to what an eager call
runs: for an eager value an object stands in that JAX takes for an array of keys, and for an
argument that is the caller's own array, so that JAX knows of its use afterwards, too.

Invariant: what is known of a value goes when its tracer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import config as _config
from jax._src.random import prng as _prng


class ProgramUses:
    """What a program uses of its arguments and constants."""

    __slots__ = ("_constants", "_signature")

    def __init__(self, jaxpr: Any, constants: Sequence[Any]) -> None:
        """As it was traced."""
        from jax.experimental.key_reuse import _core as rules  # as JAX: when it is needed

        self._signature = rules.jaxpr_type_signature(jaxpr)
        self._constants = [x if isinstance(x, _prng.PRNGKeyArray) else None for x in constants]

    def check(self, arguments: Sequence[Any]) -> None:
        """Before a call.

        Raises:
          KeyReuseError: it uses a key that was used.
        """
        given = (*arguments, *self._constants)
        self._signature.check_signature(*given, funcname="jit-compiled function")

    def note(self, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """After a call."""
        self._signature.update_consumption([*arguments, *self._constants], results)


def uses_of(jaxpr: Any, constants: Sequence[Any]) -> ProgramUses | None:
    """What to look after when the program is called; None if JAX was not told to."""
    return ProgramUses(jaxpr, constants) if _config.debug_key_reuse.value else None
