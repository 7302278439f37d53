"""Policies by name, and what a user may pass instead of a name."""

from __future__ import annotations

from coop_jax import _core

Policy = _core.Policy

_NAMED = {"coop": Policy("coop"), "dtr": Policy("dtr"), "dte": Policy("dte")}


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


def without_in_place(policy: Policy) -> Policy:
    """The same policy, but every output gets memory of its own."""
    return _with(policy, policy.neighborhood, in_place=False)


def with_forced_eviction(policy: Policy, forced: bool = True) -> Policy:
    """The same policy, but before each operation all goes that may (or that only as needed)."""
    return _with(policy, policy.neighborhood, in_place=policy.in_place, evict_always=forced)


def with_exact_neighborhood(policy: Policy) -> Policy:
    """The same policy with the exact projected cost: slower to search, better where it is tight."""
    return _with(policy, "exact", in_place=policy.in_place)


def without_keeping(policy: Policy) -> Policy:
    """The same policy, but every value is dropped when its owner lets go of it."""
    return _with(policy, policy.neighborhood, in_place=policy.in_place, keep_demanded=False)


def _with(
    policy: Policy,
    neighborhood: str,
    *,
    in_place: bool,
    evict_always: bool | None = None,
    keep_demanded: bool | None = None,
) -> Policy:
    return Policy(
        policy.heuristic,
        neighborhood,
        sliding_window=policy.sliding_window,
        cheap_partitioning=policy.cheap_partitioning,
        in_place=in_place,
        evict_always=policy.evict_always if evict_always is None else evict_always,
        keep_demanded=policy.keep_demanded if keep_demanded is None else keep_demanded,
    )
