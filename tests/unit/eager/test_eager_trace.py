"""The eager trace: what JAX does on its own evaluation trace, it does here, value for value."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coop_jax._src.eager.trace.known_values import current_trace_is_concrete
from coop_jax._src.eager.trace.scope import EagerScope
from tests.testing.comparison import assert_same_bits
from tests.testing.eager_stub import CountingSession, Value, run_eagerly

X = np.arange(12, dtype=np.float32).reshape(3, 4)
CAPTURED = np.linspace(-1, 1, 4, dtype=np.float32)
Fn = Callable[[Any], Any]


@jax.custom_jvp
def sine(x: Any) -> Any:
    return jnp.sin(x)


@sine.defjvp
def _sine_jvp(primals: Any, tangents: Any) -> Any:
    return sine(primals[0]), jnp.cos(primals[0]) * tangents[0]


@jax.custom_vjp
def square(x: Any) -> Any:
    return x**2


square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * g * x,))


@jax.jit
def product(a: Any, b: Any) -> Any:
    return a @ b.T + 1


def branching(x: Any) -> Any:
    y = x.sum()
    if y > 3:
        y = y * 2
    for _ in range(int(jnp.floor(y / 100)) + 1):
        y = jnp.sin(y) * y
    return y, {"y": y}


def loops(x: Any) -> Any:
    n = x[0, 2].astype(int)
    return (
        jax.lax.cond(x.sum() > 3, lambda a: a * x, lambda a: a - 1, x),
        jax.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * x), (0, x)),
        jax.lax.scan(lambda c, row: (c + row * x[0], c), x[0], x),
        jax.lax.fori_loop(0, n, lambda i, c: c + i * x, x),
        jax.lax.switch(n, [jnp.sin, jnp.cos, jnp.tanh], x),
    )


PROGRAMS: dict[str, Fn] = {
    "operators": lambda x: (x * 2 + 1, x - x / 3, x @ x.T, -x, x**2, abs(x), x % 3, x > 1),
    "reductions": lambda x: (x.mean(), x.std(0), x.argmax(), jnp.sort(x), jnp.unique(x)),
    "indexing": lambda x: (x[1:, ::2], x[x > 5], jnp.nonzero(x)[0], x.at[0].set(5), x[..., None]),
    "index by value": lambda x: (x[x[0, 1].astype(int) :], jnp.ones(x[0, 2].astype(int))),
    "iteration": lambda x: [2 * row for row in x],
    "methods": lambda x: (x.T, x.flatten(), x.astype("bfloat16"), x.clip(1, 3), x.copy()),
    "softmax": lambda x: (jax.nn.softmax(x), jax.nn.gelu(x), jax.nn.one_hot(x[0].astype(int), 4)),
    "linear algebra": lambda x: (jnp.einsum("ij,kj->ik", x, x), jnp.linalg.svd(x)[1]),
    "captured": lambda x: (x + CAPTURED, jnp.asarray(CAPTURED) * x, jax.device_put(CAPTURED) * x),
    "constructors": lambda x: (jnp.array(x), jnp.asarray(x), jnp.stack([x, x]), jnp.zeros_like(x)),
    "from scalars": lambda x: (jnp.array([x[0, 0], 2.0]), jnp.array(3), jnp.float32(2) * x),
    "device_put": lambda x: jax.device_put(x),
    "weak types": lambda x: (jnp.asarray(2.0), jnp.zeros(()) + 1, jnp.asarray(2) * x[0]),
    "numpy": lambda x: (np.sin(np.asarray(x)), CAPTURED * x, np.float32(2) * x, np.sum(x)),
    "keys": lambda x: jax.random.normal(jax.random.split(jax.random.key(0))[0], x.shape),
    "old keys": lambda x: jax.random.permutation(jax.random.PRNGKey(1), x),
    "gradient": lambda x: jax.grad(lambda x: (jnp.sin(x) * sine(x) * square(x)).sum())(x),
    "branching gradient": lambda x: jax.value_and_grad(branching, has_aux=True)(x),
    "jvp": lambda x: jax.jvp(lambda x: jnp.tanh(x) * sine(x), (x,), (x + 1,)),
    "linearize": lambda x: jax.linearize(jnp.sin, x)[1](x),
    "vmap": lambda x: jax.vmap(lambda r: sine(r) + square(r))(x),
    "vmap of grad": lambda x: jax.vmap(jax.grad(lambda r: jnp.exp(r).sum()))(x),
    "jit": lambda x: (product(x, x), jax.jit(lambda y: y * x + CAPTURED)(x)),
    "grad of jit": lambda x: jax.grad(lambda x: product(x, jnp.cos(x)).sum())(x),
    "jit of grad": lambda x: jax.jit(jax.grad(lambda y: (y * x).sum()))(x),
    "checkpoint": lambda x: jax.grad(lambda x: jax.checkpoint(lambda y: sine(y * x))(x).sum())(x),
    "control flow": loops,
    "grad of control flow": lambda x: jax.grad(lambda x: loops(x)[2][0].sum() + loops(x)[0].sum())(
        x
    ),
    "second order": lambda x: (jax.hessian(lambda r: (r**3).sum())(x[0]), jax.jacrev(sine)(x[0])),
    "stop gradient": lambda x: jax.grad(lambda x: (jax.lax.stop_gradient(x) * x).sum())(x),
    "callback": lambda x: jax.pure_callback(lambda v: 2 * np.asarray(v), jax.typeof(x), x),
    "conversions": lambda x: (bool(x[0, 1]), int(x[0, 2]), float(x.sum()), complex(x[1, 1])),
    "text": lambda x: (str(x), repr(x), f"{x.sum():.2f}", f"{x[0]}"),
    "contents": lambda x: (x.sum().item(), x.tolist(), len(x), x.tobytes(), x.nbytes),
    "as an index": lambda x: ("abcd"[x[0, 2].astype(int)], hex(x[2, 3].astype(int))),
    "copies": lambda x: (copy.copy(x), copy.deepcopy({"x": x})),
    "waiting": lambda x: (x.block_until_ready(), jax.block_until_ready([x])),
    "is an array": lambda x: (isinstance(x, jax.Array), x.is_deleted(), len(x.devices())),
    "tracing": lambda x: str(jax.make_jaxpr(lambda a: jnp.sin(a) @ a.T)(x)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_result_is_that_of_plain_jax_and_nothing_lives_on(name: str) -> None:
    gc.collect()
    gc.disable()  # values must die by reference counts alone
    try:
        found, session = run_eagerly(PROGRAMS[name], X)
    finally:
        gc.enable()
    expected = PROGRAMS[name](jnp.asarray(X))
    assert_same_bits(found, expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array) == isinstance(b, jax.Array)
        if isinstance(a, jax.Array):
            assert jax.typeof(a).weak_type == jax.typeof(b).weak_type
    assert session.living == 0


def test_vmapped_value_has_no_truth() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError):
        run_eagerly(lambda x: jax.vmap(lambda r: r if r.sum() > 1 else -r)(x), X)


@pytest.mark.parametrize(
    "use",
    [lambda x: x + 1, float, bool, np.asarray, lambda x: run_eagerly(lambda y: y + x, X)],
    ids=["operation", "float", "bool", "numpy", "in the next call"],
)
@pytest.mark.parametrize("make", [lambda x: x.sum(), lambda x: jnp.zeros(())], ids=["run", "fill"])
def test_use_after_the_call_raises(make: Fn, use: Fn) -> None:
    leaked: list[Any] = []
    run_eagerly(lambda x: leaked.append(make(x)), X)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        use(leaked[0])
    assert "has ended" in repr(leaked[0])


def test_session_is_let_go_though_a_tracer_leaks() -> None:
    leaked: list[Any] = []
    _, session = run_eagerly(lambda x: leaked.append(x.sum()), X)
    assert leaked[0]._trace.session is None
    leaked.clear()
    assert session.living == 0


@pytest.mark.parametrize("transform", [jax.grad, jax.jit, jax.vmap])
def test_outer_transformation_is_refused(transform: Fn) -> None:
    def enter(x: Any) -> Any:
        assert not current_trace_is_concrete()
        with EagerScope(CountingSession()):
            return x

    with pytest.raises(TypeError, match=r"inside the decorated function"):
        transform(enter)(jnp.ones(3))
    assert current_trace_is_concrete()


def test_failure_inside_restores_the_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        run_eagerly(lambda x: 1 / 0, X)
    assert isinstance(jnp.ones(3) + 1, jax.Array)
    assert not isinstance(jnp.ones(3) + 1, jax.core.Tracer)


def test_scopes_nest() -> None:
    def outer(x: Any) -> Any:
        inner, session = run_eagerly(lambda y: y * x[0], x[1])
        assert session.living == 0
        return inner + x[2]

    assert_same_bits(run_eagerly(outer, X)[0], jnp.asarray(X[1] * X[0] + X[2]))


def test_keys_are_operands_and_results() -> None:
    def split(key: Any, old: Any) -> Any:
        return jax.random.split(key)[1], jax.random.split(old), jax.random.normal(key, (2,))

    key, old = jax.random.key(3), jax.random.PRNGKey(4)
    session = CountingSession()
    with EagerScope(session) as trace:
        out = split(trace.wrap(Value(session, key)), trace.wrap(Value(session, old)))
        found = [session.concrete(trace.value_of(x)) for x in out]
    assert_same_bits(found, list(split(key, old)))


def test_fill_runs_when_it_is_first_read() -> None:
    _, session = run_eagerly(lambda x: jnp.zeros((5, 5)) is None, X)
    assert "broadcast_in_dim" not in session.primitives
    filled, session = run_eagerly(lambda x: jnp.zeros((5, 5)), X)
    assert session.primitives.count("broadcast_in_dim") == 1
    assert_same_bits(filled, jnp.zeros((5, 5)))


def test_conversion_to_the_same_type_runs_nothing() -> None:
    _, session = run_eagerly(lambda x: jnp.asarray(x, jnp.float32), X)
    assert session.primitives == []


def test_jit_is_traced_once_and_hands_over_the_same_jaxpr() -> None:
    traces = 0

    @jax.jit
    def inner(a: Any) -> Any:
        nonlocal traces
        traces += 1
        return jnp.cos(a @ a.T).sum()

    def program(x: Any) -> Any:
        # with a tracer, with a plain array, and under grad
        return inner(x), inner(CAPTURED[:, None]), jax.grad(inner)(x)

    jaxprs = []
    for _ in range(3):
        _, session = run_eagerly(program, X)
        jaxprs.append(session.jaxprs)
        if len(jaxprs) == 1:
            traces = 0
    assert traces == 0
    assert [id(j) for j in jaxprs[1]] == [id(j) for j in jaxprs[2]]


def test_no_cache_keeps_a_trace_or_a_session_alive() -> None:
    jitted = jax.jit(jnp.sin)
    _, session = run_eagerly(lambda x: (jitted(x), jitted(CAPTURED), jax.grad(product)), X)
    references = [weakref.ref(session)]
    with EagerScope(session) as trace:
        jitted(CAPTURED)
        references.append(weakref.ref(trace))
    del trace, session
    gc.collect()
    assert [reference() for reference in references] == [None, None]
