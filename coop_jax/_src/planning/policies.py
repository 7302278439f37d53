"""Policies by name, and what a user may pass instead of a name."""

from __future__ import annotations

import functools
from typing import Any

from coop_jax import _core

Policy = _core.Policy

# Of what knows its program. No plan of it recomputes more than Coop's (`python -m
# tests.benchmarks.plans`). Where nothing is known ahead, Coop's is the default (`remat_eager`).
DEFAULT = "lookahead"

_NAMED = {name: Policy(name) for name in ("coop", "dtr", "dte", "lookahead")}


def resolve_policy(policy: str | Policy) -> Policy:
    """The policy object of a name, or the object itself.

    Raises:
      ValueError: an unknown name.
      TypeError: neither a name nor a `Policy`.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"policy must be a name or a coop_jax.Policy, got {type(policy).__name__}")
    try:
        return _NAMED[policy]
    except KeyError:
        names = ", ".join(repr(n) for n in _NAMED)
        raise ValueError(f"unknown policy {policy!r}; there are {names}") from None


def looks_ahead(policy: Policy) -> bool:
    """Whether the policy needs to know the program."""
    return bool(policy.heuristic == "lookahead")


def where_nothing_is_known(policy: Policy) -> Policy:
    """The same policy, or Coop's instead of one that looks ahead."""
    return (
        _with(policy, heuristic="coop", neighborhood="union_find")
        if looks_ahead(policy)
        else policy
    )


def lookaheads(policy: Policy) -> tuple[Policy, ...]:
    """A policy that looks ahead in other forms, then the policies that it must not lose to.

    None of them is the best everywhere. What lies beside a value matters with the window, its size
    without; what else waits for the value to `awaited`.
    """
    other = "awaited" if policy.neighborhood == "ancestors" else "ancestors"
    forms = [
        _with(policy, neighborhood=other),
        _with(policy, sliding_window=not policy.sliding_window),
    ]
    rivals = [
        _with(
            policy,
            heuristic=rival.heuristic,
            neighborhood=rival.neighborhood,
            sliding_window=rival.sliding_window,
            cheap_partitioning=rival.cheap_partitioning,
            in_place=rival.in_place and policy.in_place,
        )
        for rival in (_NAMED["coop"], _NAMED["dte"], _NAMED["dtr"])
    ]
    return (*forms, *rivals)


def without_in_place(policy: Policy) -> Policy:
    """The same policy, but every output gets memory of its own."""
    return _with(policy, in_place=False)


def with_forced_eviction(policy: Policy, forced: bool = True) -> Policy:
    """The same policy, but before each operation all goes that may (or that only as needed)."""
    return _with(policy, evict_always=forced)


def with_exact_neighborhood(policy: Policy) -> Policy:
    """The same policy with the exact projected cost: slower to search, better where it is tight."""
    return _with(policy, neighborhood="exact")


def without_search(policy: Policy) -> Policy:
    """The same policy, but its own plans will do."""
    return _with(policy, search_effort=0)


def without_keeping(policy: Policy) -> Policy:
    """The same policy, but every value is dropped when its owner lets go of it."""
    return _with(policy, keep_demanded=False)


@functools.lru_cache(maxsize=256)  # it takes as long as some operations
def of_a_session(policy: Policy) -> Policy:
    """What operations run by that come as they are called, of which nothing is known.

    Keeping what evicted values are made from pays, but where memory is tightest it can be too much.
    A plan is then made again without it; there is one try here.

    The projected cost counts what bringing a value back would run, and nothing else. A session has
    recipes of far more than will ever be read again: values that the program let go of, residuals
    that JAX refers to until its backward pass ends. Components of the union-find, which never come
    apart, join them all, and the exact neighbourhood counts them as descendants; both grow until
    what is dear and what is cheap cost the same.
    """
    session = without_keeping(where_nothing_is_known(policy))
    return _with(session, neighborhood="ancestors") if session.heuristic == "coop" else session


def _with(policy: Policy, **changed: Any) -> Policy:
    fields = {
        name: getattr(policy, name)
        for name in (
            "heuristic",
            "neighborhood",
            "sliding_window",
            "cheap_partitioning",
            "in_place",
            "evict_always",
            "keep_demanded",
            "unheld_first",
            "search_effort",
        )
    }
    return Policy(**{**fields, **changed})
