"""What `jax.jit` tells programs by: types of arguments, where they lie, JAX's configuration.

Thread rule: functions of their arguments.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax

from coop_jax._src.compat import contexts, jaxprs
from coop_jax._src.util.call_arguments import check_leaves
from coop_jax._src.util.calling_convention import Convention


def signature_key(
    convention: Convention, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Hashable:
    """A key of the program that a call needs.

    Raises:
      TypeError, ValueError, OverflowError: arguments that `jax.jit` refuses, as it says it.
      RuntimeError: an argument was deleted.
    """
    static, leaves, tree = convention.flatten(args, kwargs)
    check_leaves(leaves)
    return static, tree, tuple(map(_kind, leaves)), contexts.current()


def device_of(leaves: Sequence[Any]) -> jax.Device:
    """A device that a call with these arguments runs on."""
    for leaf in leaves:
        sharding = _placed(leaf)
        if sharding is not None:
            return min(sharding.device_set, key=lambda d: d.id)
    return contexts.default_device()


def _kind(leaf: Any) -> Hashable:
    aval = jaxprs.aval_of(leaf)
    weak = getattr(aval, "weak_type", False)  # mutable references have none
    return type(aval), aval.shape, aval.dtype, weak, _placed(leaf)


def _placed(leaf: Any) -> Any:
    """Where the user has put an array, None where JAX may choose."""
    if isinstance(leaf, jax.Array):
        return leaf.sharding if leaf.committed else None
    return getattr(leaf, "sharding", None)
