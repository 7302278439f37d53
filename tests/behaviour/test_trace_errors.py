"""Errors of tracing name the user's function, argument and result as `jax.jit`'s do, not ours."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax

V = jnp.ones(2)


class Callable1:
    def __call__(self, x: Any) -> Any:
        return x if x.sum() > 0 else x + 1


def loss(params: Any, batch: Any, *, scale: Any = 1.0) -> Any:
    return params["w"] * scale if batch["x"].sum() > 0 else params["w"]


def kept(x: Any, keep: Any = 1) -> Any:
    return x if x.sum() > keep else x + 1


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "truth": (loss, ({"w": V}, {"x": V}), {}, {}),
    "truth of keyword": (lambda x, *, y: x if y > 0 else -x, (V,), {"y": 1.0}, {}),
    "truth beside static": (kept, (V, 3), {}, {"static_argnums": 1}),
    "truth beside named static": (kept, (V,), {"keep": 3}, {"static_argnames": "keep"}),
    "int": (lambda x, n: x * int(n), (V, 3), {}, {}),
    "index": (lambda x, n: [1, 2][n] * x, (V, 1), {}, {}),
    "NumPy": (lambda x: np.sin(x), (V,), {}, {}),
    "mask": (lambda x: x[x > 0], (V,), {}, {}),
    "length": (lambda n: jnp.arange(n), (3,), {}, {}),
    "text result": (lambda x: {"r": [x, "text"]}, (V,), {}, {}),
    "object result": (lambda x: object, (V,), {}, {}),
    "shapes": (lambda x, y: x @ y, (jnp.ones((2, 3)), jnp.ones((2, 3))), {}, {}),
    "missing": (lambda x, y: x, (V,), {}, {}),
    "unexpected": (lambda x: x, (V,), {"z": 1.0}, {}),
    "partial": (functools.partial(lambda y, x: y if x.sum() > 0 else x, 1.0), (V,), {}, {}),
    "callable": (Callable1(), (V,), {}, {}),
    "its own": (lambda x: 1 / 0, (V,), {}, {}),
}


def ways(fn: Callable[..., Any], how: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        step = coop_jax.run(fn, budget="1MiB", **how)
        first = jax.tree.map(jnp.float32, args[0])
        return jax.grad(lambda x: jnp.sum(step(x, *args[1:], **kwargs)))(first)

    return {
        "run": coop_jax.run(fn, budget="1MiB", **how),
        "run of a fraction": coop_jax.run(fn, budget=0.9, **how),
        "simulate": functools.partial(coop_jax.simulate, fn, budget="1MiB", **how),
        "grad": differentiated,
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_messages_are_those_of_jit(name: str) -> None:
    fn, args, kwargs, how = PROGRAMS[name]
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whichever it is
        jax.jit(fn, **how)(*args, **kwargs)
    for way, call in ways(fn, how).items():
        if way == "grad" and name in ("length", "shapes"):  # integers; another function
            continue
        with pytest.raises(expected.type) as found:
            call(*args, **kwargs)
        assert str(found.value) == str(expected.value), way
        assert "_src" not in str(found.value)


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        (({"w": "text"}, {"x": V}), {}, "params['w']"),
        (({"w": V}, {"x": [V, object()]}), {}, "batch['x'][1]"),
        (({"w": V}, {"x": V}), {"scale": "1"}, "scale"),
        (({"w": V},), {"batch": b"bytes"}, "batch"),
    ],
)
def test_arguments_that_are_no_arrays_are_named(args: Any, kwargs: Any, path: str) -> None:
    with pytest.raises(TypeError, match="abstract array"):
        jax.jit(loss)(*args, **kwargs)
    step = coop_jax.run(loss, budget="1MiB")
    for call in (step, step.simulate, functools.partial(coop_jax.min_budget, loss)):
        with pytest.raises(TypeError, match="Error interpreting argument to loss at") as found:
            call(*args, **kwargs)  # type: ignore[operator]
        assert f"at path {path}." in str(found.value)
        assert "leaves" not in str(found.value)
    with pytest.raises(RuntimeError):
        _ = step.runtime  # nothing was made


def test_numbers_that_no_type_holds_are_named() -> None:
    step = coop_jax.run(loss, budget="1MiB")
    with pytest.raises(OverflowError, match=r"argument path is params\['w'\]"):
        step({"w": 1 << 80}, {"x": V})


def test_leaked_tracers_are_said_to_be_of_the_user() -> None:
    leaked: list[Any] = []

    def leaking(x: jax.Array) -> jax.Array:
        leaked.append(x * 2)
        return x

    coop_jax.run(leaking, budget="1MiB")(V)
    with pytest.raises(jax.errors.UnexpectedTracerError) as found:
        coop_jax.run(lambda x: x + leaked[0], budget="1MiB")(V)
    assert "leaking at" in str(found.value)
    assert "coop_jax/_src" not in str(found.value)


def test_a_fraction_of_an_eager_function_that_reads_values_says_so() -> None:
    for fn in (
        lambda x: x if x.sum() > 0 else -x,
        lambda x: [1, 2][x.argmax()] * x,
        lambda x: np.sin(x) * x,
        lambda x: x[x > 0],
    ):
        eager = coop_jax.remat_eager(fn, budget=0.9)
        with pytest.raises(ValueError, match="depends on values"):
            eager(V)


def test_a_fraction_of_an_eager_function_of_what_is_no_array() -> None:
    def scaled(x: jax.Array, how: str, times: int) -> Any:
        for _ in range(times):
            x = x * {"double": 2.0}[how]
        return x, how

    x = jnp.ones(1000)
    eager = coop_jax.remat_eager(scaled, budget=1.0)
    with contextlib.suppress(coop_jax.BudgetExceededError):
        eager(x, "double", 3)
    assert (eager.runtime.budget_bytes or 0) >= 2 * x.nbytes
