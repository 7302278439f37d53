"""Numbers of bytes that are named (least budgets, peaks, an error's) are accepted as budgets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax

Step = Callable[..., Any]


def _mlp(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for w, b in params:
            h = h + jax.nn.gelu(h @ w + b)
        return (h**2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value


def _cnn(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for w in params:
            h = jnp.tanh(
                lax.conv_general_dilated(
                    h, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        return (h**2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value


def _sorts(params: Any, x: Any) -> Any:
    return jax.tree.map(lambda p: jnp.sort(p * 2) + jnp.cumsum(p), params), jnp.fft.fft(x).real


def _scalars(params: Any, x: Any) -> Any:
    total = sum(params[0][k] * 2.0 for k in range(60))
    return [jnp.tanh(params[0] + total)], (x * total).sum()


def _ones(*shape: int) -> Any:
    return np.full(shape, 0.02, np.float32)


_PROGRAMS = {
    "mlp": (_mlp, [(_ones(96, 96), _ones(96)) for _ in range(4)], _ones(512, 96)),
    "cnn": (_cnn, [_ones(3, 3, 32, 32) for _ in range(3)], _ones(4, 32, 32, 32)),
    "sorts": (_sorts, [_ones(1 << 17)], _ones(1 << 17)),
    "scalars": (_scalars, [_ones(4096)], _ones(4096)),
}


def _arguments(name: str) -> tuple[Any, Any]:
    _, params, x = _PROGRAMS[name]
    return jax.tree.map(jnp.array, params), jnp.array(x)


@pytest.mark.parametrize("donate", [(), (0,)])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_the_least_budget_is_enough(name: str, donate: tuple[int, ...]) -> None:
    step = _PROGRAMS[name][0]
    least = coop_jax.min_budget(step, *_arguments(name), donate_argnums=donate, resolution=0.01)
    budgeted = coop_jax.run(step, budget=least, donate_argnums=donate)
    result = budgeted(*_arguments(name))
    assert budgeted.runtime.stats().peak_bytes <= least
    expected = coop_jax.run(step, donate_argnums=donate)(*_arguments(name))
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_the_budget_that_an_error_names_is_enough(name: str, fusion: bool) -> None:
    step = _PROGRAMS[name][0]
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        coop_jax.run(step, budget=1 << 12, donate_argnums=0, fusion=fusion)(*_arguments(name))
    smallest = caught.value.report.smallest_budget_bytes
    assert smallest is not None
    assert smallest >= caught.value.report.lower_bound_bytes
    coop_jax.run(step, budget=smallest, donate_argnums=0, fusion=fusion)(*_arguments(name))


@pytest.mark.parametrize("front_end", [coop_jax.run, coop_jax.remat_eager])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_peak_is_enough(name: str, front_end: Any) -> None:
    step = _PROGRAMS[name][0]
    first = front_end(step)
    first(*_arguments(name))
    stats = first.runtime.stats()
    assert stats.peak_bytes >= stats.external_bytes + stats.workspace_bytes
    again = front_end(step, budget=stats.peak_bytes)
    again(*_arguments(name))
    assert again.runtime.stats().peak_bytes <= stats.peak_bytes


def test_a_simulation_says_whether_it_knows_the_workspace() -> None:
    step = _PROGRAMS["cnn"][0]
    guessed = coop_jax.simulate(step, *_arguments("cnn"))
    known = coop_jax.simulate(step, *_arguments("cnn"), compile=True)
    assert (guessed.workspace_is_known, known.workspace_is_known) == (False, True)
    assert known.workspace_bytes > 0 == guessed.workspace_bytes
    budgeted = coop_jax.run(step, budget=known.peak_bytes)
    budgeted(*_arguments("cnn"))
    assert budgeted.runtime.stats().peak_bytes <= known.peak_bytes


def test_what_cannot_be_compiled_is_refused() -> None:
    step = _PROGRAMS["mlp"][0]
    with pytest.raises(ValueError, match="default device"):
        coop_jax.simulate(step, *_arguments("mlp"), compile=True, device_profile="h200")
    with pytest.raises(ValueError, match="give one of them"):
        coop_jax.simulate(step, *_arguments("mlp"), compile=True, workspace=0)


def _looping(w: Any, x: Any) -> Any:
    def body(carry: Any) -> Any:
        return carry[0] + 1, jnp.tanh(carry[1] @ w)  # the line that is looked for

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


@pytest.mark.parametrize("front_end", [coop_jax.run, coop_jax.remat_eager])
def test_the_error_of_a_loop_names_the_line_inside(front_end: Any) -> None:
    with pytest.raises(coop_jax.BudgetExceededError) as caught:
        front_end(_looping, budget="300KiB")(jnp.ones((64, 64)), jnp.ones((512, 64)))
    lines, begin = inspect.getsourcelines(_looping)
    at = begin + next(n for n, line in enumerate(lines) if "looked for" in line)
    report = caught.value.report
    assert f"test_budgets_agree.py:{at}" in report.source
    assert report.source in str(caught.value)
    assert report.budget_bytes < report.lower_bound_bytes
    assert str(report.lower_bound_bytes) in str(caught.value)
    # It is a bound: with that much at least this operation would have had its room.
    found = front_end(_looping)
    found(jnp.ones((64, 64)), jnp.ones((512, 64)))
    assert report.lower_bound_bytes <= found.runtime.stats().peak_bytes
