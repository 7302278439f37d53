"""Operations know a line of the user and the modules they are in, wherever JAX traced them."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax

X = jnp.linspace(-1, 1, 48 * 32).reshape(48, 32)


def dropout(x: jax.Array) -> jax.Array:
    """Random bits are made in functions that JAX jits, and traces once for all callers."""
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), x, 0)


def gathered(x: jax.Array) -> jax.Array:
    """Indices are normalized in JAX's own code."""
    return x[jnp.arange(5) * 3 % x.shape[0]].sum(0)


def scanned(x: jax.Array) -> jax.Array:
    """A body that holds a jitted function."""
    return jax.lax.scan(lambda c, row: (jax.nn.gelu(c + row), None), x[0], x)[0]


def operations(fn: Callable[..., Any], *, fusion: bool) -> Any:
    """Of the program that `run` makes of it."""
    return coop_jax.trace_program(fn, X, fusion=fusion).program.operations


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("fn", [dropout, gathered, scanned])
def test_every_operation_has_a_line_of_the_function(fn: Any, fusion: bool) -> None:
    for _ in range(2):  # what JAX remembers of the first time has other lines
        for op in operations(fn, fusion=fusion):
            file, _, rest = op.source.rpartition(":")
            assert pathlib.Path(file).name == pathlib.Path(__file__).name, op.source
            lines, first = inspect.getsourcelines(fn)
            assert first <= int(rest.split()[0]) < first + len(lines), op.source


@pytest.mark.parametrize("fusion", [False, True])
def test_name_stacks_are_whole(fusion: bool) -> None:
    def fn(x: jax.Array) -> jax.Array:
        with jax.named_scope("outer"):
            return scanned(dropout(x))

    for op in operations(fn, fusion=fusion):
        assert op.name_stack == "outer"
