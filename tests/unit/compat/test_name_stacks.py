"""Modules, operation and phase, read from the names that JAX gives to operations."""

from __future__ import annotations

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.compat import name_stacks
from coop_jax._src.compat.name_stacks import NameStack


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        ("", NameStack("", "", "other")),
        ("add", NameStack("", "add", "other")),
        ("jit(step)/jvp(Net)/a/a/mul", NameStack("Net/a/a", "mul", "forward")),
        ("jit(step)/jvp(Net/Dense_0)/dot", NameStack("Net/Dense_0", "dot", "forward")),
        ("jit(step)/call_exported/jit(f)/jvp(Net)/mul", NameStack("Net", "mul", "forward")),
        ("jvp(Net)/a/a/checkpoint/mul", NameStack("Net/a/a", "mul", "forward")),
        (
            "transpose(jvp(Net))/a/jvp(Net)/a/checkpoint/b/mul",
            NameStack("Net/a/b", "mul", "backward"),
        ),
        ("transpose(jvp(Net))/a/a/checkpoint/b/mul", NameStack("Net/a/b", "mul", "backward")),
        ("transpose(jvp(a))/a/a/a/checkpoint/mul", NameStack("a/a", "mul", "backward")),
        ("transpose(jvp(Net))/jvp(Net)/remat2", NameStack("Net", "remat2", "backward")),
    ],
)
def test_what_is_read(op_name: str, expected: NameStack) -> None:
    assert name_stacks.read(op_name) == expected


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(nn.Dense(32)(x))


class Group(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for n in range(2):
            x = nn.remat(Block)(name=f"block_{n}")(x)
        return x


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return Group(name="group")(nn.Dense(32, name="first")(x)).sum()


def test_modules_under_checkpoints_are_named_once() -> None:
    """As XLA names them, and as the operations of `run` are."""
    x = jnp.ones((256, 32))
    params = Net().init(jax.random.key(0), x)
    gradient = jax.grad(Net().apply)
    compiled = jax.jit(gradient).lower(params, x).compile().as_text()
    program = coop_jax.trace_program(gradient, params, x, fusion=True).program
    for names in (
        [n for n in re.findall(r'op_name="([^"]*)"', compiled) if n.startswith("jit(")],
        [f"{op.name_stack}/{op.kernel.label}" for op in program.operations],
    ):
        modules = {name_stacks.read(n).modules for n in names}
        blocks = {f"Net/group/block_{n}" for n in range(2)}
        dense = {f"{block}/Dense_0" for block in blocks}
        assert dense <= modules
        assert modules <= blocks | dense | {"", "Net", "Net/first", "Net/group"}
