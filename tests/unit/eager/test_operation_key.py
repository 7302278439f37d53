"""Prepared operations are found in the short way exactly where their full keys say so."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import jaxprs
from coop_jax._src.eager.session import Session
from coop_jax._src.eager.values import operand_key
from coop_jax._src.ir.equations import LiteralValue

_NOTHING = object()

# What the table is told of JAX's literals.
KINDS = (
    jaxprs.WEAK_LITERALS,
    LiteralValue,
    jaxprs.LITERAL_ARRAY,
    jaxprs.LITERAL_ARRAY_AVAL,
)


class Axes(NamedTuple):
    first: int
    second: Any


@dataclasses.dataclass(frozen=True)
class Mode:
    """Equal to others at other addresses, which are used again."""

    name: str


def literal_array(value: float, dtype: Any, *, weak: bool) -> Any:
    """As JAX makes one of a number."""
    aval = jax.core.ShapedArray((), dtype, weak_type=weak)
    return jaxprs.LITERAL_ARRAY(np.asarray(value, dtype), aval)


def some_param(generator: random.Random, depth: int = 0) -> Any:
    """A parameter; many are equal, few are the same object."""
    kind = generator.randrange(10 if depth < 2 else 7)
    if kind == 0:
        return generator.choice([None, True, False, "same", "valid"])
    if kind == 1:
        return generator.choice([0, 1, -1, 1 << 70, 257])
    if kind == 2:
        return generator.choice([0.0, -0.0, 1.0, 0.5])
    if kind == 3:
        return Mode(generator.choice(["clip", "fill"]))
    if kind == 4:
        return np.dtype(generator.choice(["float32", "int32"]))
    if kind == 5:
        return frozenset([generator.randrange(3)])
    if kind == 6:
        return "".join(generator.choices("ab", k=2))
    if kind == 7:
        return Axes(generator.randrange(2), some_param(generator, depth + 1))
    return tuple(some_param(generator, depth + 1) for _ in range(generator.randrange(3)))


def test_the_short_way_agrees_with_the_full_key() -> None:
    generator = random.Random(7)
    session = Session(coop_jax.Runtime(1 << 20))
    arrays = [jnp.ones((4, 8)), jnp.ones((4, 8)), jnp.ones(8), jnp.ones(8, jnp.int32)]
    values = [session.value_of(x) for x in arrays]
    constants = [LiteralValue(1.0, jax.core.ShapedArray((), jnp.float32)) for _ in range(2)]
    typed = [kind(1, np.dtype(jnp.float32)) for kind in jaxprs.WEAK_LITERALS]
    contexts = [None, object(), object()]
    table = _core.PreparedOperations(*KINDS)
    prepared: dict[Any, object] = {}

    def some_operand() -> Any:
        fresh = np.full((), generator.random(), generator.choice([np.float32, np.int32]))
        literal = LiteralValue(generator.choice([1.0, 2.0]), constants[0].aval)
        array = literal_array(generator.random(), fresh.dtype, weak=generator.random() < 0.5)
        longer = jaxprs.LITERAL_ARRAY(np.ones(generator.randrange(3), np.float32))
        others = [fresh, literal, array, longer, 1.5, 2]
        return generator.choice([*values, *constants, *typed, *others])

    again = 0
    for _ in range(20_000):
        operands = [some_operand() for _ in range(generator.randrange(1, 4))]
        if len(operands) > 1 and generator.random() < 0.3:
            operands[-1] = operands[0]
        names = generator.sample(["axis", "mode"], generator.randrange(3))
        params = {name: some_param(generator) for name in names}
        primitive = generator.choice([jax.lax.add_p, jax.lax.mul_p])
        context = generator.choice(contexts)
        key = _core.operation_key(operand_key, primitive, operands, params, context)
        for _ in range(2):  # the second time in the short way
            found = table.find(operand_key, primitive, operands, params, context, _NOTHING)
            assert found is prepared.get(key, _NOTHING)
        again += found is not _NOTHING
        if found is _NOTHING:
            prepared[key] = table_entry = object()
            table[key] = table_entry  # type: ignore[assignment]
    assert 1000 < again < 19_000
    assert len(table) == len(prepared)
    session.close()


class Table:
    """The table beside a dict by full keys."""

    def __init__(self) -> None:
        self._table = _core.PreparedOperations(*KINDS)
        self._prepared: dict[Any, object] = {}

    def check(self, primitive: Any, operands: list[Any], params: dict[str, Any]) -> None:
        """Both know an operation, or neither; then both do."""
        call = (operand_key, primitive, operands, params, None)
        key = _core.operation_key(*call)
        assert self._table.find(*call, _NOTHING) is self._prepared.get(key, _NOTHING)
        if key not in self._prepared:
            self._prepared[key] = entry = object()
            self._table[key] = entry  # type: ignore[assignment]

    def clear(self) -> None:
        """Neither knows any."""
        self._table.clear()
        self._prepared.clear()


def test_operations_are_told_apart_where_calls_repeat() -> None:
    """What is expected next, by what came last time, is found only where it is what comes."""
    generator = random.Random(3)
    table = Table()

    def some_call() -> tuple[Any, list[Any], dict[str, Any]]:
        params = {"axis": some_param(generator), "mode": some_param(generator)}
        operands = [generator.choice([1.0, 2]) for _ in range(generator.randrange(1, 3))]
        return generator.choice([jax.lax.add_p, jax.lax.mul_p]), operands, params

    calls = [some_call() for _ in range(60)]
    for _ in range(200):
        if generator.random() < 0.5:  # once different: in a parameter, its name, or an operand
            place = generator.randrange(len(calls))
            params = calls[place][2]
            change = generator.randrange(3)
            if change == 0:
                params[list(params)[-1]] = some_param(generator)
            elif change == 1:
                name, value = params.popitem()
                params["kind" if name == "mode" else "mode"] = value
            else:
                calls[place] = some_call()
        for primitive, operands, params in calls:
            table.check(primitive, operands, params)
        if generator.random() < 0.03:
            table.clear()


def test_long_parameters_are_told_apart() -> None:
    """Wherever they differ: what is long lies elsewhere than what is short."""
    generator = random.Random(5)
    table = Table()
    calls = []
    for size in (20, 60, 119, 120, 121, 150, 400):
        params = {name: list(range(size)) for name in ("first", "second")}
        calls += [(primitive, params) for primitive in (jax.lax.add_p, jax.lax.mul_p)]
    for _ in range(100):
        changed = generator.choice(list(generator.choice(calls)[1].values()))
        changed[generator.randrange(len(changed))] = generator.choice([-1, 1000])
        for primitive, params in calls:
            fresh = {name: tuple(values) for name, values in params.items()}
            table.check(primitive, [1.0], fresh)


@pytest.mark.parametrize("times", [1, 100])
def test_numpys_integers_are_not_hashed_again(times: int) -> None:
    """NumPy's functions of shapes give new ones each time."""
    hashed = []

    class Counted:
        def __hash__(self) -> int:
            hashed.append(self)
            return 1

    counted = Counted()

    def call_of(*axes: Any) -> tuple[Any, ...]:
        params = {"axes": axes * times, "mode": counted}
        return operand_key, jax.lax.neg_p, [2.0], params, None

    def find(*axes: Any) -> Any:
        return table.find(*call_of(*axes), _NOTHING)

    table = _core.PreparedOperations(*KINDS)
    table[_core.operation_key(*call_of(3, 400))] = None
    assert find(3, 400) is None
    before = len(hashed)
    assert before > 0
    for _ in range(3):
        assert find(np.int64(3), np.int32(400)) is None
        assert find(3, np.int64(400)) is None
    assert len(hashed) == before
    assert find(np.int64(3), np.int64(401)) is _NOTHING


