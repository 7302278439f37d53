"""Table 1: what operations cost for each byte that they make.

Model: each operation is a function of arrays of the sizes in ResNet-50 and GPT-2. Its cost by the
device profile is the sum over the operations that it is traced to; measured is the same sum with
the median seconds of a real run on this machine's CPU, of a smaller batch. MB are 10^6 bytes of the
function's output. An operation is expensive (the paper's class C1) if any operation in it
that makes an array of its output's size is, by the threshold that the engine places storages with.
Cost: some seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

import coop_jax
from coop_jax._src.ir.cost_model import PROFILES  # rates of the named devices
from examples.paper.evaluation.tables import Density

_RUNS = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """A row: a function, and the shapes of its arguments for a batch."""

    name: str
    fn: Callable[..., jax.Array]
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]
    batch: int
    measured_batch: int


def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    """Without a stride, as large as its input."""
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def normalization(axes: tuple[int, ...], x: jax.Array, scale: jax.Array) -> jax.Array:
    """Batch or layer normalization, by the axes."""
    mean = x.mean(axes, keepdims=True)
    variance = jnp.square(x).mean(axes, keepdims=True) - jnp.square(mean)
    return (x - mean) * (jax.lax.rsqrt(variance + 1e-5) * scale)


def _images(*weights: tuple[int, ...]) -> Callable[[int], tuple[tuple[int, ...], ...]]:
    return lambda batch: ((batch, 56, 56, 64), *weights)


def _tokens(*weights: tuple[int, ...]) -> Callable[[int], tuple[tuple[int, ...], ...]]:
    return lambda batch: ((batch, 1024, 768), *weights)


OPERATIONS = (
    Operation("convolution 3x3", convolution, _images((3, 3, 64, 64)), 128, 8),
    Operation("convolution 1x1", convolution, _images((1, 1, 64, 256)), 128, 8),
    Operation("matmul", lambda x, w: x @ w, _tokens((768, 3072)), 8, 1),
    Operation(
        "batch normalization", functools.partial(normalization, (0, 1, 2)), _images((64,)), 128, 32
    ),
    Operation("layer normalization", functools.partial(normalization, (2,)), _tokens((768,)), 8, 8),
    Operation("ReLU", jax.nn.relu, _images(), 128, 32),
    Operation("GELU", jax.nn.gelu, _tokens(), 8, 8),
    Operation("addition", jnp.add, lambda batch: ((batch, 56, 56, 64),) * 2, 128, 32),
    Operation("softmax", jax.nn.softmax, lambda batch: ((batch, 12, 1024, 1024),), 8, 1),
)


def density(operation: Operation, profile: str, runs: int = _RUNS) -> Density:
    """The row of an operation."""
    arguments = _arguments(operation, operation.batch)
    program = coop_jax.trace_program(operation.fn, *arguments, fusion=False)
    device = PROFILES[profile]
    seconds = program.cost_seconds(device)
    output_bytes = _output_bytes(operation, arguments)
    storages, values = program.program.storages, program.program.values
    made = [storages[values[op.results[0]].storage].nbytes for op in program.program.operations]
    expensive = any(
        cost / nbytes >= device.expensive_seconds_per_byte
        for cost, nbytes in zip(seconds, made, strict=True)
        if nbytes == output_bytes
    )
    return Density(
        operation=operation.name,
        kind="expensive" if expensive else "cheap",
        profile_us_per_mb=sum(seconds) * 1e12 / output_bytes,
        measured_us_per_mb=measured_seconds(operation, runs)
        * 1e12
        / _output_bytes(operation, _arguments(operation, operation.measured_batch)),
    )


def measured_seconds(operation: Operation, runs: int = _RUNS) -> float:
    """Seconds of a real run, operation by operation as the runtime does it."""
    shapes = operation.shapes(operation.measured_batch)
    arrays = [jnp.full(shape, 0.5, jnp.float32) for shape in shapes]
    step = coop_jax.run(operation.fn, budget=None, fusion=False)
    step(*arrays)
    with coop_jax.record_costs(step.runtime) as costs:
        for _ in range(runs):
            step(*arrays)
    program = coop_jax.trace_program(operation.fn, *arrays, fusion=False)
    seconds = coop_jax.simulate(program, costs=costs).compute_seconds
    step.runtime.close()
    return seconds


def _arguments(operation: Operation, batch: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in operation.shapes(batch)]


def _output_bytes(operation: Operation, arguments: list[jax.ShapeDtypeStruct]) -> int:
    output = jax.eval_shape(operation.fn, *arguments)
    size: int = math.prod(output.shape) * output.dtype.itemsize
    return size
