"""Trees of calls: the leaves and the trees that JAX finds and makes, or JAX is left to it."""

from __future__ import annotations

import collections
import dataclasses
import gc
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.run.call_trees import CallTrees, structure_of
from coop_jax._src.run.fast_path import KnownCalls
from coop_jax._src.util.calling_convention import Static
from tests.testing.comparison import assert_same_bits


class Pair(NamedTuple):
    a: Any
    b: Any = None


class Checked(Pair):
    """A named tuple that does something of its own when it is made."""

    def __new__(cls, a: Any, b: Any = None) -> Checked:
        made = super().__new__(cls, a, b)
        MADE.append(made)
        return made


MADE: list[Checked] = []


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    x: Any
    y: Any
    name: str = dataclasses.field(metadata={"static": True}, default="data")


@jax.tree_util.register_pytree_node_class
class Reversed:
    """A container of its own kind: children in another order, and data beside them."""

    def __init__(self, items: Any, data: Any = 0):
        self.items, self.data = list(items), data

    def tree_flatten(self) -> Any:
        return self.items[::-1], self.data

    @classmethod
    def tree_unflatten(cls, data: Any, children: Any) -> Reversed:
        return cls(list(children)[::-1], data)


TREES = {
    "leaf": 1.5,
    "nothing": None,
    "empty": ((), [], {}),
    "tuples and lists": (1, [2, (3, None)], []),
    "dictionaries": {"b": 1, "a": {"c": 2, "b": [4]}},
    "keys": {(1, 2): 1, (0, 5): 2},
    "named tuples": Pair(1, Pair({"x": 2})),
    "optimizer": optax.adamw(1e-3).init({"w": np.ones(3), "b": np.ones(())}),
    "made by itself": [Checked(1, 2)],
    "data class": Data(1, {"z": Data(2, 3, "inner")}),
    "own": Reversed([1, Reversed([2, 3], data=("x", 7)), {"k": 4}]),
    "ordered": collections.OrderedDict(b=1, a=2),
    "default": collections.defaultdict(list, {"q": 1}),
}


@pytest.mark.parametrize("name", TREES)
def test_as_jax(name: str) -> None:
    tree = TREES[name]
    structure = structure_of(tree)
    assert structure is not None
    leaves, tree_def = jax.tree_util.tree_flatten(tree)
    found = structure.leaves(tree)
    assert found is not None
    assert len(found) == len(leaves)
    assert all(x is y for x, y in zip(found, leaves, strict=True))
    others = [object() for _ in leaves]
    made = structure.build(others)
    expected = jax.tree_util.tree_unflatten(tree_def, others)
    found, found_def = jax.tree_util.tree_flatten(made)
    assert found_def == tree_def
    assert found == others
    assert type(made) is type(expected)
    if isinstance(tree, dict):
        assert list(made) == list(expected)


def test_what_makes_itself_is_asked_to() -> None:
    structure = structure_of(Checked(1, 2))
    assert structure is not None
    MADE.clear()
    made = structure.build([3, 4])
    assert [made] == MADE
    assert type(made) is Checked


OTHERS: list[tuple[Any, Any]] = [
    ((1, 2), (1, 2, 3)),
    ((1, 2), [1, 2]),
    ([1, 2], [1]),
    ((1, 2), Pair(1, 2)),
    (Pair(1, 2), Checked(1, 2)),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"a": 1}, collections.OrderedDict(a=1)),
    ((1, None), (1, 2)),
    ((1, 2), (1, None)),
    ((1, 2), (1, (2,))),
    ((1, 2), (1, 2.0)),  # a leaf of another type: for JAX to say
    (Data(1, 2), Data(1, 2, "other")),
    (Reversed([1]), Reversed([1], data=1)),
    (Reversed([1]), Reversed([1, 2])),
    (Reversed([1], data=np.ones(2)), Reversed([1], data=np.ones(2))),  # cannot be compared
]


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_another_structure_is_left_to_jax(number: int) -> None:
    tree, other = OTHERS[number]
    structure = structure_of(tree)
    assert structure is not None
    assert structure.leaves(other) is None


class Worse:
    def __eq__(self, other: object) -> bool:
        raise ValueError("not this one")

    def __hash__(self) -> int:
        return 1


