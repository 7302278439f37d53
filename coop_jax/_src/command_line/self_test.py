"""A small train step under a budget, with each front end: what `coop-jax doctor` tries.

Thread rule: functions. Cost: some seconds, most of them compiling.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax._src.command_line.checks import Ask, Found, Status
from coop_jax._src.eager.api import remat_eager
from coop_jax._src.execution.stats import Stats
from coop_jax._src.jit.api import jit
from coop_jax._src.run.api import run
from coop_jax._src.util.options import format_bytes

_SHARE = 0.6  # of the memory without a budget
_LAYERS, _WIDTH, _BATCH = 8, 64, 2048
_WRONG = "results cannot be trusted here: report this with the output of `coop-jax doctor --json`"


def _step(params: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(params: list[jax.Array]) -> jax.Array:
        x = batch
        for w in params:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


def _arguments() -> tuple[list[jax.Array], jax.Array]:
    key = jax.random.key(0)
    params = [0.2 * jax.random.normal(k, (_WIDTH, _WIDTH)) for k in jax.random.split(key, _LAYERS)]
    return params, jax.random.normal(key, (_BATCH, _WIDTH))


def _bits(results: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(results)]


def _in_runtime(front_end: Callable[..., Any]) -> Found:
    """A front end with a runtime, compared with itself without a budget, bit by bit."""
    arguments = _arguments()
    free = front_end(_step)
    expected = _bits(free(*arguments))
    budget = int(_SHARE * free.runtime.stats().peak_bytes)
    step = front_end(_step, budget=budget)
    equal = _bits(step(*arguments)) == expected
    stats: Stats = step.runtime.stats()
    text = (
        f"{'equal' if equal else 'not equal'} bit by bit at {_SHARE:.0%} of the memory; peak"
        f" {format_bytes(stats.peak_bytes)} of {format_bytes(budget)},"
        f" {stats.rematerialisations} operations recomputed"
    )
    if equal and stats.peak_bytes <= budget:
        return Found(text)
    return Found(text, _WRONG, Status.FAILED)


def _compiled() -> Found:
    arguments = _arguments()
    expected = jax.tree.leaves(jax.jit(_step)(*arguments))
    found = jax.tree.leaves(jit(_step, budget=_SHARE)(*arguments))
    difference = max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max())
        for a, b in zip(found, expected, strict=True)
    )
    text = f"differs from jax.jit by at most {difference:.1g} at {_SHARE:.0%} of its memory"
    close = all(np.allclose(a, b, 1e-3, 1e-4) for a, b in zip(found, expected, strict=True))
    return Found(text) if close else Found(text, _WRONG, Status.FAILED)


ALL: tuple[tuple[str, Ask], ...] = (
    ("coop_jax.run", functools.partial(_in_runtime, run)),
    ("remat_eager", functools.partial(_in_runtime, remat_eager)),
    ("coop_jax.jit", _compiled),
)
