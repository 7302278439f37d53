"""What JAX keeps for a thread while it works, as it was before, whatever is raised.

JAX changes its current trace and its settings in `with` blocks, which an exception between two
bytecodes may leave half entered. `saved` is what they are, `restore` brings them back; it may be
called again and again. Both cost about a microsecond as long as nothing was changed.

Invariant: a setting that is the process's is the process's again, not the thread's.
Threads: of the calling thread, but for Python's list of warning filters, which all of them share.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from jax._src import config as _config
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util

_ANONYMOUS = (  # of the thread, and not part of what JAX calls the trace context
    _core.trace_state,
    _core.trace_state_strong_ref,
    _core.axis_env_state,
    _config.debug_nans,
    _config.debug_infs,
    _config.persistent_cache_min_compile_time_secs,
)
_getters = tuple(x.get_local for x in _ANONYMOUS)
_source = _source_info_util._source_info_context
_unset = _config.config_ext.unset


@dataclasses.dataclass(frozen=True, slots=True)
class ThreadState:
    """What `saved` found."""

    context: tuple[Any, ...]
    others: tuple[Any, ...]
    source: Any
    filters: Any

    def restore(self) -> None:
        """Brings it back."""
        for state, value in zip(_ANONYMOUS, self.others, strict=True):
            if state.get_local() is not value:
                _set(state, value)
        if _config.trace_context() != self.context:
            self._restore_context()
        if _source.context is not self.source:
            _source.context = self.source
        if warnings.filters is not self.filters:
            warnings.filters = self.filters
            warnings._filters_mutated()  # type: ignore[attr-defined]

    def _restore_context(self) -> None:
        known = _settings()
        now = _config.trace_context()
        for name, old, new in zip(_config.trace_context_names(), self.context, now, strict=True):
            state = known.get(name)
            if state is None or (old is new or old == new):
                continue
            _set(state, _unset if state.get_global() == old else old)


def saved() -> ThreadState:
    """The state now, to be restored."""
    return ThreadState(
        _config.trace_context(),
        tuple([get() for get in _getters]),
        _source.context,
        warnings.filters,
    )


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
