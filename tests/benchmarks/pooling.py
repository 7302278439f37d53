"""The gradient of max pooling beside XLA's: time and workspace of the operation alone.

Windows are those of the networks in `examples/paper` and of the CNN here, at sizes such as theirs.
Each round takes one of both in turn; printed are medians, and the median of one round's ratio.

Run: python -m tests.benchmarks.pooling [--repeats=15]
"""

from __future__ import annotations

import coop_jax  # noqa: F401 - first: it sets how the CPU backend starts  # isort: skip

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import app, flags
from jax import lax

from coop_jax._src.ir import max_pool_gradient
from tests.benchmarks import machine

_REPEATS = flags.DEFINE_integer("repeats", 15, "Timed rounds.", lower_bound=1)
_WARMUPS = 2

# Shape, window, strides, padding.
_CASES = (
    ((8, 64, 64, 8), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    ((64, 28, 28, 32), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    ((8, 56, 56, 64), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    ((8, 64, 56, 56), (1, 1, 3, 3), (1, 1, 2, 2), "SAME"),
    ((8, 28, 28, 64), (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    ((4, 16, 16, 16, 16), (1, 3, 3, 3, 1), (1, 2, 2, 2, 1), "SAME"),
)

MIB = 2**20


def _seconds(call: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(call(*arguments))
    return time.perf_counter() - begin


def _row(shape: Any, window: Any, strides: Any, padding: str) -> str:
    pads = tuple(lax.padtype_to_pads(shape, window, strides, padding))

    def pooled(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -float("inf"), lax.max, window, strides, pads)

    key = jax.random.key(0)
    x = jax.random.normal(key, shape)
    gradient = jax.jit(lambda g, x: jax.vjp(pooled, x)[1](g)[0])
    source = jax.random.normal(key, jax.eval_shape(pooled, x).shape)
    names = ("window_dimensions", "window_strides", "padding")
    params = dict(zip(names, (window, strides, pads), strict=True))
    ours = jax.jit(
        lambda g, x: max_pool_gradient.select_and_scatter_add(g, x, select_prim=lax.ge_p, **params)
    )
    compiled = [f.lower(source, x).compile() for f in (gradient, ours)]
    if (compiled[0](source, x) != compiled[1](source, x)).any():
        raise AssertionError("the results differ")
    rounds = [
        [_seconds(c, (source, x)) for c in compiled] for _ in range(_WARMUPS + _REPEATS.value)
    ]
    times = [[r[k] for r in rounds[_WARMUPS:]] for k in range(2)]
    workspace = [c.memory_analysis().temp_size_in_bytes / MIB for c in compiled]
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    text = f"{shape!s:22}{window!s:18}{strides!s:18}"
    for k in range(2):
        text += f"{statistics.median(times[k]) * 1e3:8.2f}{workspace[k]:8.2f}"
    return f"{text}{ratio:8.1f}"


def main(_: Any) -> None:
    """Prints the table."""
    print(machine.heading(_REPEATS.value, _WARMUPS))
    print(f"{'':58}{'XLA':>12}{'here':>16}")
    head = f"{'operand':22}{'window':18}{'strides':18}"
    print(f"{head}{'ms':>8}{'MiB':>8}{'ms':>8}{'MiB':>8}{'XLA / here':>12}")
    for case in _CASES:
        print(_row(*case), flush=True)


if __name__ == "__main__":
    app.run(main)
