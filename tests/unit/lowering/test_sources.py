"""Operations know a line of the user and the modules they are in, wherever JAX traced them."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def library(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed package, whose jitted functions JAX traces once for all callers."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "a_library.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def _far(x, y):\n"
        "    return jnp.exp(-jnp.abs(x[:, None] - y[None]))\n"
        "@jax.jit\n"
        "def loop(x, y):\n"
        "    def body(s):\n"
        "        return s[0] + 1, s[1] + _far(x, y).sum()\n"
        "    return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, jnp.float32(0)))[1]\n"
        "@jax.jit\n"
        "def scanned(x, y):\n"
        "    add = lambda s, _: (s + _far(x, y).sum(), None)\n"
        "    return jax.lax.scan(add, 0.0, None, length=3)[0]\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("a_library")
    del sys.modules["a_library"]


@pytest.mark.parametrize("name", ["loop", "scanned"])
@pytest.mark.parametrize("front_end", [coop_jax.run, coop_jax.remat_eager])
def test_errors_within_a_library_name_the_line_that_calls_it(
    library: Any, front_end: Any, name: str
) -> None:
    call = getattr(library, name)
    x, y = jnp.ones(300), jnp.ones(200)
    call(x, y)  # so JAX has traced it for another caller

    def step(x: Any, y: Any) -> Any:
        return call(x, y) * 2

    with pytest.raises(coop_jax.BudgetExceededError) as info:
        front_end(step, budget="100KiB")(x, y)
    assert "test_sources.py" in str(info.value).splitlines()[0]
    assert "a_library.py" not in str(info.value)
