"""Arguments taken apart and results put together, as `jax.tree_util` does, where calls repeat.

What a training loop passes has one structure, step after step. To walk along it in C++ takes a
fifth of what it takes to flatten, to compare the structures, and to unflatten.

Invariant: the same leaves and the same trees as JAX's. Whatever is other than it was is left to
JAX: another container, a leaf of a type that was not there before, data that does not compare.
Thread rule: under the interpreter lock. Cost: linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import default_registry

from coop_jax import _core
from coop_jax._src.run import constants
from coop_jax._src.util.calling_convention import Fixed

# As in cc/python/replay/tree_structure.h.
_LEAF, _NONE, _TUPLE, _LIST, _DICT, _NAMED_TUPLE, _CUSTOM = range(7)

_BUILT_IN = {type(None): _NONE, tuple: _TUPLE, list: _LIST, dict: _DICT}

_Node = tuple[int, type, Any, int, Callable[..., Any] | None]


class CallTrees:
    """Trees of calls of one signature with the same static arguments.

    Args:
      fixed: its static arguments.
      out_tree: the structure of results.
    """

    __slots__ = ("_fixed", "_given", "_lessons", "_out_tree", "_results")

    def __init__(self, fixed: Fixed, out_tree: Any):
        self._fixed, self._out_tree = fixed, out_tree
        self._given: _core.TreeStructure | None = None
        self._results: _core.TreeStructure | None = None
        self._lessons = 0

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """Leaves of the arguments that are not static; None if that is for JAX to say."""
        if self._given is None:
            return None
        dynamic = list(args)
        for where, static in self._fixed:
            if isinstance(where, int):
                if where >= len(args) or not static.is_like(args[where]):
                    return None
                dynamic[where] = ()
            else:
                if where not in kwargs or not static.is_like(kwargs[where]):
                    return None
                kwargs = {name: x for name, x in kwargs.items() if name != where}
        return self._given.leaves((dynamic, kwargs))

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tells what such arguments look like."""
        if self._lessons == constants.TUNED.learned_structures:
            return
        self._lessons += 1
        dynamic = list(args)
        for where, _ in self._fixed:
            if isinstance(where, int):
                dynamic[where] = ()
            else:
                kwargs = {name: x for name, x in kwargs.items() if name != where}
        self._given = structure_of((dynamic, kwargs))

    def result(self, leaves: list[Any]) -> Any:
        """The tree of results."""
        if self._results is not None:
            return self._results.build(leaves)
        made = jax.tree_util.tree_unflatten(self._out_tree, leaves)
        if jax.tree_util.tree_structure(made) == self._out_tree:
            self._results = structure_of(made)
        return made


def structure_of(tree: Any) -> _core.TreeStructure | None:
    """The structure of a tree, None if only JAX can take such trees apart."""
    nodes: list[_Node] = []
    leaf_types: dict[type, None] = {}
    try:
        _collect(tree, nodes, leaf_types)
    except _OnlyJax:
        return None
    return _core.TreeStructure(nodes, tuple(leaf_types), default_registry.flatten_one_level)


class _OnlyJax(Exception):  # noqa: N818 - a signal, not an error
    """A container that is not taken apart in a way that is known here."""


def _collect(node: Any, nodes: list[_Node], leaf_types: dict[type, None]) -> None:
    level = default_registry.flatten_one_level(node)
    if level is None:
        leaf_types[type(node)] = None
        nodes.append((_LEAF, type(node), None, 0, None))
        return
    children, data = list(level[0]), level[1]
    kind = _BUILT_IN.get(type(node))
    make: Callable[..., Any] | None = None
    if kind is None:
        if isinstance(node, tuple) and data is type(node) and _same(children, node):
            kind = _NAMED_TUPLE
            make = None if _is_plain(type(node)) else type(node)
        else:
            kind = _CUSTOM
            make = _maker(node, children)
    nodes.append((kind, type(node), data, len(children), make))
    for child in children:
        _collect(child, nodes, leaf_types)


def _maker(node: Any, children: list[Any]) -> Callable[[list[Any]], Any]:
    """What makes a node like this of its children."""
    found, one_level = jax.tree_util.tree_flatten(node, is_leaf=lambda x: x is not node)
    if not _same(found, children):
        raise _OnlyJax
    return lambda given: jax.tree_util.tree_unflatten(one_level, given)


def _is_plain(named_tuple: type) -> bool:
    """Whether a class of named tuples makes its instances as `collections.namedtuple` does."""
    new = named_tuple.__new__
    made_by = getattr(new, "__globals__", {}).get("_tuple_new")
    own = [c for c in named_tuple.__mro__ if c not in (tuple, object)]
    as_tuple = type(named_tuple) is type and not any("__init__" in vars(c) for c in own)
    return as_tuple and made_by == tuple.__new__


def _same(some: Any, others: Any) -> bool:
    return len(some) == len(others) and all(x is y for x, y in zip(some, others, strict=True))
