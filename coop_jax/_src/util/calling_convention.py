"""How a function takes its arguments: by position or name, static or not, donated or not.

Model: what is static or donated is given as to `jax.jit`, by position, by name or both; one is
found by the other from the function's signature. Positions are those of a call: negative ones count
from its last argument, those it does not have are ignored, so that a static argument may be left at
its default. A call is then its static arguments, and the leaves and the tree of the others.

Invariant: static arguments are equal if they are of one type and compare as equal.
Thread rule: immutable.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from coop_jax._src.compat import arrays, jaxprs, jits, naming
from coop_jax._src.compat.naming import Names as Names
from coop_jax._src.compat.naming import Numbers as Numbers
from coop_jax._src.util import mutations
from coop_jax._src.util.options import shown

T = TypeVar("T")

_ASKED_FOR_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)
_EAGER = (
    "coop_jax: coop_jax.run traces a function without values, as jax.jit does. A function whose"
    " Python code depends on values runs under coop_jax.remat_eager(f, budget=...), operation by"
    " operation."
)
_FILTERED = " Under equinox.filter_jit, coop_jax.run(filter_jit(f)), such arguments are static."


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A static argument as a key: 1, 1.0 and True are three programs."""

    value: Any

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return type(other) is Static and self.is_like(other.value)

    def is_like(self, value: Any) -> bool:
        """Whether a value is the same static argument.

        Raises:
          ValueError: it cannot be compared.
        """
        known = self.value
        if value is known or type(value) is not type(known):
            return value is known
        try:
            return bool(value == known)
        except Exception as error:
            raise ValueError(
                "static arguments should be comparable using __eq__, and comparing two objects of"
                f" type {type(value)} raised {type(error).__name__}: {error}"
            ) from error


# Static arguments of a call: where they are, by position or name, and what they are.
Fixed = tuple[tuple[int | str, Static], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Convention:
    """Which arguments of a function are static, and which are donated.

    Attributes:
      fn: the function.
      donate_argnums, donate_argnames: of those donated.
      static_argnums, static_argnames: of those that are Python values.
    """

    fn: Callable[..., Any]
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Fixed, list[Any], Any]:
        """Static arguments, the leaves of the others, their tree.

        Raises:
          ValueError: a static argument has no hash.
        """
        fixed: list[tuple[int | str, Static]] = []
        dynamic, named = list(args), kwargs
        for position in sorted(_in_call(self.static_argnums, len(args))):
            fixed.append((position, _static(args[position])))
            dynamic[position] = ()
        for name in sorted(kwargs.keys() & set(self.static_argnames)):
            fixed.append((name, _static(kwargs[name])))
            named = {k: v for k, v in named.items() if k != name}
        leaves, tree = jax.tree_util.tree_flatten((dynamic, named))
        return tuple(fixed), leaves, tree

    def donated(self, tree: Any) -> tuple[bool, ...]:
        """Which leaves of a tree from `flatten` are donated."""
        positional, named = tree.children()
        given = positional.children()
        positions = _in_call(self.donate_argnums, len(given))
        donated: list[bool] = []
        for position, argument in enumerate(given):
            donated += [position in positions] * argument.num_leaves
        for name, argument in zip(named.node_data()[1], named.children(), strict=True):
            donated += [name in self.donate_argnames] * argument.num_leaves
        return tuple(donated)

    def flat_function(
        self, static: Fixed, leaves: Sequence[Any], tree: Any
    ) -> tuple[Callable[..., Any], Callable[[], Any]]:
        """The function of leaves, and the tree of its results once it was traced.

        JAX's messages name the function and its arguments as the user does.
        """
        out_tree = None

        def flat(*given: Any) -> Any:
            nonlocal out_tree
            args, kwargs = _unflatten((), given, tree)
            watch = mutations.Watch(args, kwargs)
            args, kwargs = _with_static(static, args, kwargs)
            results = self.fn(*args, **kwargs)
            watch.check(self.fn, results)
            out_tree = jax.tree_util.tree_structure(results)
            return results

        naming.name_as(flat, self.fn, *_unflatten(static, leaves, tree), _places(static))
        return flat, lambda: out_tree

    def names(self, static: Fixed, leaves: Sequence[Any], tree: Any) -> tuple[str, ...]:
        """What the leaves are called, such as "batch['image']"."""
        return naming.leaf_names(self.fn, *_unflatten(static, leaves, tree), _places(static))

    def check(self, static: Fixed, leaves: Sequence[Any], tree: Any) -> None:
        """Refuses leaves that are no arrays.

        Raises:
          TypeError, OverflowError: there is one; as `jax.jit` says it.
        """
        for number, leaf in enumerate(leaves):
            try:
                jaxprs.aval_of(leaf)
            except OverflowError:
                raise OverflowError(
                    "An overflow was encountered while parsing an argument of"
                    f" {naming.name_of(self.fn)}, whose argument path is"
                    f" {self.names(static, leaves, tree)[number]}. Got {type(leaf)} with value"
                    f" {leaf}"
                ) from None
            except TypeError:
                raise TypeError(
                    f"Error interpreting argument to {naming.name_of(self.fn)} as an abstract"
                    f" array. The problematic value is of type {type(leaf)} and was passed to the"
                    f" function at path {self.names(static, leaves, tree)[number]}.\n"
                    "This typically means that a budgeted function was called with a non-array"
                    " argument, and this argument was not marked as static using the"
                    " static_argnums or static_argnames parameters of coop_jax.run."
                    + (_FILTERED if "equinox" in sys.modules else "")
                ) from None

    def trace(
        self,
        static: Fixed,
        leaves: Sequence[Any],
        tree: Any,
        *,
        under_transformations: bool = False,
    ) -> tuple[Any, Sequence[Any], Any]:
        """The jaxpr of the function of leaves, its constants, the tree of its results.

        Raises:
          What `jax.jit` raises where it traces.
        """
        flat, out_tree = self.flat_function(static, leaves, tree)
        try:
            with arrays.compiling():
                jaxpr, constants = jaxprs.trace(
                    flat, leaves, under_transformations=under_transformations
                )
        except _ASKED_FOR_VALUES as error:
            error.add_note(_EAGER)
            raise
        return jaxpr, constants, out_tree()


