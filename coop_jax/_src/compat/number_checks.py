"""Checks for NaNs and infinite values (`jax_debug_nans`, `jax_debug_infs`), while programs run.

Model: JAX looks at what a jitted function returns, and in C++ at what each launch makes. Here each
operation is looked at, once: what is made again is not, since checks may have been off when it was
made. Inside `noting` nothing is refused but what a whole function returns, as under `jax.jit`, and
the first operation that made such a value is named. A launch that goes past Python would be looked
at by JAX, so the thread's sessions are told whenever the settings change.

Invariant: while a thread looks for either, its launches go through Python.
Threads: settings are the thread's; one of the process that another thread changes is seen at the
next call. Cost: none per operation.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import api_util as _api_util
from jax._src import config as _config
from jax._src import dispatch as _dispatch

from coop_jax import _core

# What is named where no operation makes it.
CONSTANT = "a literal or constant that is a result"


def looks_for_nans() -> bool:
    """Whether JAX was told to look for NaNs or infinite values after every operation."""
    return bool(_config.debug_nans.value or _config.debug_infs.value)


def follow() -> None:
    """Tells sessions of this thread how it is now."""
    _core.check_launches(looks_for_nans())


@contextlib.contextmanager
def keeping_donation() -> Iterator[None]:
    """What a function that is called now is told to donate is donated.

    Where JAX looks for NaNs it traces functions without donation, and remembers that for later
    calls. It does not look for them, or for infinite values, in here: see `check_numbers`.
    """
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


class Noted:
    """What operations of a function made; see `noting`."""

    def __init__(self) -> None:
        self.first: FloatingPointError | None = None

    def check(self, results: list[Any]) -> None:
        """Looks at what the function returns.

        Raises:
          FloatingPointError: there are NaNs, or infinite values; names the operation that made the
            first ones. The list is empty then, so that no traceback keeps them.
        """
        error = _found("a result", results)
        if error is not None:
            results.clear()
            raise self.first or error


@contextlib.contextmanager
def noting() -> Iterator[Noted]:
    """What operations make inside is noted; what the function returns is to be checked then."""
    before, _thread.noted = _thread.noted, Noted()
    try:
        yield _thread.noted
    finally:
        _thread.noted = before


def check(name: str, results: Sequence[Any]) -> None:
    """What JAX does after an operation where it was told to look for NaNs or infinite values.

    Raises:
      FloatingPointError: there are some, and they are not noted only.
    """
    error = _found(name, results)
    if error is None:
        return
    if _thread.noted is None:
        raise error
    _thread.noted.first = _thread.noted.first or error


def _found(name: str, results: Sequence[Any]) -> FloatingPointError | None:
    try:
        _dispatch.check_special(name, results)
    except _api_util.InternalFloatingPointError as error:
        return FloatingPointError(f"invalid value ({error.ty}) encountered in {name}")
    return None


class _Thread(threading.local):
    noted: Noted | None = None


_thread = _Thread()


def _followed(hook: Callable[[Any], None] | None) -> Callable[[Any], None]:
    def changed(value: Any) -> None:
        if hook is not None:
            hook(value)
        follow()

    return changed


for _setting in (_config.debug_nans, _config.debug_infs):
    _setting._update_global_hook = _followed(_setting._update_global_hook)
    _setting._update_thread_local_hook = _followed(_setting._update_thread_local_hook)
