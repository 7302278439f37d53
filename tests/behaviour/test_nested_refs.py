"""References that go into loops over their rows, nested state, jitted functions and views."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import run_state

import coop_jax
from tests.testing.comparison import assert_same_bits

FRONT_ENDS: list[Callable[..., Any]] = [coop_jax.run, coop_jax.remat_eager]
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS)
X = np.linspace(-1, 1, 4 * 2048, dtype=np.float32).reshape(4, 2048)


def nested_state(x: Any) -> Any:
    y = jnp.cos(x)

    @run_state
    def outer(x_ref: Any) -> None:
        @run_state
        def inner(z_ref: Any) -> None:
            x_ref[...] = z_ref[...] + y
            z_ref[0] = x_ref[1]

        x_ref[2] = inner(jnp.sin(x_ref[...]))[0]

    return outer(x)


def state_in_a_scan(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        @run_state
        def twice(ref: Any) -> None:
            ref[...] = ref[...] * 2 + row

        return twice(carry), carry.sum()

    return jax.lax.scan(body, x[0], x)


def rows_read(x: Any) -> Any:
    ref = jax.new_ref(x)
    sums = jax.lax.map(lambda row: row[...].sum(), ref)
    return jax.lax.scan(lambda c, row: (c + row[...], row[3]), x[0], ref), sums


def rows_written_in_reverse(x: Any) -> Any:
    read, written = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))

    def body(carry: Any, rows: Any) -> Any:
        a, b, y = rows
        b[...] = a[...] * carry + y
        a[5] += 2.0
        return carry + a[...], b[0]

    return jax.lax.scan(body, x[0], (read, written, x), reverse=True), read[...], written[...]


def rows_of_rows(x: Any) -> Any:
    ref = jax.new_ref(x.reshape(4, 4, -1))

    def body(carry: Any, row: Any) -> Any:
        def inner(carry: Any, part: Any) -> Any:
            part[...] = part[...] + carry
            return carry * 2, None

        return jax.lax.scan(inner, carry, row)[0], None

    return jax.lax.scan(body, 1.0, ref)[0], jax.freeze(ref)


def rows_in_calls_and_branches(x: Any) -> Any:
    ref = jax.new_ref(x)

    @jax.jit
    def called(row: Any, c: Any) -> Any:
        row[...] += c
        return row[0] * 2

    def body(carry: Any, row: Any) -> Any:
        def branch() -> Any:
            row[...] = row[...] * 2
            return carry + 1

        def loop(n: Any) -> Any:
            row[1] *= 1.5
            return n + 1

        carry = jax.lax.cond(carry > 1, branch, lambda: carry)
        n = jax.lax.while_loop(lambda n: n < 3, loop, 0)
        return called(row, carry) + n, None

    return jax.lax.scan(body, x[3, 2], ref)[0], ref[...]


def differentiated(x: Any) -> Any:
    def loss(x: Any) -> Any:
        ref = jax.new_ref(x)

        def body(carry: Any, row: Any) -> Any:
            row[...] = jnp.sin(row[...] * carry)
            return carry + row[...], None

        return (jax.lax.scan(body, x[0], ref)[0] * ref[...]).sum()

    return jax.value_and_grad(loss)(x)


def views(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref.at[1][...] = x[0]
    part = ref.at[2:4]
    part[0] = x[1] * 2
    return part[...], ref[...], ref.at[0, 1:300][...]


def keys(x: Any) -> Any:
    ref = jax.new_ref(jax.random.split(jax.random.key(0), 3))
    ref[0] = ref[2]

    def body(carry: Any, row: Any) -> Any:
        return carry + jax.random.normal(row[...], x[0].shape), None

    return jax.lax.scan(body, x[0], ref)[0]


PROGRAMS = [nested_state, state_in_a_scan, rows_read, rows_written_in_reverse, rows_of_rows]
PROGRAMS += [rows_in_calls_and_branches, differentiated, views, keys]


@functools.cache
def expected(program: Any) -> Any:
    return jax.tree_util.tree_leaves(jax.jit(program)(X))


@front_ends
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_plain_jax_and_with_everything_evicted(front_end: Any, program: Any) -> None:
    full = front_end(program)(X)
    for found, wanted in zip(jax.tree_util.tree_leaves(full), expected(program), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    forced = front_end(program, policy=coop_jax.Policy("coop", evict_always=True))
    assert_same_bits(forced(X), full)


def test_a_scan_over_rows_needs_no_block_a_row() -> None:
    def program(x: Any) -> Any:
        ref = jax.new_ref(x)

        def body(carry: Any, row: Any) -> Any:
            row[...] = row[...] * 1.5
            return carry, None

        jax.lax.scan(body, 0.0, ref)
        return jax.freeze(ref)

    step = coop_jax.run(program)
    x = np.ones((32, 4096), np.float32)
    np.testing.assert_array_equal(step(x), 1.5 * x)
    # The argument, which is kept, the reference before and after a step, and XLA's copy.
    assert step.runtime.stats().peak_bytes < 4.1 * x.nbytes


def called_function(ref: Any, x: Any) -> Any:
    @jax.jit
    def called(x: Any) -> Any:
        ref[...] += x
        return x * 2

    return called(called(x))


def looping_function(ref: Any, x: Any) -> Any:
    @jax.jit
    def called(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            ref[0] += carry
            return carry + row, None

        return jax.lax.scan(body, x[0], x)[0]

    return called(x) + called(x)


def rows_from_outside(ref: Any, x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        row[...] += carry
        return carry + 1, None

    return jax.lax.scan(body, x[0], ref)[0]


def state_around(ref: Any, x: Any) -> Any:
    @run_state
    def state(part: Any) -> None:
        ref[...] += part[...]
        part[...] = ref[...] * 2

    return state(x)


def called_by_another(ref: Any, x: Any) -> Any:
    def step(x: Any) -> Any:
        ref[...] += x
        return x

    return coop_jax.remat_eager(step)(x) + jax.grad(lambda y: (y * ref[...]).sum())(x)


CLOSING = [called_function, looping_function, rows_from_outside, state_around, called_by_another]


@front_ends
@pytest.mark.parametrize("program", CLOSING)
def test_a_reference_closed_over(front_end: Any, program: Any) -> None:
    plain, ours = jax.new_ref(jnp.ones_like(X)), jax.new_ref(jnp.ones_like(X))
    if program is called_by_another:
        jitted = lambda x: (plain.__setitem__(..., plain[...] + x), x + plain[...])[1]  # noqa: E731
    else:
        jitted = jax.jit(functools.partial(program, plain))
    budgeted = front_end(functools.partial(program, ours))
    for n in range(3):
        np.testing.assert_allclose(budgeted(X + n), jitted(X + n), rtol=1e-5)
        np.testing.assert_allclose(ours[...], plain[...], rtol=1e-5)
