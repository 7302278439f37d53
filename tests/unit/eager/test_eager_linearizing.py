"""Derivatives of primitives in eager calls: what is remembered of them gives what JAX gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import ad

import coop_jax
from coop_jax._src.compat import jaxprs
from coop_jax._src.eager import session
from coop_jax._src.eager.trace import linearization_cache
from tests.testing.comparison import assert_same_bits

X = jnp.linspace(0.2, 2.1, 48).reshape(6, 8)
Y = jnp.cos(X) * 2
IMAGE = jnp.linspace(-1, 1, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
FILTER = jnp.linspace(-0.5, 0.4, 3 * 3 * 3 * 4).reshape(3, 3, 3, 4)
ROWS = jnp.array([3, 0, 3, 5])

# Of two arrays, the second one X-shaped unless it is given beside.
_FUNCTIONS: dict[str, Callable[[jax.Array, jax.Array], Any]] = {
    "product": lambda x, y: x * y,
    "square": lambda x, y: x * x + y,
    "cube and root": lambda x, y: x**3 + x**0.5 - y,
    "power": lambda x, y: x**y,
    "number": lambda x, y: 0.3 * x - x / 7 + 2 * y,
    "quotient": lambda x, y: x / y,
    "elementary": lambda x, y: jnp.sin(x) * jnp.exp(-y) + jnp.tanh(x) + jnp.log(x) + jnp.sqrt(x),
    "extremes": lambda x, y: jnp.maximum(x, y) + jnp.minimum(x, x) + jnp.maximum(x, 1.0),
    "select": lambda x, y: jnp.where(x > y, x, 2.0 * y),
    "clamp": lambda x, y: jax.lax.clamp(0.5, x, 1.5) * y,
    "matrices": lambda x, y: x @ y.T @ x,
    "one matrix": lambda x, y: x @ x.T + (y @ y.T),
    "contraction": lambda x, y: jnp.einsum("ab,ac->bc", x, y),
    "reductions": lambda x, y: x.max() * y.sum(0) + x.mean(1, keepdims=True) + x.prod(),
    "sums so far": lambda x, y: jnp.cumsum(x, 1) + jnp.cumprod(y, 0) + jax.lax.cummax(x, 0),
    "sorted": lambda x, y: jnp.sort(x * y, 0),
    "gather": lambda x, y: x[ROWS] + y[1:5, :] + jnp.take(x, ROWS, 0),
    "scatter": lambda x, y: x.at[ROWS].add(y[:4]).at[2].set(0.5).at[1].mul(y[0]),
    "slices": lambda x, y: jax.lax.dynamic_slice(x, (1, 2), (3, 4)) * jnp.concatenate([x, y])[5, 0],
    "shapes": lambda x, y: x.reshape(8, 6).T[None] + jnp.pad(y, 1)[1:-1, 1:-1] + x[::-1],
    "updates": lambda x, y: jax.lax.dynamic_update_slice(x, y[:2], (1, 0)),
    "no tangent": lambda x, y: jax.lax.stop_gradient(x) * y + jnp.round(x) * y + (x > 1) * y,
    "integers": lambda x, y: x * jnp.argmax(y) + y.astype(jnp.int32) + x.astype(jnp.bfloat16),
    "complex": lambda x, y: jnp.abs(jax.lax.complex(x, y) ** 2) + jnp.real(jnp.exp(1j * x)),
    "statistics": lambda x, y: jax.nn.softmax(x) * jax.nn.logsumexp(y) + jax.nn.gelu(x),
    "norms": lambda x, y: jnp.linalg.norm(x) * (x - x.mean()) / jnp.sqrt(x.var() + 1e-5) + y,
    "special": lambda x, y: jax.scipy.special.erf(x) + jax.lax.lgamma(x) + jnp.arctan2(x, y),
    "decompositions": lambda x, y: jnp.linalg.cholesky(x.T @ x + 3 * jnp.eye(8)).sum() * y,
    "rounded": lambda x, y: jax.lax.reduce_precision(x, 8, 7) * y,
    "loops": lambda x, y: jax.lax.fori_loop(0, 3, lambda i, v: jnp.sin(v) * y, x),
    "scan": lambda x, y: jax.lax.scan(lambda c, a: (c * a, c + a), y[0], x)[1],
    "checkpoint": lambda x, y: jax.checkpoint(lambda a: jnp.sin(a * y))(x),
}


def _loss(f: Callable[..., Any]) -> Callable[..., jax.Array]:
    weights = jnp.linspace(0.5, 1.5, 8)
    return lambda *xs: (jnp.real(jnp.asarray(f(*xs), jnp.float32)) * weights[0]).sum()


def _gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(_loss(f), (0, 1))


def _asked_of_jax(f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """An eager call that remembers nothing.

    Its bits are those of plain JAX but where newer versions of it run several primitives of a
    derivative as one: on some machines a product that is transposed is rounded in another way then.
    """
    with monkeypatch.context() as patch:
        patch.setattr(linearization_cache, "install", lambda: None)
        patch.setattr(
            linearization_cache.ad, "fallback_linearize_rule", linearization_cache._by_jax
        )
        found = coop_jax.remat_eager(f)(X, Y)
    for a, b in zip(
        jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(f(X, Y)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return found


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_gradients_are_jaxs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = _gradients(_FUNCTIONS[name])
    wanted = _asked_of_jax(gradients, monkeypatch)
    eager = coop_jax.remat_eager(gradients)
    for _ in range(3):  # asked of JAX, remembered, remembered
        assert_same_bits(eager(X, Y), wanted)
    one = coop_jax.remat_eager(jax.grad(_loss(_FUNCTIONS[name])))
    for _ in range(2):  # the other operand has no tangent
        assert_same_bits(one(X, Y), wanted[1][0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_gradients_of_other_types_are_jaxs(dtype: str) -> None:
    x = X.astype(dtype)

    def loss(x: jax.Array) -> jax.Array:
        y = jnp.sin(x) * x + 0.1 * x @ x.T @ x
        return jnp.abs(y * y).sum().astype(jnp.float32)

    for operand in (X, x, X, x):
        found = coop_jax.remat_eager(jax.grad(loss))(operand)
        assert_same_bits(found, jax.grad(loss)(operand))


def test_gradients_of_convolutions_and_pools_are_jaxs() -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return (y * y).sum()

    gradients = jax.grad(loss, (0, 1))
    for _ in range(3):
        assert_same_bits(coop_jax.remat_eager(gradients)(IMAGE, FILTER), gradients(IMAGE, FILTER))


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: jax.jacfwd(_loss(f)),
        lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
        lambda f: lambda x, y: jax.vjp(f, x, y)[1](jnp.ones_like(f(x, y))),
        lambda f: lambda x, y: jax.linearize(f, x, y)[1](y, x),
        lambda f: lambda x, y: jax.grad(lambda v: (jax.grad(_loss(f))(v, y) ** 2).sum())(x),
        lambda f: jax.vmap(jax.grad(_loss(f))),
        lambda f: jax.grad(lambda x, y: jax.vmap(_loss(f))(x, y).sum()),
    ],
    ids=["jacfwd", "jvp", "vjp", "linearize", "grad of grad", "vmap of grad", "grad of vmap"],
)
def test_other_transformations_are_jaxs(transformed: Callable[..., Any]) -> None:
    f = transformed(lambda x, y: jnp.sin(x) * y + x * x - 0.5 * jnp.exp(y) / x)
    for _ in range(3):
        assert_same_bits(coop_jax.remat_eager(f)(X, Y), f(X, Y))


def test_the_second_time_jax_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = _gradients(lambda x, y: jnp.sin(x @ y.T) @ x * 0.5 + jax.lax.max(x * x, y))
    wanted = _asked_of_jax(gradients, monkeypatch)
    coop_jax.remat_eager(gradients)(X, Y)

    def unexpected(*_: Any, **__: Any) -> Any:
        raise AssertionError("what a primitive's derivative comes down to was not remembered")

    monkeypatch.setattr(linearization_cache, "_by_jax", unexpected)
    assert_same_bits(coop_jax.remat_eager(gradients)(X, Y), wanted)
    with pytest.raises(AssertionError, match="was not remembered"):  # the trap is there
        coop_jax.remat_eager(gradients)(X[:5], Y[:5])


def test_numbers_are_remembered_by_value() -> None:
    numbers = (2.0, 3.0, 0.0, -0.0, float("nan"), 2, np.float32(2), np.float16(0.1))

    def loss(x: jax.Array, n: Any) -> jax.Array:
        return jax.lax.mul(x, float(n)).sum() + (x * n).sum()

    for _ in range(2):
        for n in numbers:
            f = jax.grad(lambda x, n=n: loss(x, n).astype(jnp.float32))
            assert_same_bits(coop_jax.remat_eager(f)(X), f(X))


def test_a_square_is_not_a_product() -> None:
    square = jax.grad(lambda x: jax.lax.mul(x, x).sum())
    product = jax.grad(lambda x: jax.lax.mul(x, jax.lax.stop_gradient(Y)).sum())
    both = jax.grad(lambda x, y: jax.lax.mul(x, y).sum(), (0, 1))
    for _ in range(2):
        assert_same_bits(coop_jax.remat_eager(square)(X), square(X))
        assert_same_bits(coop_jax.remat_eager(product)(X), product(X))
        assert_same_bits(coop_jax.remat_eager(both)(X, Y), both(X, Y))


def _primitive(name: str, rule: Callable[..., Any]) -> Any:
    """The identity, with a derivative of its own."""
    primitive = jex.Primitive(name)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
    primitive.def_impl(lambda x: x + 0)
    jax.interpreters.mlir.register_lowering(
        primitive, jax.interpreters.mlir.lower_fun(lambda x: x + 0, multiple_results=False)
    )
    ad.primitive_jvps[primitive] = rule
    return primitive


def test_a_rule_that_reads_contents_is_asked_each_time() -> None:
    asked = []

    def rule(primals: Any, tangents: Any) -> Any:
        asked.append(float(primals[0].sum()))
        return primitive.bind(*primals), tangents[0] * (3.0 if asked[-1] > 0 else 5.0)

    primitive = _primitive("by_contents", rule)
    gradient = coop_jax.remat_eager(jax.grad(lambda x: primitive.bind(x).sum()))
    for x, wanted in ((X, 3.0), (-X, 5.0), (X, 3.0), (-X, 5.0)):
        assert_same_bits(gradient(x), jnp.full_like(x, wanted))
    assert len(asked) == 4


def test_a_rule_is_not_remembered_with_arrays_of_its_own() -> None:
    factor = [jnp.full_like(X, 2.0)]
    asked = []

    def rule(primals: Any, tangents: Any) -> Any:
        asked.append(1)
        return primitive.bind(*primals), tangents[0] * factor[0]

    primitive = _primitive("own_array", rule)
    gradient = coop_jax.remat_eager(jax.grad(lambda x: primitive.bind(x).sum()))
    assert_same_bits(gradient(X), jnp.full_like(X, 2.0))
    factor[0] = jnp.full_like(X, 4.0)
    assert_same_bits(gradient(X), jnp.full_like(X, 4.0))
    assert len(asked) == 2


def test_a_rule_that_fails_leaves_nothing_behind() -> None:
    fails = [True]

    def rule(primals: Any, tangents: Any) -> Any:
        if fails[0]:
            raise ValueError("not today")
        return primitive.bind(*primals), tangents[0] * 2.0

    primitive = _primitive("fails_at_first", rule)
    gradient = coop_jax.remat_eager(jax.grad(lambda x: (primitive.bind(x) + x * x).sum()))
    with pytest.raises(ValueError, match="not today"):
        gradient(X)
    fails[0] = False
    for _ in range(2):
        assert_same_bits(gradient(X), 2.0 + 2 * X)


def test_configurations_are_remembered_apart() -> None:
    asked = []

    def rule(primals: Any, tangents: Any) -> Any:
        asked.append(jax.config.jax_default_matmul_precision)
        return primitive.bind(*primals), tangents[0] * 2.0

    primitive = _primitive("by_configuration", rule)

    def loss(x: jax.Array) -> jax.Array:
        return primitive.bind(x).sum()

    def twice(x: jax.Array) -> Any:
        first = jax.grad(loss)(x)
        with jax.default_matmul_precision("highest"):
            return first, jax.grad(loss)(x)

    for _ in range(2):
        coop_jax.remat_eager(twice)(X)
    assert asked == [None, "highest"]


def test_source_lines_are_those_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, str]] = []
    apply = session.Session.apply

    def recorded(self: Any, primitive: Any, *args: Any) -> Any:
        info = jaxprs.current_source()
        lines = [f.line_num for f in info.traceback.frames if f.function_name.endswith("loss")]
        if lines:
            seen.append((primitive.name, lines[0], jaxprs.name_stack_of(info)))
        return apply(self, primitive, *args)

    monkeypatch.setattr(session.Session, "apply", recorded)

    def loss(x: jax.Array) -> jax.Array:
        y = jax.lax.tanh(x)
        with jax.named_scope("second"):
            z = jax.lax.tanh(x)
        return jax.lax.mul(y, z).sum()

    linearization_cache._remembered.clear()
    f = coop_jax.remat_eager(jax.grad(loss))
    by_call = []
    for _ in range(3):
        seen.clear()
        f(X)
        by_call.append(list(seen))
    # The second tanh of the first call is remembered from the first tanh.
    assert by_call[0] == by_call[1] == by_call[2]
    tanh = {line: scopes for name, line, scopes in seen if name == "tanh"}
    first, second = sorted(tanh)
    assert "second" in tanh[second]
    assert "second" not in tanh[first]
    backward = {line: scopes for name, line, scopes in seen if name == "mul" and line in tanh}
    assert backward.keys() == tanh.keys()
    assert "second" in backward[second]
    assert "second" not in backward[first]


def test_nothing_remembered_keeps_memory() -> None:
    gradients = _gradients(lambda x, y: jnp.sin(x @ y.T) @ x * 0.5 + x * x)
    runtime = coop_jax.Runtime("1MiB")
    eager = coop_jax.remat_eager(gradients, runtime=runtime)
    for _ in range(3):
        found = eager(X, Y)
        del found
        assert runtime.stats().bytes_in_use == 0