def convention_of(
    fn: Callable[..., Any],
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
) -> Convention:
    """The convention of a function, from what a user says of it, here and in `jax.jit`.

    Raises:
      TypeError, ValueError: it makes no sense, or does not fit the function's signature.
    """
    given = naming.resolve(
        fn,
        _numbers(donate_argnums, "donate_argnums"),
        _names(donate_argnames, "donate_argnames"),
        _numbers(static_argnums, "static_argnums"),
        _names(static_argnames, "static_argnames"),
    )
    donated, donated_names, static, static_names = jits.said_of(fn)
    return Convention(
        fn,
        _union(given[0], donated),
        _union(given[1], donated_names),
        _union(given[2], static),
        _union(given[3], static_names),
    )


def _union(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _numbers(given: Any, name: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    numbers = tuple(given) if isinstance(given, Iterable) else (given,)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise TypeError(f"{name} must be positions of arguments (int), got {shown(given)}")
    return tuple(map(int, numbers))


def _names(given: Any, name: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not all(isinstance(n, str) for n in names):
        raise TypeError(f"{name} must be names of arguments (str), got {shown(given)}")
    return names


def _in_call(positions: tuple[int, ...], count: int) -> set[int]:
    """Positions in a call of so many arguments."""
    return {p % count for p in positions if -count <= p < count}


def _static(value: Any) -> Static:
    try:
        hash(value)
    except Exception as error:
        raise ValueError(
            "Non-hashable static arguments are not supported. An error occurred while trying to"
            f" hash an object of type {type(value)}, {value!r}. The error was:\n"
            f"{type(error).__name__}: {error}"
        ) from None
    return Static(value)


def _places(static: Fixed) -> tuple[int | str, ...]:
    return tuple(where for where, _ in static)


def _unflatten(static: Fixed, leaves: Sequence[Any], tree: Any) -> tuple[list[Any], dict[str, Any]]:
    dynamic, named = jax.tree_util.tree_unflatten(tree, leaves)
    return _with_static(static, dynamic, named)


def _with_static(
    static: Fixed, dynamic: Sequence[Any], named: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = list(dynamic), dict(named)
    for where, fixed in static:
        if isinstance(where, int):
            args[where] = fixed.value
        else:
            kwargs[where] = fixed.value
    return args, kwargs
