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
