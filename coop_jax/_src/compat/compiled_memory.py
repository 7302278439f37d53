"""What XLA says that a compiled program needs, and the options under which a plan survives it.

Known of both supported versions of JAX (0.10 to 0.12): sizes are those on one device; an executable
knows which arguments it kept. XLA's CPU compiler of JAX 0.10 expands optimization barriers before
it merges common subexpressions, and so merges what is computed again with what was computed first;
without the pass `cse_barrier_expander` it does what it does elsewhere. XLA's own rematerialization,
on GPU and TPU, knows nothing of a plan and moves what that has placed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax._src import config as _config

_DISABLED = "xla_disable_hlo_passes"
_HARMFUL = {"cpu": "cse_barrier_expander"}


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on one device.

    Attributes:
      arguments, results: of all of them.
      aliases: of results that are written over arguments.
      temporaries: of XLA's own memory.
    """

    arguments: int
    results: int
    aliases: int
    temporaries: int

    @property
    def needed(self) -> int:
        """Arguments, results that are not written over them, temporaries."""
        return self.arguments + self.results - self.aliases + self.temporaries


def sizes_of(compiled: jax.stages.Compiled) -> Sizes:
    """What a program needs.

    Raises:
      NotImplementedError: the platform does not say.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise NotImplementedError("XLA does not say on this platform what a program needs")
    return sizes_in(memory)


def sizes_in(memory: Any) -> Sizes:
    """What XLA's `CompiledMemoryStats` say."""
    return Sizes(
        int(memory.argument_size_in_bytes),
        int(memory.output_size_in_bytes),
        int(memory.alias_size_in_bytes),
        int(memory.temp_size_in_bytes),
    )


def needed_bytes(compiled: jax.stages.Compiled) -> int:
    """Bytes on one device: arguments, results that are not written over them, temporaries.

    Raises:
      NotImplementedError: the platform does not say.
    """
    return sizes_of(compiled).needed


def kept_arguments(compiled: jax.stages.Compiled) -> list[int]:
    """Which arguments a program has as parameters, in order: those that are used, by default.

    Numbers are those of the leaves of `compiled.args_info`; -1 where it is a constant that JAX
    passes along.
    """
    executable: Any = compiled._executable
    constants = len(compiled._params.const_args)
    return [max(-1, n - constants) for n in sorted(executable._kept_var_idx)]


def compiled_with_lines(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles; source lines are those of this program.

    JAX's persistent cache leaves them out of its keys otherwise, and may hold the lines of an older
    file.
    """
    with _config.compilation_cache_include_metadata_in_key(True):
        return lowered.compile()


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


def name_of(compiled: jax.stages.Compiled) -> str:
    """The name of the function that a program was made of."""
    executable = compiled.runtime_executable()
    modules = [] if executable is None else executable.hlo_modules()
    return str(modules[0].name).removeprefix("jit_") if modules else "program"


def platform_of(compiled: jax.stages.Compiled) -> str:
    """Of the devices that a program runs on; of the default ones if it does not say."""
    for sharding in shardings_of(compiled):
        return str(next(iter(sharding.device_set)).platform)
    return str(jax.default_backend())


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
