"""What makes defects show: forced eviction and verification, for users in doubt and for tests.

Model. Forced eviction (`COOP_JAX_FORCE_EVICTION=1`): before every operation the engine evicts all
that it may, so whatever an operation reads was computed again. Verification (`COOP_JAX_VERIFY=1`,
`Runtime(..., verify=True)`): each result of an operation is remembered when it is made for the
first time, as a digest of its bytes, and compared when a recomputation makes it again, scratch
outputs included. A value that was overwritten in place is its own version, so versions are
remembered apart: by operation and number of the result, never by where it lies.

Invariants: environment variables are read when a runtime is made; without verification there is no
`Verifier`, and nothing is asked per operation but whether there is one.
Thread rule: a `Verifier` belongs to one call, under the runtime's lock.
Cost: one copy to the host and one hash of every output of every launch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.execution import constants
from coop_jax._src.util import env


def eviction_is_forced() -> bool:
    """Whether COOP_JAX_FORCE_EVICTION asks every new runtime to evict always."""
    return env.is_on("COOP_JAX_FORCE_EVICTION")


def verification_is_asked() -> bool:
    """Whether COOP_JAX_VERIFY asks every new runtime to verify."""
    return env.is_on("COOP_JAX_VERIFY")


class VerificationError(RuntimeError):
    """A recomputed value is not, bit by bit, what it was the first time."""


@dataclasses.dataclass(frozen=True, slots=True)
class _First:
    """A result as it was first made; `host` if it is small."""

    digest: bytes
    host: np.ndarray[Any, Any] | None


class Verifier:
    """Remembers the first values of one call's operations; compares recomputed ones with them."""

    __slots__ = ("_first", "_records")

    def __init__(self) -> None:
        self._first: dict[Hashable, list[_First]] = {}
        self._records: dict[int, tuple[str, list[_First]]] = {}

    def see(
        self,
        operation: Hashable,
        results: Sequence[Any],
        label: str,
        source: str,
        *,
        recompute: bool,
    ) -> None:
        """All results of a launch of a planned operation, by number."""
        if recompute:
            _compare(self._first[operation], results, label, source)
        else:
            self._first[operation] = [_remember(x) for x in results]

    def see_launch(
        self,
        places: Sequence[tuple[int, int, int, int]],
        results: Sequence[Any],
        label: str,
        *,
        recompute: bool,
        validate: Callable[[], None],
    ) -> None:
        """All results of a launch in a session, by number; also validates the engine.

        Args:
          places: for each result its storage and the storage it is wanted for now (-1: none), first
            of all.
          results: arrays, by number.
          label: of the operation.
          recompute: whether it has run before.
          validate: of the engine.
        """
        validate()
        if not recompute:
            source = jaxprs.source_of(jaxprs.current_source())
            record = source, [_remember(x) for x in results]
            self._records.update((storage, record) for storage, *_ in places)
            return
        # A storage that is wanted is alive, so its number is of this operation; those of results
        # that nothing needs any more may be of others by now.
        wanted = next(place[1] for place in places if place[1] >= 0)
        source, first = self._records[wanted]
        _compare(first, results, label, source)


def _on_host(x: Any) -> np.ndarray[Any, Any]:
    x = arrays.stored(x)
    # A copy: a view that stays alive would keep XLA from writing there again.
    host = np.array(x)
    arrays.drop_numpy_view(x)
    return host


def _digest(host: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(host.tobytes(), digest_size=16).digest()


def _remember(x: Any) -> _First:
    host = _on_host(x)
    is_kept = host.nbytes <= constants.TUNED.verified_max_bytes
    return _First(_digest(host), host if is_kept else None)


def _compare(first: Sequence[_First], results: Sequence[Any], label: str, source: str) -> None:
    for number, (expected, x) in enumerate(zip(first, results, strict=True)):
        host = _on_host(x)
        if _digest(host) != expected.digest:
            raise VerificationError(
                f"recomputing operation '{label}' ({source or 'no source line'}) gave other bits"
                f" than its first run.\n  result: {number + 1} of {len(results)}, {host.dtype} of"
                f" shape {host.shape}\n{_difference(expected.host, host)}Either the operation is"
                " not deterministic on this device, and must not be recomputed, or this is a defect"
                " of coop_jax: please report it, with the program if you can."
            )


def _difference(first: np.ndarray[Any, Any] | None, host: np.ndarray[Any, Any]) -> str:
    if first is None or not host.size:
        return ""
    rows = host.size, host.dtype.itemsize
    one, two = (np.frombuffer(a.tobytes(), np.uint8).reshape(rows) for a in (first, host))
    differs = np.flatnonzero((one != two).any(axis=1))
    index = tuple(int(i) for i in np.unravel_index(int(differs[0]), host.shape))
    return (
        f"  differs: {differs.size} of {host.size} elements, first {index}: {host[index]!s} now,"
        f" {first[index]!s} the first time\n"
    )
