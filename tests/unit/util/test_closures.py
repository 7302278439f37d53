"""`remat_eager` inside transformations whose values its function closes over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.util.closures import Closure

Y = np.linspace(0.5, 1, 4096, dtype=np.float32).reshape(64, 64)
eager = functools.partial(coop_jax.remat_eager, budget="1MiB")


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def of_a_closure(wrap: Any, z: Any) -> Any:
    return wrap(lambda q: (q * z).sum())(Y)


def of_arguments_too(wrap: Any, z: Any) -> Any:
    return wrap(lambda q: (q * z * z).sum())(Y * z)


def without_arguments(wrap: Any, z: Any) -> Any:
    return wrap(lambda: (jnp.asarray(Y) * z).sum())()


def branching(wrap: Any, z: Any) -> Any:
    return wrap(lambda q: (q * z).sum() if z > 0 else q.sum())(Y)


def of_trees_and_helpers(wrap: Any, z: Any) -> Any:
    tree = {"w": [z, 2.0]}

    def helper(q: Any, n: int) -> Any:
        return q * tree["w"][0] if n == 0 else helper(q, n - 1)

    def function(q: Any, bias: Any = z, *, scale: Any = (z, 1.0)) -> Any:
        return (helper(q, 3) + bias).sum() * scale[0]

    return wrap(function)(Y)


def of_partial(wrap: Any, z: Any) -> Any:
    return wrap(functools.partial(lambda a, q, b: (a * q * b).sum(), z, b=z + 1))(Y)


def differentiating_inside(wrap: Any, z: Any) -> Any:
    return wrap(lambda q: jax.grad(lambda r: (r * r * z).sum())(q).sum())(Y)


PROGRAMS = [of_a_closure, of_arguments_too, without_arguments, branching, of_trees_and_helpers]
PROGRAMS += [of_partial, differentiating_inside]

AROUND: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "grad": lambda f: jax.grad(f)(1.5),
    "vmap": lambda f: jax.vmap(f)(jnp.arange(1.0, 4.0)),
    "jvp": lambda f: jax.jvp(f, (1.5,), (2.0,)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f))(jnp.arange(1.0, 4.0)),
    "hessian": lambda f: jax.hessian(f)(1.5),
    "linearize": lambda f: jax.linearize(f, 1.5)[1](3.0),
    "jit": lambda f: jax.jit(f)(1.5),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_function_closes_over(program: Any, around: str) -> None:
    transform = AROUND[around]
    if program is branching and around in ("vmap", "vmap of grad", "jit"):
        pytest.skip("whose values Python cannot branch on")
    found = transform(functools.partial(program, eager))
    wanted = transform(functools.partial(program, plain))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


class Scaled:
    def __init__(self, weight: Any):
        self.weight = weight

    def method(self, q: Any) -> Any:
        return (q * self.weight).sum()


jax.tree_util.register_pytree_node(
    Scaled, lambda x: ((x.weight,), None), lambda _, children: Scaled(*children)
)


def test_methods_of_pytrees() -> None:
    gradient = jax.grad(lambda z: eager(Scaled(z).method)(Y))(1.5)
    assert float(gradient) == pytest.approx(float(Y.sum()), rel=1e-5)


def test_cells_without_tracers_are_the_callers() -> None:
    count = 0

    def loss(z: Any) -> Any:
        def function(q: Any) -> Any:
            nonlocal count
            count += 1
            return (q * z).sum()

        return eager(function)(Y)

    jax.grad(loss)(1.5)
    assert count >= 1


def test_a_function_without_tracers_is_itself() -> None:
    def function(q: Any) -> Any:
        return q * Y.sum()

    closure = Closure(function)
    assert closure.tracers == []
    assert closure.function([]) is function


def test_what_is_not_found_is_named() -> None:
    class Plain:
        weight: Any = None

    holder = Plain()

    def loss(z: Any) -> Any:
        holder.weight = z
        return eager(lambda q: (q * holder.weight).sum())(Y)

    with pytest.raises(jax.errors.UnexpectedTracerError, match="pass it as an argument"):
        jax.grad(loss)(1.5)
