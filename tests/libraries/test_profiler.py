"""`jax.profiler` and `jax.named_scope` around and inside of budgeted functions."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training import FRONT_ENDS, both_front_ends, make

from tests.testing.comparison import assert_same_bits

LAYERS, WIDTH, ROWS = 6, 32, 256


def _params() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6 for _ in range(LAYERS)]


@jax.profiler.annotate_function
def _layer(h: jax.Array, w: jax.Array) -> jax.Array:
    with jax.profiler.TraceAnnotation("layer", width=WIDTH), jax.named_scope("layer"):
        return jnp.tanh(h @ w) + jnp.sin(h)


def _step(params: Any, x: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        h = x
        with jax.named_scope("body"):
            for w in params:
                h = _layer(h, w)
        return (h**2).mean()

    with jax.profiler.StepTraceAnnotation("step", step_num=1):
        loss, grads = jax.value_and_grad(loss_fn)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], loss


def _x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)


@both_front_ends
def test_annotations_and_a_trace_change_nothing(front_end: str, tmp_path: pathlib.Path) -> None:
    unbudgeted = make(front_end, _step, None, donate=False)
    expected = unbudgeted(_params(), _x())
    step = make(front_end, _step, int(unbudgeted.runtime.stats().peak_bytes * 0.6), donate=False)
    with jax.profiler.trace(str(tmp_path)):
        for number in range(2):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                found = step(_params(), _x())
                jax.block_until_ready(found)
            assert_same_bits(found, expected)
            del found
    assert step.runtime.stats().rematerialisations > 0
    assert list(tmp_path.rglob("*.xplane.pb"))
    assert_same_bits(step(_params(), _x()), expected)


@both_front_ends
@pytest.mark.unless_forced("what comes back after its release is no eviction in the statistics")
def test_a_trace_shows_evictions_and_recomputations(front_end: str, tmp_path: pathlib.Path) -> None:
    unbudgeted = make(front_end, _step, None, donate=False)
    unbudgeted(_params(), _x())
    step = make(front_end, _step, int(unbudgeted.runtime.stats().peak_bytes * 0.6), donate=False)
    for _ in range(3):  # then a plan is carried out in C++
        step(_params(), _x())
    before = step.runtime.stats()
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(step(_params(), _x()))
    after = step.runtime.stats()
    (file,) = tmp_path.rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(file))
    names = [event.name for plane in data.planes for line in plane.lines for event in line.events]
    again = [name for name in names if name.startswith("coop_jax: run again ")]
    assert len(again) == after.rematerialisations - before.rematerialisations > 0
    evicted = [name for name in names if name.startswith("coop_jax: evict")]
    assert 0 < len(evicted) <= after.evictions - before.evictions


def test_device_memory_profile_with_arrays_in_the_pool() -> None:
    for front_end in FRONT_ENDS:
        step = make(front_end, _step, None, donate=False)
        kept = step(_params(), _x())
        assert len(jax.profiler.device_memory_profile()) > 0
        del kept
