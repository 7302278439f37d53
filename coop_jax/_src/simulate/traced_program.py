"""Programs to simulate: traced from a function, or read from a file.

Model: a `TracedProgram` is what the runtime would plan: the same flattening, the same storages, the
same order. Tracing is abstract: arguments may be `jax.ShapeDtypeStruct`s, and nothing is allocated,
compiled or run. Costs are not part of it, only the work that they are computed from.
Thread rule: immutable. Cost: tracing is JAX's, then linear in the number of equations.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coop_jax._src.compat import contexts, jaxprs, transfers
from coop_jax._src.compat import refs as compat_refs
from coop_jax._src.ir import cost_model, kernels, primitives
from coop_jax._src.ir.program import Program
from coop_jax._src.ir.raw_operations import DynamicControlFlow
from coop_jax._src.lowering.build import build_program
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.lowering.passes import fusion as fusing
from coop_jax._src.util import library_jits, options
from coop_jax._src.util.call_arguments import check_leaves
from coop_jax._src.util.calling_convention import Convention, Names, Numbers, convention_of


@dataclasses.dataclass(frozen=True, slots=True)
class TracedProgram:
    """A program that can be simulated any number of times, and saved.

    Attributes:
      name: for people.
      program: operations, storages, uses.
    """

    name: str
    program: Program = dataclasses.field(repr=False)

    def cost_seconds(self, profile: cost_model.DeviceProfile | None) -> list[float]:
        """Roofline seconds of each operation; without a profile as traced or recorded.

        Costs from a file that gives no work (`flops` < 0) hold for any profile.
        """
        return [
            cost_model.cost_seconds(profile, op.kernel.flops, op.kernel.moved_bytes)
            if profile is not None and op.kernel.flops >= 0
            else op.kernel.cost_seconds
            for op in self.program.operations
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedKernel:
    """What a file says of an operation; stands for a `Kernel` where nothing is compiled.

    `flops` is -1 where the cost was measured, not estimated.
    """

    key: str
    label: str
    cost_seconds: float
    flops: float
    moved_bytes: int
    recomputable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedType:
    """What a file says of a value; stands for an abstract value."""

    shape: tuple[int, ...]
    dtype: str


def trace_program(
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: Numbers = None,
    static_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnames: Names = None,
    fusion: bool | None = None,
    **kwargs: Any,
) -> TracedProgram:
    """Traces a function to a program that can be simulated and saved.

    Args:
      fn: a function of pytrees of arrays, as for `run`.
      *args: its arguments; arrays or `jax.ShapeDtypeStruct`s.
      donate_argnums: positions of arguments that the function replaces.
      static_argnums: positions of arguments that are Python values.
      donate_argnames: names of arguments that the function replaces.
      static_argnames: names of arguments that are Python values.
      fusion: whether operations are fused, as for `run`.
      **kwargs: its keyword arguments; likewise.

    Returns:
      The program.

    Raises:
      ValueError: a `while_loop` or `cond` decides on values, so the order of operations is not
        known ahead.
      NotImplementedError: the program holds something that cannot run here.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
      >>> len(coop_jax.trace_program(lambda x: jnp.tanh(x) @ x, x).program.operations)
      2
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function of arrays, got {type(fn).__name__}")
    convention = convention_of(fn, donate_argnums, donate_argnames, static_argnums, static_argnames)
    fused = fusing.is_default() if fusion is None else options.flag(fusion, "fusion")
    wrapper = library_jits.taken_apart(fn)
    if wrapper is None:
        return traced_program(convention, args, kwargs, fused)
    convention = wrapper.convention(convention)

    def trace(*given: Any, **named: Any) -> TracedProgram:
        return traced_program(convention, given, named, fused)

    return wrapper.ask(trace, args, kwargs)


def traced_program(
    convention: Convention, args: Sequence[Any], kwargs: Mapping[str, Any], fusion: bool
) -> TracedProgram:
    """As `trace_program`; `fusion` as for `run`."""
    static, leaves, tree = convention.flatten(tuple(args), dict(kwargs))
    check_leaves(leaves)
    convention.check(static, leaves, tree)
    donated = convention.donated(tree)
    transfers.check_places(leaves, None)
    jaxpr, constants, _ = convention.trace(static, leaves, tree)
    transfers.check_places(constants, None)
    primitives.check_program(jaxpr)
    jaxpr, constants, refs = compat_refs.hoisted(jaxpr, constants)
    owned = [d or compat_refs.is_ref(x) for d, x in zip(donated, leaves, strict=True)]
    owned += [True] * len(refs)
    try:
        cache = kernels.cache_for(contexts.default_device())
        passes = PassOptions.from_environment()
        program = build_program(jaxpr, constants, owned, cache, fusion=fusion, passes=passes)
    except DynamicControlFlow as error:
        raise ValueError(
            "the program has a while_loop or cond that decides on values: what it does is not known"
            f" before it runs, so it cannot be simulated ({error})"
        ) from None
    fn = convention.fn
    return TracedProgram(getattr(fn, "__name__", type(fn).__name__), program)


AnyKernel = kernels.Kernel | RecordedKernel


def kernel_key(kernel: AnyKernel) -> str:
    """What a kernel computes, as text: equal in every process, so that times can be kept."""
    if isinstance(kernel.key, str):
        return kernel.key
    digest = hashlib.sha256(_text(kernel.key).encode()).hexdigest()[:24]
    return f"{kernel.label}:{digest}"


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{6,}")


def _text(key: Any) -> str:
    if isinstance(key, tuple):
        return "(" + ",".join(map(_text, key)) + ")"
    if isinstance(key, type):
        return f"{key.__module__}.{key.__qualname__}"
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, jaxprs.Primitive):
        return str(key.name)
    return _ADDRESS.sub("", f"{type(key).__name__} {key!r}")