def test_what_raises_is_left_to_jax() -> None:
    structure = structure_of({1: 2})
    assert structure is not None
    assert structure.leaves({Worse(): 2}) is None
    broken = Reversed([1])
    structure = structure_of(broken)
    assert structure is not None
    del broken.items
    with pytest.raises(AttributeError, match="items"):  # as in JAX
        structure.leaves(broken)


def test_nodes_have_to_be_those_of_a_tree() -> None:
    def ask(*_: Any) -> None:
        return None

    leaf, pair = (0, int, None, 0, None), (2, tuple, None, 2, None)
    for nodes in ([pair, leaf], [leaf, leaf], [pair, leaf, leaf, leaf], [(9, int, None, 0, None)]):
        with pytest.raises(ValueError, match="nodes of one tree"):
            _core.TreeStructure(nodes, (int,), ask)
    with pytest.raises(ValueError, match="a key for each child"):
        _core.TreeStructure([(4, dict, ("a",), 2, None), leaf, leaf], (int,), ask)
    with pytest.raises(ValueError, match="an item for each leaf"):
        _core.TreeStructure([pair, leaf, leaf], (int,), ask).build([1])


def test_who_is_held_by_data_is_collected() -> None:
    class Owner:
        pass

    owner: Any = Owner()
    owner.structure = structure_of(Reversed([1], data=(owner, "data")))
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_calls() -> None:
    trees = CallTrees(
        ((1, Static("static")), ("mode", Static(2))), jax.tree_util.tree_structure({"y": 0})
    )
    args = ({"x": 1.0}, "static", (2.0,))
    assert trees.leaves(args, {}) is None  # nothing is known yet
    trees.learn(args, {"k": 3.0, "mode": 2})
    assert trees.leaves(args, {"k": 4.0, "mode": 2}) == [1.0, 2.0, 4.0]
    for others, named in (
        (({"x": 1.0}, "other", (2.0,)), {"k": 3.0, "mode": 2}),
        (({"x": 1.0},), {"k": 3.0, "mode": 2}),
        (args, {"mode": 2}),
        (args, {"l": 3.0, "mode": 2}),
        (args, {"k": 3.0}),
        (args, {"k": 3.0, "mode": 2.0}),
    ):
        assert trees.leaves(others, named) is None
    assert trees.result([5]) == {"y": 5} == trees.result([5])


class State(NamedTuple):
    params: Any
    rest: Any


@pytest.mark.no_recomputation("steps are repeated where nothing is evicted by force")
def test_steps_take_the_short_way_with_every_container(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state: State, data: Data, *, scale: Any) -> tuple[State, Any]:
        w = state.params["w"] - 0.1 * data.x * scale["by"]
        rest = Reversed([w.sum(), state.rest.items[1] + 1], data=state.rest.data)
        return State({"w": w}, rest), {"loss": (w**2).sum(), "none": None}

    def first() -> State:
        return State({"w": jnp.ones((64, 8))}, Reversed([jnp.zeros(()), jnp.zeros(())], "kept"))

    data, scale = Data(jnp.full((64, 8), 0.5, jnp.float32), None), {"by": jnp.float32(2)}
    repeated = []
    repeat = KnownCalls.repeat

    def seen(self: KnownCalls, *args: Any) -> Any:
        found = repeat(self, *args)
        repeated.append(found is not None)
        return found

    monkeypatch.setattr(KnownCalls, "repeat", seen)
    monkeypatch.delenv("COOP_JAX_VERIFY", raising=False)  # who verifies goes the long way
    given, expected = first(), first()
    run = coop_jax.run(step, donate_argnums=0, fusion=False)
    for _ in range(8):
        given, output = run(given, data, scale=scale)
        expected, wanted = jax.jit(step)(expected, data, scale=scale)
        assert jax.tree.structure(given) == jax.tree.structure(expected)
        assert type(given) is State
        assert given.rest.data == "kept"
        assert output.keys() == wanted.keys()
    np.testing.assert_allclose(given.params["w"], expected.params["w"], rtol=1e-6)
    # Another tree of the same leaves is another signature.
    other = run(State(given.params, Reversed(given.rest.items, "other")), data, scale=scale)[0]
    assert other.rest.data == "other"
    assert repeated.count(True) >= 3, repeated
    assert_same_bits(run(other, data, scale=scale)[0].rest.items[1], jnp.float32(10))
