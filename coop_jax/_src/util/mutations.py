"""Arguments that a function changes in place: refused where the change would be lost.

Model: a function is traced, or run, with copies of its arguments, as under `jax.jit`. What it
assigns to an attribute of a registered pytree object (a module of Flax NNX, an optimizer) changes
the copy. Whoever calls would see nothing of it. After the function has returned, the leaves of
each such object are compared with those that it was given: other ones must be among the results.
Dictionaries and lists are the function's own, as under `jax.jit`: many fill theirs.

Thread rule: a `Watch` belongs to one call. Cost: two flattenings of the objects; next to nothing
where there are none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from coop_jax._src.compat.tracer_identity import same

_PLAIN = (dict, list, tuple, type(None))

_Leaves = dict[str, Any]


class Watch:
    """Looks whether the objects among the arguments are left as they were.

    Args:
      positional, named: arguments that the function is about to be called with.
    """

    __slots__ = ("_before", "_objects")

    def __init__(self, positional: Any, named: dict[str, Any]):
        arrays_alone = jax.tree_util.all_leaves((*positional, *named.values()))
        flat = [] if arrays_alone else tree_flatten_with_path((positional, named), _is_object)[0]
        self._objects = [(path, node) for path, node in flat if _is_object(node)]
        self._before = [_stable_leaves(node) for _, node in self._objects]

    def check(self, fn: Callable[..., Any], result: Any) -> None:
        """Refuses changes that are not among the results.

        Raises:
          TypeError: there are some.
        """
        if not self._objects:
            return
        seen: set[int] = set()

        def note(node: Any) -> bool:
            seen.add(id(node))
            return False

        leaves = jax.tree_util.tree_leaves(result, is_leaf=note)
        for (path, node), before in zip(self._objects, self._before, strict=True):
            if before is None or id(node) in seen:
                continue
            after = _leaves(node)
            lost = [
                where
                for where in {**before, **after}
                if where not in before
                or where not in after
                or not (
                    same(before[where], after[where]) or any(same(after[where], x) for x in leaves)
                )
            ]
            if lost:
                raise TypeError(_describe(fn, path, node, lost))


def _is_object(node: Any) -> bool:
    """Whether a node is a registered pytree that is no plain container."""
    return not isinstance(node, _PLAIN) and not jax.tree_util.all_leaves((node,))


def _leaves(node: Any) -> _Leaves:
    return {keystr(path): leaf for path, leaf in tree_flatten_with_path(node)[0]}


def _stable_leaves(node: Any) -> _Leaves | None:
    """The leaves by path; None if flattening makes them anew each time, so nothing can be told."""
    leaves, again = _leaves(node), _leaves(node)
    if len(leaves) != len(again) or any(x is not again.get(k) for k, x in leaves.items()):
        return None
    return leaves


def argument_name(fn: Callable[..., Any], path: Any) -> str:
    """The name of an argument by its path in (positional, named), and the rest of the path."""
    kind, key, *rest = path
    if kind.idx:
        return f"{key.key}{keystr(tuple(rest))}"
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    name = f"args[{key.idx}]"
    for n, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            name = f"{parameter.name}[{key.idx - n}]"
            break
        if n == key.idx and parameter.kind is not parameter.KEYWORD_ONLY:
            name = parameter.name
            break
    return f"{name}{keystr(tuple(rest))}"


def _describe(fn: Callable[..., Any], path: Any, node: Any, lost: list[str]) -> str:
    name = argument_name(fn, path)
    others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    nnx = any(c.__module__.startswith("flax.nnx") for c in type(node).__mro__)
    return (
        f"{getattr(fn, '__name__', 'the function')} changes its argument {name}, a"
        f" {type(node).__name__}, in place (at {name}{lost[0]}{others}), and that would be lost: as"
        " under jax.jit, the function works on copies of its arguments. "
        + (
            "Put nnx.jit around the function, and coop_jax.run or remat_eager around that: then"
            " changes are put back into the modules. Or pass and return states (nnx.split,"
            " nnx.merge)."
            if nnx
            else "Return what changed, and go on with that."
        )
    )
