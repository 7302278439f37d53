"""Arguments as leaves: what can be told of them before a function is traced with them.

Thread rule: functions of their arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from coop_jax._src.compat import jaxprs


def check_leaves(
    leaves: Sequence[Any], front_end: str | None = None, error: type[Exception] = RuntimeError
) -> None:
    """Refuses arrays that are gone, and tracers where there can be none.

    Args:
      leaves: arguments.
      front_end: whose call it is, at the top level; None where tracers may be among them.
      error: what a tracer raises.

    Raises:
      RuntimeError: an array was deleted.
    """
    for leaf in leaves:
        if isinstance(leaf, jaxprs.Tracer):
            if front_end is None:
                continue
            raise error(
                f"{front_end} was given a tracer of a JAX transformation that is not around the"
                " call: it has ended, or was left by jax.ensure_compile_time_eval"
            )
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise RuntimeError(
                f"an argument of shape {leaf.shape} was deleted: it was donated to an earlier"
                " call, or delete() was called on it"
            )


def donated_names(tree: Any, leaves: Sequence[Any], donated: Sequence[bool]) -> tuple[str, ...]:
    """How a caller knows each donated leaf of a tree from `Convention.flatten`; "" for others."""
    if not any(donated):
        return ("",) * len(donated)
    given = jax.tree_util.tree_unflatten(tree, leaves)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(given)]
    return tuple(
        f"argument {_key(path[1])}{jax.tree_util.keystr(path[2:])}" if is_donated else ""
        for path, is_donated in zip(paths, donated, strict=True)
    )


def _key(key: Any) -> Any:
    return key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key
