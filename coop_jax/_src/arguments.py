"""Arguments as leaves: what `run` and the simulator trace a function with.

Thread rule: functions of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat import jaxprs


def flatten_arguments(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    donate: tuple[int, ...],
    static: tuple[int, ...],
    *,
    tracers: bool = False,
) -> tuple[Hashable, list[Any], Any, tuple[bool, ...]]:
    """Static arguments by position, leaves of the others, their tree, which leaves are donated.

    Raises:
      ValueError: an argument that is donated or static is not there.
      RuntimeError: a leaf was deleted, or is a tracer where there can be none.
    """
    for position in (*donate, *static):
        if position >= len(args):
            raise ValueError(
                f"donate_argnums or static_argnums names argument {position}, but the call has"
                f" {len(args)} positional arguments"
            )
    fixed = tuple((p, args[p]) for p in static)
    dynamic = [() if p in static else a for p, a in enumerate(args)]
    leaves: list[Any] = []
    donated: list[bool] = []
    for position, argument in enumerate(dynamic):
        found = jax.tree_util.tree_leaves(argument)
        leaves += found
        donated += [position in donate] * len(found)
    named = jax.tree_util.tree_leaves(kwargs)
    leaves += named
    donated += [False] * len(named)
    tree = jax.tree_util.tree_structure((dynamic, kwargs))
    for leaf in leaves:
        if isinstance(leaf, jaxprs.Tracer):
            if tracers:
                continue
            raise RuntimeError(
                "coop_jax.run was given a tracer of a JAX transformation that is not around the"
                " call: it has ended, or was left by jax.ensure_compile_time_eval"
            )
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise RuntimeError(
                f"an argument of shape {leaf.shape} was deleted: it was donated to an earlier"
                " call, or delete() was called on it"
            )
    return fixed, leaves, tree, tuple(donated)


def flat_function(
    fn: Callable[..., Any], static: Any, tree: Any
) -> tuple[Callable[..., list[Any]], Callable[[], Any]]:
    """The function of leaves, and the tree of its results once it was traced."""
    out_tree = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        dynamic, named = jax.tree_util.tree_unflatten(tree, leaves)
        positional = list(dynamic)
        for position, value in static:
            positional[position] = value
        outputs, out_tree = jax.tree_util.tree_flatten(fn(*positional, **named))
        return outputs

    return flat, lambda: out_tree


def positions(given: int | Sequence[int], name: str) -> tuple[int, ...]:
    """Positions of arguments as a user gives them, checked and in order; `name` for the error."""
    numbers = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
    if not all(isinstance(p, (int, np.integer)) and p >= 0 for p in numbers):
        raise ValueError(f"{name} must be positions of arguments, 0 or more; got {given!r}")
    return tuple(sorted({int(p) for p in numbers}))
