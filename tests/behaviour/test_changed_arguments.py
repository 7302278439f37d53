"""Arguments that a function changes in place are among its results, or the call is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from tests.testing.faults import Operations

both_front_ends = pytest.mark.parametrize("front_end", ["run", "remat_eager"])


@jax.tree_util.register_pytree_with_keys_class
class Meter:
    """A weight, and how often it was used."""

    def __init__(self, weight: Any, count: Any):
        self.weight, self.count = weight, count

    def tree_flatten_with_keys(self) -> Any:
        key = jax.tree_util.GetAttrKey
        return ((key("weight"), self.weight), (key("count"), self.count)), None

    def tree_flatten(self) -> Any:
        return (self.weight, self.count), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Meter:
        return cls(*children)


X = jnp.arange(3.0)


def _meter(count: Any = 0.0) -> Meter:
    return Meter(jnp.ones(3), jnp.asarray(count))


def _use(meter: Meter, x: jax.Array) -> jax.Array:
    meter.count = meter.count + 1
    return meter.weight * x


def _make(front_end: str, fn: Any) -> Any:
    return getattr(coop_jax, front_end)(fn, budget="1MiB")


@both_front_ends
@pytest.mark.parametrize(
    ("fn", "args", "name"),
    [
        (_use, (_meter(), X), "meter"),
        (_use, (Meter(jnp.ones(3), 7), X), "meter"),  # a number is a leaf like any other
        (lambda given: _use(given[0]["m"], given[1]), ([{"m": _meter()}, X],), "given[0]['m']"),
        (lambda x, *meters: _use(meters[1], x), (X, _meter(), _meter()), "meters[1]"),
        (lambda m, x: jax.jit(_use)(m, x) + _use(m, x), (_meter(), X), "m"),
        (lambda m, x: jax.grad(lambda x: _use(m, x).sum())(x), (_meter(), X), "m"),
    ],
)
def test_a_change_that_would_be_lost(
    front_end: str, fn: Any, args: Any, name: str, operations: Operations
) -> None:
    step = _make(front_end, fn)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"in place .*count.*lost") as caught:
            step(*args)
        assert f"argument {name}, a Meter" in str(caught.value)
    if front_end == "run":
        assert operations.count == 0
    assert step.runtime.stats().bytes_in_use == 0 if front_end == "remat_eager" else True
    np.testing.assert_array_equal(_make(front_end, lambda x: x * 2)(X), X * 2)


@both_front_ends
def test_a_keyword_argument(front_end: str) -> None:
    with pytest.raises(TypeError, match="argument meter, a Meter, in place"):
        _make(front_end, _use)(x=X, meter=_meter())


@both_front_ends
def test_under_a_transformation(front_end: str) -> None:
    step, meter = _make(front_end, _use), _meter()
    with pytest.raises(TypeError, match="in place"):
        jax.grad(lambda x: step(meter, x).sum())(X)


def test_in_a_simulation() -> None:
    for call in (coop_jax.simulate, coop_jax.min_budget):
        with pytest.raises(TypeError, match="in place"):
            call(_use, _meter(), X)


@both_front_ends
def test_what_was_added_or_taken_away(front_end: str) -> None:
    class Bag:
        def __init__(self, items: dict[str, Any]):
            self.items = items

    jax.tree_util.register_pytree_node(
        Bag,
        lambda b: (list(b.items.values()), tuple(b.items)),
        lambda k, v: Bag(dict(zip(k, v, strict=True))),
    )

    def add(bag: Bag) -> Any:
        bag.items["b"] = bag.items["a"] * 2
        return bag.items["a"] + 1

    def take(bag: Bag) -> Any:
        return bag.items.pop("a") + 1

    def reset(bag: Bag) -> Any:
        bag.items = dict(bag.items)
        return bag.items["a"] + 1

    for fn in (add, take):
        with pytest.raises(TypeError, match="in place"):
            _make(front_end, fn)(Bag({"a": X}))
    np.testing.assert_array_equal(_make(front_end, reset)(Bag({"a": X})), X + 1)


@both_front_ends
def test_changes_that_are_returned(front_end: str) -> None:
    meter = _meter()

    def whole(meter: Meter, x: jax.Array) -> Any:
        return _use(meter, x), {"meter": meter}

    def leaves(meter: Meter, x: jax.Array) -> Any:
        return _use(meter, x), meter.count

    value, results = _make(front_end, whole)(meter, X)
    np.testing.assert_array_equal(value, X)
    assert float(results["meter"].count) == 1
    assert float(_make(front_end, leaves)(meter, X)[1]) == 1
    assert float(meter.count) == 0


@both_front_ends
def test_what_is_as_it_was(front_end: str) -> None:
    def restored(meter: Meter, x: jax.Array) -> Any:
        before = meter.count
        value = _use(meter, x)
        meter.count = before
        return value

    def handed_through(meter: Meter, x: jax.Array) -> Any:
        meter.weight, meter.count, doubled = jax.jit(
            lambda w, c, x: (w, *jax.jit(lambda c, x: (c, x * 2))(c, x))
        )(meter.weight, meter.count, x)
        return doubled

    def filled(given: dict[str, Any], items: list[Any]) -> Any:  # the function's own, as in JAX
        given["b"] = given["a"] * 2
        items.append(given["b"])
        return items[-1]

    np.testing.assert_array_equal(_make(front_end, restored)(_meter(), X), X)
    np.testing.assert_array_equal(_make(front_end, handed_through)(_meter(), X), X * 2)
    np.testing.assert_array_equal(_make(front_end, filled)({"a": X}, []), X * 2)
    np.testing.assert_array_equal(_make(front_end, jax.jit(_use))(_meter(), X), X)


@both_front_ends
def test_objects_whose_leaves_are_made_anew(front_end: str) -> None:
    class Packed:
        def __init__(self, whole: Any):
            self.whole = whole

    jax.tree_util.register_pytree_node(
        Packed, lambda p: ((p.whole * 1,), None), lambda _, c: Packed(c[0])
    )
    np.testing.assert_array_equal(_make(front_end, lambda p: p.whole + 1)(Packed(X)), X + 1)


# --- Leaves that are no arrays ---


def test_leaves_that_are_no_arrays() -> None:
    def fn(net: Any, *rest: Any, **named: Any) -> Any:
        return net["w"] * 2

    step = coop_jax.run(fn)
    step({"w": X})
    for args, kwargs, name in (
        (({"w": X, "f": [jnp.tanh]},), {}, "net['f'][0]"),
        (({"w": "text"},), {}, "net['w']"),
        (({"w": X}, X, object()), {}, "rest[1]"),
        (({"w": X},), {"by": "text"}, "named['by']"),
    ):
        for call in (step, step.simulate, lambda *a, **k: coop_jax.simulate(fn, *a, **k)):
            with pytest.raises(TypeError, match="non-array argument") as caught:
                call(*args, **kwargs)
            assert f"at path {name}." in str(caught.value)
    np.testing.assert_array_equal(step({"w": X}), X * 2)