def test_many_operands_are_found_too() -> None:
    table = _core.PreparedOperations(*KINDS)
    for count in (10, 1000, 5000):
        params = {"places": (None,) * count}
        operands = [np.float32(1)] * 3
        key = _core.operation_key(operand_key, jax.lax.add_p, operands, params, None)
        table[key] = None
        for _ in range(3):
            found = table.find(operand_key, jax.lax.add_p, operands, params, None, _NOTHING)
            assert found is None


def test_what_has_no_hash_is_not_known() -> None:
    table = _core.PreparedOperations(*KINDS)
    found = table.find(operand_key, jax.lax.add_p, [], {"axes": []}, None, _NOTHING)
    assert found is _NOTHING
    with pytest.raises(TypeError, match="unhashable"):
        table.get(([],))


def test_what_is_cleared_is_forgotten() -> None:
    table = _core.PreparedOperations(*KINDS)
    call = (operand_key, jax.lax.neg_p, [2.0], {}, None)
    table[_core.operation_key(*call)] = None
    for _ in range(2):
        assert table.find(*call, _NOTHING) is None
    table.clear()
    assert table.find(*call, _NOTHING) is _NOTHING
    assert len(table) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16, np.complex64])
def test_arrays_of_literals_are_given_as_they_were(dtype: Any) -> None:
    """Also where what is evicted is made from them again, and they hold something else by then."""
    count = 4096  # not kept outside the pool

    @coop_jax.remat_eager
    def padded(x: jax.Array) -> list[jax.Array]:
        out = []
        for number in (1, 2, 1, 3):
            literal = literal_array(number, dtype, weak=False)
            out.append(jax.lax.pad_p.bind(x, literal, padding_config=((0, 1, 0),)))
            literal[...] = 7
        return out

    x = jnp.arange(count).astype(dtype)
    for _ in range(2):
        for got, number in zip(padded(x), (1, 2, 1, 3), strict=True):
            np.testing.assert_array_equal(got[:count], x)
            assert got[count] == number


def test_values_are_only_made_by_sessions() -> None:
    with pytest.raises(TypeError, match="cannot create"):
        _core.Value()
    session = Session(coop_jax.Runtime(1 << 20))
    value = session.value_of(jnp.ones((4, 8)))
    assert value.aval.shape == (4, 8)
    assert session.alias(value).storage == value.storage
    with pytest.raises(AttributeError):
        value.storage = 3
    with pytest.raises(TypeError, match="immutable"):
        _core.Value.key = 3
    session.close()
    assert value.aval.shape == (4, 8)
