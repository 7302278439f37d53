"""Steps of random programs: operations of every class, a handful of equations each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from building import CONSTANT, SHAPE, Builder
from jax import lax

Step = Callable[[Builder], list[Any]]

UNARY: list[Callable[[Any], Any]] = [
    jnp.tanh,
    jnp.sin,
    lambda x: jnp.exp(-jnp.abs(x)),
    lambda x: jnp.sqrt(jnp.abs(x) + 0.5),
    lambda x: jnp.log1p(jnp.abs(x)),
    lax.erf,
    jax.nn.sigmoid,
    lambda x: -x,
    lambda x: x * 0.5 + 1,
    jax.nn.relu,
    lambda x: x**2 * 0.25,
    jax.nn.softmax,
]
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda a, b: (a + b) * 0.5,
    lambda a, b: a - b,
    lambda a, b: jnp.sin(a) * b,
    jnp.maximum,
    lambda a, b: a / (1 + jnp.abs(b)),
    lambda a, b: jnp.arctan2(a, b + 3),
    lambda a, b: jnp.where(CONSTANT > 0, a, b),
    lambda a, b: jnp.clip(a, -jnp.abs(b), 1),
]


def unary(b: Builder) -> list[Any]:
    x = b.floats()
    for _ in range(b.draw.randint(1, 3)):
        x = b.draw.choice(UNARY)(x)
    return [x]


def binary(b: Builder) -> list[Any]:
    x = b.floats()
    y = x if b.draw.random() < 0.2 else b.floats()  # also a value with itself
    return [b.draw.choice(BINARY)(x, y)]


def integers(b: Builder) -> list[Any]:
    x, y = b.ints(), b.ints()
    f = b.draw.choice(
        [
            lambda: x + y,
            lambda: (x * 3) ^ y,
            lambda: x & 0xFF | y,
            lambda: x >> 2,
            lambda: jnp.minimum(x, y) % 19,
            lambda: lax.population_count(x),
            lambda: lax.shift_left(y, 1),
            lambda: jnp.where(x > y, x, y - 1),
            lambda: lax.clz(x) - x,
        ]
    )
    return [f()]


def reduction(b: Builder) -> list[Any]:
    x, axis = b.floats(), b.draw.choice([0, 1])
    f = b.draw.choice([jnp.sum, jnp.max, jnp.mean, jnp.var, jax.nn.logsumexp])
    return [x - jnp.tanh(f(x, axis=axis, keepdims=True))]


def integer_reduction(b: Builder) -> list[Any]:
    x, axis = b.ints(), b.draw.choice([0, 1])
    f = b.draw.choice([jnp.sum, jnp.max, jnp.argmin, jnp.argmax])
    return [x + jnp.expand_dims(f(x, axis=axis), axis).astype(jnp.int32)]


def dot(b: Builder) -> list[Any]:
    x, y = b.floats(), b.floats()
    f = b.draw.choice(
        [
            lambda: jnp.tile(x @ y.T, (1, 2)) / 16,
            lambda: x @ (x.T @ y) / 128,
            lambda: (
                jnp.einsum("bij,bjk->bik", x.reshape(4, 8, 16), y.reshape(4, 16, 8))
                .repeat(2, 2)
                .reshape(SHAPE)
                / 8
            ),
        ]
    )
    return [f()]


def convolution(b: Builder) -> list[Any]:
    image = b.floats().reshape(1, 4, 8, 16)
    kernel = b.floats().reshape(-1)[:144].reshape(4, 4, 3, 3)
    out = lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    pooled = lax.reduce_window(out, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "SAME")
    return [out / 8, (pooled / 8).reshape(SHAPE)]


def gather(b: Builder) -> list[Any]:
    x, i = b.floats(), b.ints()
    f = b.draw.choice(
        [
            lambda: x[jnp.abs(i[:, 0]) % 16],
            lambda: jnp.take_along_axis(x, jnp.abs(i) % 32, axis=1),
            lambda: lax.dynamic_slice(x, (b.small(i, 9), 0), (8, 32)),
            lambda: x[::2, 1:],
            lambda: x[:, b.draw.randrange(32)] * jnp.ones((16, 8)).T,
        ]
    )
    return [f()]


def scatter(b: Builder) -> list[Any]:
    x, y, i = b.floats(), b.floats(), b.ints()
    rows = jnp.abs(i[:, 3]) % 16
    f = b.draw.choice(
        [
            lambda: x.at[rows].max(y),
            lambda: i.at[rows].add(i[::-1]),
            lambda: lax.dynamic_update_slice(x, y[:4, :8], (b.small(i, 12), 5)),
            lambda: x.at[3, 5:9].set(y[0, :4]),
        ]
    )
    return [f()]


def sorting(b: Builder) -> list[Any]:
    x, i = b.floats(), b.ints()
    f: Callable[[], Any] = b.draw.choice(
        [
            lambda: lax.sort((i, x), num_keys=1, dimension=1),
            lambda: (jnp.argsort(i, axis=0), jnp.sort(x, axis=1)),
            lambda: lax.top_k(i, 8),
            lambda: (lax.top_k(x, 16)[0],),
        ]
    )
    return list(f())


def cumulative(b: Builder) -> list[Any]:
    x, i, axis = b.floats(), b.ints(), b.draw.choice([0, 1])
    return b.draw.choice(
        [
            lambda: [jnp.cumsum(x, axis) / 8],
            lambda: [lax.cummax(x, axis, reverse=True), lax.cummin(i, axis)],
            lambda: [lax.cumlogsumexp(x, axis)],
            lambda: [jnp.cumsum(i, axis) % 101],
            lambda: [jnp.tanh(lax.associative_scan(jnp.add, x, axis=axis))],
        ]
    )()


def fourier(b: Builder) -> list[Any]:
    x = b.floats()
    f = b.draw.choice(
        [
            lambda: jnp.fft.fft(x) / 6,
            lambda: jnp.fft.rfft(x) / 6,
            lambda: jnp.fft.irfft(x[:, :17] + 0.5j * x[:, 15:]),
            lambda: jnp.fft.ifft2(lax.complex(x, x[::-1])),
        ]
    )
    return [f()]


def linear_algebra(b: Builder) -> list[Any]:
    x = jnp.tanh(b.floats())[:, :16] / 16 + jnp.diag(jnp.arange(1.0, 17.0))
    symmetric = x + x.T
    name = b.draw.choice(["qr", "eigh", "cholesky", "solve", "lu"])
    if name == "qr":
        return [y / 4 for y in jnp.linalg.qr(x)]
    if name == "eigh":
        values, vectors = jnp.linalg.eigh(symmetric)
        return [jnp.abs(vectors) * values]  # the sign of each is a choice of the solver's
    if name == "cholesky":
        return [jnp.linalg.cholesky(symmetric)]
    if name == "solve":
        return [jax.scipy.linalg.solve_triangular(x, b.floats()[:16], lower=True)]
    return [lax.linalg.lu(x)[0]]


def randomness(b: Builder) -> list[Any]:
    impl = b.draw.choice(["threefry2x32", "rbg", "unsafe_rbg"])
    seed = b.small(b.ints(), 1000) if b.draw.random() < 0.7 else b.draw.randrange(100)
    key = jax.random.key(seed, impl=impl)
    x = b.floats()
    f: Callable[[], list[Any]] = b.draw.choice(
        [
            lambda: [jax.random.normal(key, SHAPE) * 0.5],
            lambda: [jnp.where(jax.random.bernoulli(key, 0.7, SHAPE), x / 0.7, 0.0)],
            lambda: [jax.random.split(key, 48)],
            lambda: [jax.random.randint(jax.random.fold_in(key, 3), SHAPE, 0, 40)],
            lambda: [jax.vmap(lambda k: jax.random.uniform(k, (32,)))(jax.random.split(key, 16))],
            lambda: [jax.random.permutation(key, b.ints(), axis=0)],
            lambda: [jax.random.uniform(jax.random.PRNGKey(seed), SHAPE)],
        ]
    )
    return f()


def of_keys(b: Builder) -> list[Any]:
    keys = b.one(lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and x.ndim == 1)
    if keys is None:
        return randomness(b)
    drawn = jax.vmap(lambda k: jax.random.normal(k, (16,)))(keys[:32])
    return [drawn, jax.random.bits(keys[b.draw.randrange(32)], SHAPE, "uint32") >> 3]


def conversion(b: Builder) -> list[Any]:
    x, i = b.floats(), b.ints()
    f: Callable[[], list[Any]] = b.draw.choice(
        [
            lambda: [(x.astype(jnp.bfloat16) * 2 - 1).astype(jnp.float32)],
            lambda: [x.astype(jnp.bfloat16) + jnp.bfloat16(0.5)],
            lambda: [jnp.sqrt(jnp.abs(x).astype(jnp.float16))],
            lambda: [i.astype(jnp.int8) * jnp.int8(3), i.astype(jnp.uint16) >> 1],
            lambda: [i.astype(jnp.int16) - 7, i.astype(jnp.uint8) | 9],
            lambda: [i.astype(jnp.int8).astype(jnp.int32), i.astype(jnp.uint32) >> 5],
            lambda: [i > 3, (i & 1).astype(bool) ^ (i < 0)],
            lambda: [lax.complex(x, -x) * (0.5 + 0.25j)],
            lambda: [lax.bitcast_convert_type(i, jnp.uint32) & 0xFFFF],
            lambda: [lax.reduce_precision(x, 8, 10)],
            lambda: [x.astype(jnp.float8_e4m3fn).astype(jnp.float32)],
        ]
    )
    return f()


def views(b: Builder) -> list[Any]:
    x = b.any()
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return [x[::-1]]
    f = b.draw.choice(
        [
            lambda: x.reshape(-1),
            lambda: x.reshape(1, *x.shape)[0],
            lambda: jnp.expand_dims(x, 0),
            lambda: x.T,
            lambda: jnp.squeeze(x.reshape(*x.shape, 1)),
            lambda: x[::-1],
        ]
    )
    return [f()]


def joined(b: Builder) -> list[Any]:
    x, y = b.floats(), b.floats()
    f: Callable[[], list[Any]] = b.draw.choice(
        [
            lambda: [jnp.concatenate([x, y, x])[8:24]],
            lambda: [jnp.stack([x, y], 1)],
            lambda: list(jnp.split(jnp.concatenate([x, y], 1), 2, axis=1)),
            lambda: [jnp.pad(x, ((1, 2), (0, 3)))],
            lambda: [lax.pad(x, 0.5, ((0, 0, 1), (-1, 2, 0)))],
            lambda: [jnp.broadcast_to(x[:1], (4, 32)) + y[:4]],
        ]
    )
    return f()


def in_place_chain(b: Builder) -> list[Any]:
    x, kept = b.floats(), []
    for i in range(b.draw.randint(3, 8)):
        x = b.draw.choice(
            [
                lambda x=x: x + 1,
                lambda x=x: x * 0.5,
                lambda x=x, i=i: x.at[i].set(x[i + 1] * 0.9),
                lambda x=x, i=i: lax.dynamic_update_slice(x, x[:2, :3], (i, 4)),
            ]
        )()
        if b.draw.random() < 0.25:
            kept.append(x)  # an old version that something may read later
    return [*kept, x]


STEPS: list[Step] = [
    unary,
    unary,
    binary,
    binary,
    integers,
    reduction,
    integer_reduction,
    dot,
    convolution,
    gather,
    scatter,
    sorting,
    cumulative,
    fourier,
    linear_algebra,
    randomness,
    of_keys,
    conversion,
    conversion,
    views,
    joined,
    in_place_chain,
    in_place_chain,
]
