"""What JAX keeps for a thread while it works, as it was before, whatever is raised.

JAX changes its current trace and its settings in `with` blocks, which an exception between two
bytecodes may leave half entered. `saved` is what they are; `restoring` is a function that brings
that back, and may be called again and again.

Invariant: a setting that is the process's is the process's again, not the thread's.
Threads: of the calling thread, but for Python's list of warning filters, which all of them share.
Cost: a microsecond, most of it for JAX's trace context, where that is not known yet.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from jax._src import config as _config
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util

# Of the thread, and not part of what JAX calls the trace context. (More are, of which JAX and we
# change none for a moment.)
_OTHERS: tuple[Any, ...] = (
    _config.debug_nans,
    _config.debug_infs,
    _config.persistent_cache_min_compile_time_secs,
)
_trace, _nans, _infs, _seconds = (
    _core.trace_state_strong_ref.get_local,
    *(x.get_local for x in _OTHERS),
)
_context = _config.trace_context
_source = _source_info_util._source_info_context
_unset = _config.config_ext.unset


def saved(context: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
    """The state now; `context`: JAX's trace context, where that is known."""
    return (
        _context() if context is None else context,
        _trace(),
        (_nans(), _infs(), _seconds()),
        _source.context,
        warnings.filters,
    )


def restoring(context: tuple[Any, ...] | None = None) -> Callable[[], None]:
    """Brings back the state of now; `context`: as for `saved`."""
    return functools.partial(_restore, saved(context))


def _restore(before: tuple[Any, ...]) -> None:
    context, trace, others, source, filters = before
    _core.trace_state_strong_ref.set_local(trace)
    _core.trace_state.set_local(trace if trace in (_unset, None) else trace._weakref)
    for state, value in zip(_OTHERS, others, strict=True):
        if state.get_local() is not value:
            _set(state, value)
    now = _context()
    if now != context:
        known = _settings()
        for name, old, new in zip(_config.trace_context_names(), context, now, strict=True):
            state = known.get(name)
            if state is not None and old is not new and old != new:
                _set(state, _unset if state.get_global() == old else old)
    if _source.context is not source:
        _source.context = source
    if warnings.filters is not filters:
        warnings.filters = filters
        warnings._filters_mutated()  # type: ignore[attr-defined]


def _set(state: Any, value: Any) -> None:
    state.set_local(value)
    hook = getattr(state, "_update_thread_local_hook", None)
    if hook is not None:
        hook(None if value is _unset else value)


def _settings() -> dict[str, Any]:
    """JAX's settings by their names."""
    found = dict(_config.config_states)
    kind = _config.config_ext.Config
    for name, value in (*vars(_config).items(), *vars(_core).items()):
        if isinstance(value, kind):
            found.setdefault(name, value)
    return found
