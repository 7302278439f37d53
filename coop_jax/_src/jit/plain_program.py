"""What `jax.jit` makes of a call: traced, lowered, and compiled where it is asked for.

A budget is compared with what XLA needs for that program, also where it will not run. Where XLA
can compile it faster for the same assignment of buffers, it is compiled so for the number alone.

Thread rule: a `PlainProgram` belongs to one thread. Cost: JAX's of tracing and lowering; XLA's, of
what is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from coop_jax._src.compat import compiled_memory, jaxprs, processes, refs
from coop_jax._src.compat.guards import Guard
from coop_jax._src.jit.options import JitOptions
from coop_jax._src.jit.signatures import device_of
from coop_jax._src.util.calling_convention import Convention


class PlainProgram:
    """What `jax.jit` makes of a call.

    Args:
      options: what the user says of the function.
      args: of the call; arrays or `jax.ShapeDtypeStruct`s.
      kwargs: likewise.

    Attributes:
      jitted: JAX's function; it refuses other calls.
      guard: what refuses.
      traced: what JAX traced.
      lowered: what JAX lowered.
      device: a device that it runs on.

    Raises:
      What `jax.jit` raises where it traces.
    """

    def __init__(self, options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._options = options
        self.guard = Guard()
        guarded = _guarded(options.convention, self.guard)
        self.jitted = options.jitted(guarded, options.compiler_options)
        with self.guard.opened():
            self.traced: jax.stages.Traced = self.jitted.trace(*args, **kwargs)
            self.lowered: jax.stages.Lowered = self.traced.lower()
        self.device = device_of(jax.tree.leaves((args, kwargs)))
        self._compiled: jax.stages.Compiled | None = None

    def compile(self) -> int:
        """Has XLA compile it, so that a call takes it; bytes that it needs on one device."""
        if self._compiled is None:
            self._compiled = self.lowered.compile()
        return compiled_memory.needed_bytes(self._compiled)

    @functools.cached_property
    def devices(self) -> int:
        """On how many devices it runs."""
        return compiled_memory.partitions(self.lowered)

    @functools.cached_property
    def spans_processes(self) -> bool:
        """Whether it runs on devices of several processes."""
        if self.devices == 1:
            return False
        self.compile()
        assert self._compiled is not None
        return processes.spans_processes(self._compiled)

    @functools.cached_property
    def needed_bytes(self) -> int:
        """What XLA needs for it on one device; it may not be there to be called then."""
        quick = compiled_memory.quick_options(self.device.platform, self._options.compiler_options)
        if self._compiled is not None or quick is None:
            return self.compile()
        return compiled_memory.needed_bytes(self.lowered.compile(compiler_options=quick))


def _guarded(convention: Convention, guard: Guard) -> Callable[..., Any]:
    """The user's function; JAX neither traces nor lowers it while the guard is closed."""

    @functools.wraps(convention.fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard.check()
        static, leaves, tree = convention.flatten(args, kwargs)
        flat, _ = convention.flat_function(static, leaves, tree)
        watched = [x if refs.is_ref_aval(jaxprs.aval_of(x)) else guard.watched(x) for x in leaves]
        given = {id(w): x for w, x in zip(watched, leaves, strict=True)}
        # An argument that is returned is the argument: JAX passes it on without computing it.
        return jax.tree.map(lambda x: given.get(id(x), x), flat(*watched))

    return guarded
