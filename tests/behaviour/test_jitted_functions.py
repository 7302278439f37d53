"""A function that `jax.jit` returned has what is donated and static there, under all that plans."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax


def step(w: Any, x: Any, times: int = 2, *, flip: bool = False) -> Any:
    def loss(w: Any) -> Any:
        h = x
        for _ in range(times):
            h = jnp.tanh(h @ w)
        return (-h if flip else h).sum()

    value, grad = jax.value_and_grad(loss)(w)
    return w - 0.1 * grad, value


def arguments() -> tuple[jax.Array, jax.Array]:
    return 0.1 * jnp.eye(64), jnp.ones((32, 64))


jitted = functools.partial(jax.jit, donate_argnums=0, static_argnums=2, static_argnames="flip")
planning = pytest.mark.parametrize("front_end", [coop_jax.run, coop_jax.jit])


@planning
def test_donated_and_static_arguments_count(front_end: Any) -> None:
    w, x = arguments()
    expected = jitted(step)(jnp.copy(w), x, 3, flip=True)
    budgeted = front_end(jitted(step), budget="1MiB")
    found = budgeted(w, x, 3, flip=True)
    assert w.is_deleted()
    assert not x.is_deleted()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, expected)
    w = arguments()[0]
    budgeted(w=w, x=x)
    assert w.is_deleted()


@planning
def test_what_is_said_again_is_added(front_end: Any) -> None:
    w, x = arguments()
    x = x[:, :32] @ jnp.ones((32, 64))
    fn = jax.jit(lambda w, x: (w + 1, x * 2), donate_argnums=0)
    front_end(fn, budget="1MiB", donate_argnums=1)(w, x)
    assert w.is_deleted()
    assert x.is_deleted()


def bound(call: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    class Model:
        @functools.partial(jax.jit, static_argnums=(0, 3), donate_argnums=1)
        def step(self, w: Any, x: Any, times: int = 2) -> Any:
            return step(w, x, times)

    _, x = arguments()
    method = call(Model().step)
    return {
        "partial": call(functools.partial(jitted(step), x=x, flip=True)),
        "method": lambda w: method(w, x, 3),
    }


@planning
@pytest.mark.parametrize("how", ["partial", "method"])
def test_of_functions_bound_to_arguments_too(front_end: Any, how: str) -> None:
    w, _ = arguments()
    bound(functools.partial(front_end, budget="1MiB"))[how](w)
    assert w.is_deleted()


def test_a_wrapper_of_one_is_another_function() -> None:
    inner = jitted(step)

    @functools.wraps(inner)
    def swapped(x: Any, w: Any) -> Any:
        return inner(w, x)

    w, x = arguments()
    coop_jax.run(swapped, budget="1MiB")(x, w)
    assert not x.is_deleted()
    assert not w.is_deleted()


@pytest.mark.parametrize(
    "ask",
    [
        coop_jax.min_budget,
        functools.partial(coop_jax.min_budget, front_end="jit"),
        lambda *args, **options: coop_jax.simulate(*args, **options).peak_bytes,
    ],
)
def test_budgets_before_a_call_are_with_what_is_donated(ask: Any) -> None:
    def update(w: Any, x: Any) -> Any:
        return w + jnp.sin(x).sum()

    plain = jax.jit(update)

    shapes = tuple(jax.ShapeDtypeStruct((n, 256), jnp.float32) for n in (256, 64))
    donated = ask(plain, *shapes, donate_argnums=0)
    assert ask(jax.jit(update, donate_argnums=0), *shapes) == donated < ask(plain, *shapes)
