"""What arguments of a program are called, and what they are: parameters, optimizer state, inputs.

Nobody says so, so it is inferred:

1. An argument is *state* if it comes back: it is donated, or has parts, and each array of it has a
   result of the same path below it, shape and dtype. What is donated and does not come back is no
   state. Gradients have the paths of parameters, so these are state, too, if gradients come back.
2. What is in an object of Optax's is *optimizer state*, and so is state of whose path a name is one
   that Optax, Flax or users give that (`_OPTIMIZER`).
3. Other state is *parameters*, statistics of layers and random keys included, and so is what does
   not come back but is named so (`PARAMETER_NAMES`).
4. The rest is *inputs*.

Thread rule: functions of their arguments. Cost: leaves of the arguments times those of the results
with the same shape.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from jax.tree_util import keystr, tree_leaves_with_path

from coop_jax._src.report.buffers import PARAMETER_NAMES, Kind

_OPTIMIZER = frozenset(
    "mu nu trace count opt_state opt_states opt optim optimizer optimizer_state optstate momentum"
    " velocity inner_state".split()
)


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An array among the arguments of a program.

    Attributes:
      path: as the caller knows it: "state.params['kernel']"; "" where the function is not known.
      kind: what it is.
      donated: whether results may be written over it.
      shape, dtype: of the whole array, over all devices.
    """

    path: str
    kind: Kind
    donated: bool
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """An array: the argument that it is in, its path below that, its name there."""

    root: str
    below: str
    shape: tuple[int, ...]
    dtype: str
    is_optax: bool = False
    donated: bool = False

    @property
    def path(self) -> str:
        return self.root + self.below

    @property
    def names(self) -> set[str]:
        return set(re.findall(r"\w+", self.path))


def arguments_of(
    args_info: Any,
    out_info: Any,
    fn: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
) -> list[Argument]:
    """The arguments of a program, in the order of its leaves.

    Args:
      args_info: that of a `jax.stages.Lowered` or `Compiled`.
      out_info: likewise.
      fn: the function that it was made of; None if nobody knows.
      args: what the function was called with, for names; a library's wrapper passes on less.
      kwargs: likewise.
    """
    passed = given = _leaves(args_info, _signature_names(fn, *args_info))
    if fn is not None:
        names = _signature_names(fn, args, kwargs or {})
        found = _leaves((tuple(args), kwargs or {}), names)
        # A library's wrapper passes arrays on under other names, and static arguments are left out.
        for leaves in (found, [leaf for leaf in found if leaf.dtype]):
            if [leaf.shape for leaf in leaves] == [leaf.shape for leaf in passed]:
                given = leaves
    results: dict[tuple[tuple[int, ...], str], list[str]] = collections.defaultdict(list)
    for path, leaf in tree_leaves_with_path(out_info):
        results[tuple(leaf.shape), str(leaf.dtype)].append(keystr(path))
    returning = [
        _comes_back(p, results) or _comes_back(g, results)
        for p, g in zip(passed, given, strict=True)
    ]
    back = collections.Counter(g.root for g, r in zip(given, returning, strict=True) if r)
    parts = collections.Counter(g.root for g in given)
    return [
        Argument(
            "" if fn is None else g.path,
            _kind(g, is_state=returns and (p.donated or back[g.root] == parts[g.root])),
            p.donated,
            p.shape,
            p.dtype,
        )
        for p, g, returns in zip(passed, given, returning, strict=True)
    ]


def planned_arguments(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    inputs: Sequence[tuple[tuple[int, ...], str, bool]],
) -> list[Argument]:
    """The arguments of a program of `coop_jax.run`: those that are donated are state.

    Args:
      fn: the function.
      args: what it is called with.
      kwargs: likewise.
      inputs: shape, dtype and whether it is donated, of each input of the program.
    """
    found = _leaves((tuple(args), kwargs), _signature_names(fn, args, kwargs))
    shapes = [shape for shape, _, _ in inputs]
    for leaves in (found, [leaf for leaf in found if leaf.dtype]):
        if [leaf.shape for leaf in leaves] == shapes:
            break
    else:
        leaves = [_Leaf(f"args[{n}]", "", *x[:2]) for n, x in enumerate(inputs)]
    return [
        Argument(leaf.path, _kind(leaf, is_state=donated), donated, shape, dtype)
        for leaf, (shape, dtype, donated) in zip(leaves, inputs, strict=True)
    ]


def kind_of(path: str) -> Kind:
    """What an argument is, as far as its path says, where nobody knows what comes back."""
    leaf = _Leaf(path, "", (), "")
    return _kind(leaf, is_state=bool(leaf.names & _OPTIMIZER))


def results_of(out_info: Any) -> list[str]:
    """What the results of a program are called, in order: "result[0]['kernel']"."""
    return [f"result{keystr(path)}" for path, _ in tree_leaves_with_path(out_info)]


def _kind(leaf: _Leaf, *, is_state: bool) -> Kind:
    if leaf.is_optax or (is_state and leaf.names & _OPTIMIZER):
        return "optimizer state"
    return "parameters" if is_state or leaf.names & PARAMETER_NAMES else "inputs"


def _comes_back(leaf: _Leaf, results: dict[tuple[tuple[int, ...], str], list[str]]) -> bool:
    if not leaf.below and not leaf.donated:  # any array of that shape would do
        return False
    return any(path.endswith(leaf.below) for path in results.get((leaf.shape, leaf.dtype), ()))


def _leaves(info: Any, names: Sequence[str]) -> list[_Leaf]:
    """Arrays and numbers in (positional, named) arguments; numbers have no dtype."""
    found = []
    positional, named = info
    keys = sorted(named)
    for root, argument in zip(names, [*positional, *(named[k] for k in keys)], strict=True):
        optax = [
            keystr(path)
            for path, node in tree_leaves_with_path(argument, is_leaf=_is_optax)
            if _is_optax(node)
        ]
        for path, leaf in tree_leaves_with_path(argument):
            is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
            if is_array or isinstance(leaf, (bool, int, float, complex)):
                below = keystr(path)
                found.append(
                    _Leaf(
                        root=root,
                        below=below,
                        shape=tuple(leaf.shape) if is_array else (),
                        dtype=str(leaf.dtype) if is_array else "",
                        is_optax=any(below.startswith(prefix) for prefix in optax),
                        donated=bool(getattr(leaf, "donated", False)),
                    )
                )
    return found


def _is_optax(node: Any) -> bool:
    return type(node).__module__.partition(".")[0] == "optax" and isinstance(node, tuple)


def _signature_names(
    fn: Callable[..., Any] | None, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[str]:
    """What the arguments are called in the function's signature; named ones come last, sorted."""
    names: list[str] = []
    if fn is not None:
        try:
            for parameter in inspect.signature(fn).parameters.values():
                if parameter.kind is parameter.VAR_POSITIONAL:
                    rest = range(max(0, len(args) - len(names)))
                    names += [f"{parameter.name}[{n}]" for n in rest]
                elif parameter.kind in (
                    parameter.POSITIONAL_ONLY,
                    parameter.POSITIONAL_OR_KEYWORD,
                ):
                    names.append(parameter.name)
        except (TypeError, ValueError):  # no signature
            names = []
    names = [*names[: len(args)], *(f"args[{n}]" for n in range(len(names), len(args)))]
    return [*names, *sorted(kwargs)]
