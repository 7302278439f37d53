"""Arguments as leaves: what `run` and the simulator trace a function with.

Thread rule: functions of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat import jaxprs
from coop_jax._src.options import shown


def flatten_arguments(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    donate: tuple[int, ...],
    static: tuple[int, ...],
) -> tuple[Hashable, list[Any], Any]:
    """Static arguments by position, leaves of the others, their tree.

    Raises:
      ValueError: an argument that is donated or static is not there.
    """
    for position in (*donate, *static):
        if position >= len(args):
            raise ValueError(
                f"donate_argnums or static_argnums names argument {position}, but the call has"
                f" {len(args)} positional arguments"
            )
    fixed = tuple((p, args[p]) for p in static)
    dynamic = [() if p in static else a for p, a in enumerate(args)] if static else list(args)
    leaves, tree = jax.tree_util.tree_flatten((dynamic, kwargs))
    return fixed, leaves, tree


def donated_leaves(tree: Any, donate: tuple[int, ...]) -> tuple[bool, ...]:
    """Which leaves of a tree from `flatten_arguments` are donated."""
    positional, _ = tree.children()
    donated: list[bool] = []
    for position, argument in enumerate(positional.children()):
        donated += [position in donate] * argument.num_leaves
    return (*donated, *[False] * (tree.num_leaves - len(donated)))


def check_leaves(leaves: Sequence[Any], *, tracers: bool = False) -> None:
    """Refuses arrays that are gone, and tracers where there can be none.

    Raises:
      RuntimeError: there is one.
    """
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


def positions(given: int | Sequence[int] | None, name: str) -> tuple[int, ...]:
    """Positions of arguments as a user gives them, checked and in order; `name` for the error.

    None is none of them, as for `jax.jit`.
    """
    if given is None:
        return ()
    if not isinstance(given, (int, np.integer, Iterable)) or isinstance(given, (bool, str, bytes)):
        raise TypeError(f"{name} must be positions of arguments (int), got {shown(given)}")
    numbers = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
    if not all(isinstance(p, (int, np.integer)) and p >= 0 for p in numbers):
        raise ValueError(f"{name} must be positions of arguments, 0 or more; got {shown(given)}")
    return tuple(sorted({int(p) for p in numbers}))
