"""What XLA says that a compiled program needs, and the options under which a plan survives it.

Known of both supported versions of JAX (0.10 to 0.12): sizes are those on one device. XLA's CPU
compiler of JAX 0.10 expands optimization barriers before it merges common subexpressions, and so
merges what is computed again with what was computed first; without the pass `cse_barrier_expander`
it does what it does elsewhere. XLA's own rematerialization, on GPU and TPU, knows nothing of a plan
and moves what that has placed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax

_DISABLED = "xla_disable_hlo_passes"
_HARMFUL = {"cpu": "cse_barrier_expander"}


def needed_bytes(compiled: jax.stages.Compiled) -> int:
    """Bytes on one device: arguments, results that are not written over them, temporaries.

    Raises:
      NotImplementedError: the platform does not say.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise NotImplementedError("XLA does not say on this platform what a program needs")
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )


def options_for_plans(platform: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The compiler's options for a program that follows a plan, with the user's."""
    options = dict(given or {})
    disabled = [p for p in str(options.get(_DISABLED, "")).split(",") if p]
    disabled.append(_HARMFUL.get(platform, "rematerialization"))
    return {**options, _DISABLED: ",".join(disabled)}


def quick_options(platform: str, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The compiler's options for a program that will not run, with the user's.

    Buffers are assigned before what they leave out. None where no such options are known.
    """
    if platform != "cpu":
        return None
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return {**(given or {}), **quick}


def device_count(compiled: jax.stages.Compiled) -> int:
    """On how many devices a program runs."""
    return max((len(s.device_set) for s in shardings_of(compiled)), default=1)


def shardings_of(compiled: jax.stages.Compiled) -> list[Any]:
    """Where the arguments and results of a program lie: `jax.sharding.Sharding`s."""
    found: list[Any] = []
    for name in ("input_shardings", "output_shardings"):
        # Of what closes over mutable references JAX cannot say it.
        with contextlib.suppress(ValueError):
            found += jax.tree.leaves(getattr(compiled, name))
    return found


def partitions(lowered: jax.stages.Lowered) -> int:
    """On how many devices a program will run that is not compiled yet."""
    module = lowered.compiler_ir("stablehlo")
    assert module is not None
    return int(module.operation.attributes["mhlo.num_partitions"].value)
