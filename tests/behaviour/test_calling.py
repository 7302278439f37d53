"""Static and donated arguments by position and name, methods, copies: as `jax.jit` has them."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax


def by_type(k: Any, x: jax.Array) -> jax.Array:
    return x * {int: 10, float: 2, bool: 3}[type(k)]


def scaled(x: jax.Array, sign: int = 1, *, twice: bool = False) -> jax.Array:
    return x * sign * (2 if twice else 1)


def positional(x: Any, y: Any, /, *rest: Any, **named: Any) -> Any:
    return (x, y, *rest, named)


@pytest.mark.parametrize("how", [{"static_argnums": 0}, {"static_argnames": "k"}])
def test_static_arguments_of_other_types_are_other_programs(how: Any) -> None:
    jitted = jax.jit(by_type, **how)
    step = coop_jax.run(by_type, budget="1MiB", **how)
    x = jnp.arange(3)
    for k in (2, 2.0, True, 1, 1.0, 2, 2.0, 2.0, 2.0):
        np.testing.assert_array_equal(step(k, x), jitted(k, x))
        np.testing.assert_array_equal(step(k=k, x=x), jitted(k=k, x=x))


@pytest.mark.parametrize(
    "how",
    [
        {"static_argnums": 1, "static_argnames": "twice"},
        {"static_argnames": ("sign", "twice")},
        {"static_argnums": 1, "static_argnames": ("sign", "twice"), "donate_argnames": "x"},
        {"static_argnames": ["twice", "sign"], "donate_argnums": 0},
    ],
)
def test_static_arguments_by_position_name_and_default(how: Any) -> None:
    jitted, step = jax.jit(scaled, **how), coop_jax.run(scaled, budget="1MiB", **how)
    calls: list[Callable[[Any], Any]] = [
        lambda f: f(jnp.ones(2)),
        lambda f: f(jnp.ones(2), -1),
        lambda f: f(jnp.ones(2), sign=-1),
        lambda f: f(jnp.ones(2), sign=3, twice=True),
        lambda f: f(x=jnp.ones(2), twice=True),
        lambda f: f(twice=True, sign=-1, x=jnp.ones(2)),
        lambda f: f(jnp.ones(2)),
    ]
    for call in [*calls, *calls]:
        np.testing.assert_array_equal(call(step), call(jitted))


def test_negative_positions_count_from_the_last_argument_of_the_call() -> None:
    step = coop_jax.run(lambda *xs: xs[0] * xs[-1], budget="1MiB", static_argnums=-1)
    assert float(step(jnp.ones(1), 3)[0]) == 3
    assert float(step(jnp.ones(1), jnp.ones(1), 4)[0]) == 4
    donating = coop_jax.run(lambda x, y: (y + 1, x), budget="1MiB", donate_argnums=-1)
    x, y = jnp.ones(4), jnp.ones(4)
    donating(x, y)
    assert y.is_deleted()
    assert not x.is_deleted()


@pytest.mark.parametrize("how", [{"donate_argnums": 0}, {"donate_argnames": "state"}])
def test_donation_by_keyword(how: Any) -> None:
    step = coop_jax.run(lambda state, x: (state + x, x), budget="1MiB", **how)
    for call in (lambda s, x: step(s, x), lambda s, x: step(x=x, state=s)):
        state, x = jnp.ones(64), jnp.ones(64)
        call(state, x)
        assert state.is_deleted()
        assert not x.is_deleted()


def test_simulation_takes_the_same_arguments() -> None:
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    how: Any = {"donate_argnames": "x", "static_argnames": ("sign", "twice")}
    simulation = coop_jax.simulate(scaled, x, -1, twice=True, budget="4MiB", **how)
    by_number = coop_jax.simulate(
        scaled, x, -1, twice=True, donate_argnums=0, static_argnums=1, static_argnames="twice"
    )
    assert simulation.peak_bytes == by_number.peak_bytes
    assert coop_jax.min_budget(scaled, x, twice=True, **how) > 0
    assert coop_jax.cutoff_budget(scaled, x, twice=True, **how) >= 0
    (swept,) = coop_jax.sweep(scaled, x, twice=True, budget=["4MiB"], progress=False, **how)
    assert swept.feasible
    step = coop_jax.run(scaled, budget="4MiB", **how)
    assert step.simulate(x, -1, twice=True).peak_bytes == simulation.peak_bytes


@pytest.mark.parametrize(
    ("fn", "how"),
    [
        (scaled, {"static_argnums": 2}),
        (scaled, {"static_argnums": -3}),
        (scaled, {"donate_argnums": 5}),
        (scaled, {"static_argnames": "z"}),
        (scaled, {"donate_argnames": "z"}),
        (scaled, {"static_argnums": 0, "donate_argnums": 0}),
        (scaled, {"static_argnames": "x", "donate_argnums": 0}),
        (scaled, {"static_argnums": 1.5}),
        (scaled, {"static_argnums": "sign"}),
        (scaled, {"static_argnames": 1}),
        (positional, {"static_argnames": "x"}),
    ],
)
def test_what_jit_refuses_is_refused(fn: Any, how: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as expected:
        jax.jit(fn, **how)
    with pytest.raises(expected.type):
        coop_jax.run(fn, **how)
    with pytest.raises(expected.type):
        coop_jax.simulate(fn, jnp.ones(3), **how)


def test_what_jit_takes_is_taken() -> None:
    for how in ({"static_argnums": 7}, {"static_argnames": "anything"}, {"donate_argnums": (3,)}):
        jitted = jax.jit(positional, **how)
        step = coop_jax.run(positional, budget="1MiB", **how)
        assert jax.tree.map(float, step(1.0, 2.0)) == jax.tree.map(float, jitted(1.0, 2.0))
    step = coop_jax.run(jnp.add, budget="1MiB")
    assert float(step(1.0, 2.0)) == 3


def test_static_arguments_without_hash_or_equality() -> None:
    step = coop_jax.run(lambda k, x: x, budget="1MiB", static_argnums=0)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        step([1], 1.0)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        coop_jax.run(lambda k, x: x, static_argnames="k")(k={}, x=1.0)

    class Incomparable:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not to be compared")

    one = Incomparable()
    for _ in range(2):
        assert float(step(one, 1.0)) == 1
    with pytest.raises(ValueError, match=r"comparable using __eq__.*not to be compared"):
        step(Incomparable(), 1.0)
    with pytest.raises(TypeError, match="generator"):
        coop_jax.run(lambda x: (yield x))


# --- Methods ---


class Model:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @functools.partial(coop_jax.run, budget="1MiB", static_argnums=0)
    def planned(self, x: jax.Array, *, shift: float = 0.0) -> jax.Array:
        return x * self.scale + shift

    @coop_jax.remat_eager(budget="1MiB")
    def eager(self, x: jax.Array, *, shift: float = 0.0) -> jax.Array:
        return x * self.scale + shift

    @classmethod
    @functools.partial(coop_jax.run, budget="1MiB", static_argnums=0)
    def of_class(cls, x: jax.Array) -> jax.Array:
        return x + len(cls.__name__)

    @staticmethod
    @functools.partial(coop_jax.run, budget="1MiB")
    def of_none(x: jax.Array) -> jax.Array:
        return x + 1

    @classmethod
    @coop_jax.remat_eager(budget="1MiB")
    def eager_of_class(cls, x: jax.Array) -> jax.Array:
        return x + len(cls.__name__)

    @staticmethod
    @coop_jax.remat_eager(budget="1MiB")
    def eager_of_none(x: jax.Array) -> jax.Array:
        return x + 1


def test_methods() -> None:
    two, three, x = Model(2.0), Model(3.0), jnp.ones(2)
    for _ in range(3):
        assert float(two.planned(x)[0]) == 2 == float(two.eager(x)[0])
        assert float(three.planned(x, shift=1.0)[0]) == 4 == float(three.eager(x, shift=1.0)[0])
        assert float(Model.planned(three, x)[0]) == 3 == float(Model.eager(three, x)[0])
    for holder in (Model, two):
        assert float(holder.of_class(x)[0]) == 6 == float(holder.eager_of_class(x)[0])
        assert float(holder.of_none(x)[0]) == 2 == float(holder.eager_of_none(x)[0])
    grad = jax.grad(lambda x: two.planned(x).sum() + two.eager(x).sum())(x)
    np.testing.assert_array_equal(grad, [4, 4])


def test_callables_of_all_kinds() -> None:
    class Adder:
        def __call__(self, x: jax.Array) -> jax.Array:
            return x + 1

    class Unhashable(Adder):
        __hash__ = None  # type: ignore[assignment]

    x = jnp.ones(2)
    for fn in (
        functools.partial(lambda y, x: x + y, 1),
        Adder(),
        Unhashable(),
        Adder().__call__,
        functools.partial(jax.jit(lambda x, y: x + y), y=1.0),
    ):
        assert float(coop_jax.run(fn, budget="1MiB")(x)[0]) == 2
        assert float(coop_jax.remat_eager(fn, budget="1MiB")(x)[0]) == 2
        assert coop_jax.simulate(fn, x).feasible


def test_wrapping_keeps_name_signature_and_documentation() -> None:
    def documented(x: jax.Array, y: int = 3) -> jax.Array:
        """Says what it does."""
        return x * y

    for made in (coop_jax.run(documented), coop_jax.remat_eager(documented)):
        assert made.__name__ == "documented"
        assert made.__doc__ == "Says what it does."
        assert inspect.signature(made) == inspect.signature(documented)


def test_copies_are_functions_of_their_own() -> None:
    x = jnp.ones(2)
    runtime = coop_jax.Runtime("1MiB")
    for made in (
        coop_jax.run(scaled, budget="1MiB", static_argnames="sign"),
        coop_jax.remat_eager(scaled, budget="1MiB"),
    ):
        made(x)
        for other in (copy.copy(made), copy.deepcopy(made)):
            assert float(other(x, sign=-1)[0]) == -1
            assert other.runtime is not made.runtime
            assert other.runtime.budget_bytes == made.runtime.budget_bytes
    shared = coop_jax.run(scaled, runtime=runtime)
    assert copy.deepcopy({"step": shared})["step"].runtime is runtime
