"""Parts of JAX that refuse tracers, since their values are not known: an eager value's are.

Model: `error_check` and the random generators of `jax.experimental.random` ask JAX's `core` for the
class of tracers, or whether anything is traced. They are given a view of `core` in which neither an
eager value nor an eager call counts as such; what is traced inside of an eager call still does.
Thread rule: the view is set once, is idempotent, and holds no state. Cost: none elsewhere.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from jax._src import core

from coop_jax._src.eager.trace.trace import EagerTrace
from coop_jax._src.eager.trace.tracers import EagerTracer, RefTracer

# What asks, where the version of JAX has it.
_ASKING = ("jax._src.error_check", "jax._src.random.stateful_rng")


def current_trace_is_concrete() -> bool:
    """Whether values are known here: no jit, grad, vmap or the like around the caller."""
    trace = core.trace_ctx.trace
    return trace is core.eval_trace or isinstance(trace, EagerTrace)


class _Unknown(type):
    def __instancecheck__(cls, x: object) -> bool:
        is_eager = isinstance(x, EagerTracer) and not isinstance(x, RefTracer)
        return isinstance(x, core.Tracer) and not is_eager


class _UnknownTracer(metaclass=_Unknown):
    """What is a tracer whose value is not known."""


class _Context:
    def is_top_level(self) -> bool:
        return current_trace_is_concrete()

    def __getattr__(self, name: str) -> Any:
        return getattr(core.trace_ctx, name)


class _View(ModuleType):
    """`core`, but for the two."""

    Tracer = _UnknownTracer
    trace_ctx = _Context()

    def __getattr__(self, name: str) -> Any:
        return getattr(core, name)


_view = _View(core.__name__)


@functools.cache
def install() -> None:
    """Gives them the view: once per process, at the first eager call."""
    for name in _ASKING:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        module.core = _view  # type: ignore[attr-defined]
