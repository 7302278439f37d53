"""What a function that runs operation by operation needs without a budget, before it has run.

A budget that is a fraction is one of that. It takes a trace of the function, so that it works where
control flow does not depend on values.

Thread rule: a function of its arguments. Cost: a trace, a compilation of each operation, a plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from coop_jax._src.execution import executable_cache, executables
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir import kernels
from coop_jax._src.ir.raw_operations import DynamicControlFlow
from coop_jax._src.lowering.build import build_program
from coop_jax._src.planning import planner, policies
from coop_jax._src.util.calling_convention import Convention

# What JAX raises where a function that it traces reads a value.
_READS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def unbudgeted_peak(fn: Callable[..., Any], runtime: Runtime, leaves: list[Any], tree: Any) -> int:
    """Bytes that a function needs that runs operation by operation, from tracing it.

    Args:
      fn: the function.
      runtime: an unlimited one of its device and policy.
      leaves: its arguments, flattened.
      tree: their structure.

    Raises:
      ValueError: its control flow depends on values.
    """

    def of_arrays(*given: Any) -> list[Any]:
        arrays_left = iter(given)
        full = [next(arrays_left) if is_array(x) else x for x in leaves]
        args, kwargs = jax.tree_util.tree_unflatten(tree, full)
        results = jax.tree_util.tree_leaves(fn(*args, **kwargs))
        return [x for x in results if is_array(x)]

    try:
        convention = Convention(of_arrays)
        static, flat, structure = convention.flatten(tuple(filter(is_array, leaves)), {})
        jaxpr, constants, _ = convention.trace(static, flat, structure)
        cache = kernels.cache_for(runtime.device)
        program = build_program(jaxpr, constants, (False,) * len(flat), cache)
    except (DynamicControlFlow, *_READS_VALUES) as error:
        raise ValueError(
            "a budget that is a fraction needs a program that is known ahead, and the control"
            " flow of this function depends on values. Give the budget in bytes, for example"
            " half of runtime.stats().peak_bytes after a call with budget=None."
        ) from error
    # Eager execution does not know last uses beforehand, so nothing is in place.
    settings = dataclasses.replace(
        runtime.settings, policy=policies.without_in_place(runtime.policy)
    )
    workspace = 0
    for op in program.operations:
        outside = [program.storages[program.values[r].storage].outside for r in op.results]
        modes = tuple(executables.OUTSIDE if o else executables.SLOT for o in outside)
        executable = executable_cache.executable(op.kernel, modes, runtime.device, cache)
        workspace = max(workspace, executable.workspace_bytes)
    donated = planner.first_residency(program).donated
    engine_program = planner.core_program(program, donated)
    return planner.unbudgeted_peak(program, engine_program, settings, workspace)


def is_array(x: Any) -> bool:
    """Whether an argument is an array rather than anything else."""
    return hasattr(x, "shape") and hasattr(x, "dtype")
