"""Random keys that are used twice, where JAX was told to look for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.errors import KeyReuseError

import coop_jax

FRONT_ENDS: list[Callable[..., Any]] = [jax.jit, coop_jax.run, coop_jax.remat_eager]
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS, ids=["jit", "run", "eager"])


@pytest.fixture(autouse=True)
def _looked_for() -> Iterator[None]:
    with jax.debug_key_reuse(True):
        yield


def draw(key: Any) -> Any:
    return jax.random.uniform(key, (3,))


@front_ends
def test_within_a_call(front_end: Any) -> None:
    with pytest.raises(KeyReuseError):
        front_end(lambda key: draw(key) + draw(key))(jax.random.key(0))


@front_ends
def test_without_jit(front_end: Any) -> None:
    with jax.disable_jit(), pytest.raises(KeyReuseError):
        front_end(lambda key: jax.random.bits(key) + jax.random.bits(key))(jax.random.key(0))


@front_ends
def test_in_two_calls(front_end: Any) -> None:
    key, call = jax.random.key(0), front_end(draw)
    call(key)
    for again in (call, front_end(draw), draw):
        with pytest.raises(KeyReuseError, match="Previously-consumed key"):
            again(key)
    for _ in range(4):
        call(jax.random.key(0))


@front_ends
def test_before_a_call(front_end: Any) -> None:
    key = jax.random.key(0)
    draw(key)
    with pytest.raises(KeyReuseError, match="Previously-consumed key"):
        front_end(draw)(key)


@front_ends
def test_a_key_closed_over(front_end: Any) -> None:
    key = jax.random.key(0)
    call = front_end(lambda x: x + draw(key))
    call(1.0)
    with pytest.raises(KeyReuseError):
        call(1.0)


@front_ends
def test_a_result_that_was_used(front_end: Any) -> None:
    def used(key: Any) -> Any:
        draw(key)
        return key

    with pytest.raises(KeyReuseError):
        draw(front_end(used)(jax.random.key(0)))


@front_ends
def test_keys_that_are_used_once(front_end: Any) -> None:
    def program(key: Any, x: Any) -> Any:
        def body(key: Any, x: Any) -> Any:
            key, now = jax.random.split(key)
            return key, x * draw(now)

        key, ys = jax.lax.scan(body, key, x)
        return (
            key,
            ys,
            jax.grad(lambda x: x * draw(jax.random.fold_in(jax.random.clone(key), 1))[0])(x[0]),
        )

    call, key = front_end(program), jax.random.key(0)
    for _ in range(4):
        key, *_ = call(key, jnp.ones(3))
    draw(key)


@front_ends
def test_what_is_not_looked_for_is_not_found(front_end: Any) -> None:
    key, call = jax.random.key(0), front_end(draw)
    with jax.debug_key_reuse(False):
        for _ in range(4):
            call(key)
    call(key)
    with pytest.raises(KeyReuseError):
        call(key)
    with jax.debug_key_reuse(False):
        call(key)
