"""Steps of random programs that hold programs: control flow, derivatives, nested functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from building import SHAPE, Builder, as_floats
from jax import lax
from steps import BINARY, STEPS, UNARY, binary, dot, in_place_chain, reduction, unary

SMOOTH = [unary, binary, dot, reduction, in_place_chain]


def body_of(b: Builder, count: int, *, smooth: bool = False) -> Callable[..., jax.Array]:
    """A function of float32 arrays of SHAPE to one, the same at every call."""
    seed = b.draw.getrandbits(32)

    def body(*operands: jax.Array, forward: bool = False) -> jax.Array:
        c = b.inner(seed)
        c.forward = c.forward or forward
        c.values += operands
        for _ in range(count):
            if c.depth < 3 and c.draw.random() < 0.15:
                table = SMOOTH_BLOCKS if smooth else BLOCKS
            else:
                table = SMOOTH if smooth else STEPS
            c.values += c.draw.choice(table)(c)
        return jnp.tanh(as_floats(c.any()) + 0.5 * operands[0])

    return body


def nested_jit(b: Builder) -> list[Any]:
    f = jax.jit(body_of(b, b.draw.randint(1, 4)))
    x = b.floats()
    return [f(x, b.floats()), f(x, x)] if b.draw.random() < 0.5 else [f(x)]


def cheap_jit(b: Builder) -> list[Any]:
    one, two, three = (b.draw.choice(UNARY) for _ in range(3))
    join = b.draw.choice(BINARY)

    @jax.jit
    def f(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        z = one(x)
        return join(two(z), y), three(z)

    return list(f(b.floats(), b.floats()))


def branch(b: Builder) -> list[Any]:
    if not b.online:
        return nested_jit(b)
    x, y, i = b.floats(), b.floats(), b.ints()
    if b.draw.random() < 0.5:
        yes, no = body_of(b, 2), body_of(b, 3)
        return [lax.cond(jnp.sum(i) % 2 == 0, yes, no, x, y)]
    bodies = [body_of(b, 1), body_of(b, 2), lambda x, y: x]
    return [lax.switch(b.small(i, 5) - 1, bodies, x, y)]


def while_loop(b: Builder) -> list[Any]:
    if not b.online:
        return scan(b)
    body, limit = body_of(b, 2), 1 + b.small(b.ints(), 3)
    fixed = b.floats()

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        n, x, _ = carry
        return n + 1, body(x, fixed), x

    _, x, y = lax.while_loop(lambda carry: carry[0] < limit, step, (0, b.floats(), b.floats()))
    return [x, y]


def fori(b: Builder) -> list[Any]:
    body = body_of(b, 2)
    stop = 1 + b.small(b.ints(), 3) if b.online and b.draw.random() < 0.5 else 3
    return [lax.fori_loop(0, stop, lambda i, x: body(x) + 0.1 * i, b.floats())]


def scan(b: Builder, *, smooth: bool = False) -> list[Any]:
    """A scan whose stack a second one reads, in some order, and an index."""
    body, again = body_of(b, 2, smooth=smooth), body_of(b, 1, smooth=smooth)
    reverse, length = b.draw.random() < 0.5, b.draw.choice([3, 4])
    xs = jnp.stack([b.floats() for _ in range(length)])
    emit_old = b.draw.random() < 0.5

    def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
        new = body(carry, x)
        return new, ((carry if emit_old else new), x[0] * 2)

    last, (stack, rows) = lax.scan(step, b.floats(), xs, reverse=reverse)
    out = [last]
    if b.draw.random() < 0.7:
        _, second = lax.scan(
            lambda c, y: (again(c, y), c * 0.5), last, stack, reverse=b.draw.random() < 0.5
        )
        out.append(second[b.draw.randrange(length)])
    if b.draw.random() < 0.5:
        out.append(stack[b.draw.randrange(length)])
    if b.draw.random() < 0.3:
        out += [stack.sum(0) / length, rows]
    if b.draw.random() < 0.3:
        out.append(stack)
    return out


def checkpointed(b: Builder, *, smooth: bool = False) -> list[Any]:
    policy = b.draw.choice([None, jax.checkpoint_policies.dots_saveable])
    f = jax.checkpoint(body_of(b, 2, smooth=smooth), policy=policy)
    return [f(b.floats(), b.floats())]


def custom_rule(b: Builder) -> list[Any]:
    body = body_of(b, 1, smooth=True)
    if b.draw.random() < 0.5 or b.forward:
        f = jax.custom_jvp(lambda x: body(x))
        f.defjvp(lambda p, t: (body(*p), 0.5 * jnp.sin(p[0]) * t[0]))
        return [f(b.floats())]
    g = jax.custom_vjp(lambda x, y: body(x, y))
    g.defvjp(lambda x, y: (body(x, y), (x, y)), lambda r, ct: (ct * jnp.cos(r[1]), ct * r[0]))
    return [g(b.floats(), b.floats())]


def scan_smooth(b: Builder) -> list[Any]:
    return scan(b, smooth=True)


def checkpointed_smooth(b: Builder) -> list[Any]:
    return checkpointed(b, smooth=True)


SMOOTH_BLOCKS = [scan_smooth, checkpointed_smooth, custom_rule, cheap_jit]


def derivative(b: Builder) -> list[Any]:
    body = body_of(b, b.draw.randint(2, 5), smooth=True)
    x, y = b.floats(), b.floats()
    name = b.draw.choice(["grad", "grad", "vjp", "jvp", "linearize"])
    if name == "grad":
        value, grads = jax.value_and_grad(lambda x, y: body(x, y).sum(), (0, 1))(x, y)
        return [jnp.tanh(g) for g in grads] + [value * jnp.ones(SHAPE) / 512]
    if name == "vjp":
        out, pull = jax.vjp(body, x, y)
        return [out, *(jnp.tanh(g) for g in pull(out))]
    body = functools.partial(body, forward=True)
    if name == "jvp":
        return [jnp.tanh(z) for z in jax.jvp(body, (x, y), (y, x))]
    out, push = jax.linearize(body, x, y)
    return [out, jnp.tanh(push(y, x))]


def train_steps(b: Builder) -> list[Any]:
    """Gradient descent in a scan: the pattern that users have."""
    body = body_of(b, 2, smooth=True)

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grad = jax.value_and_grad(lambda w: body(w, x).mean())(w)
        return w - 0.1 * jnp.tanh(grad), loss

    w, losses = lax.scan(step, b.floats(), jnp.stack([b.floats() for _ in range(3)]))
    return [w, jnp.asarray(np.ones((3, 64), np.float32)) * losses[:, None]]


def batched(b: Builder) -> list[Any]:
    f = jax.vmap(lambda r, s: jnp.tanh(r * s.sum()) + jnp.sort(s))
    return [f(b.floats(), b.floats())]


BLOCKS = [
    nested_jit,
    cheap_jit,
    cheap_jit,
    branch,
    branch,
    while_loop,
    fori,
    scan,
    scan,
    checkpointed,
    custom_rule,
    derivative,
    derivative,
    train_steps,
    batched,
]
