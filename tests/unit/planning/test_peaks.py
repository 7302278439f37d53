"""Without a budget programs need no more memory than under `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.planning import policies
from tests.testing.comparison import assert_same_bits
from tests.testing.loops import Loop, array, compiled_bytes, loops

LOOPS = loops(steps=24, width=64)

# Of what `jax.jit` needs; XLA's temporary memory for single operations comes to it.
MOST = 1.1


def needed_by_jit(loop: Loop) -> int:
    """Bytes under `jax.jit`."""
    jitted = jax.jit(loop.fn, donate_argnums=loop.donate)
    return compiled_bytes(jitted.lower(*loop.args).compile())


def share(name: str) -> float:
    """What a program needs at its peak, of what it needs under `jax.jit`."""
    loop = LOOPS[name]
    traced = coop_jax.trace_program(loop.fn, *loop.args, donate_argnums=loop.donate, fusion=True)
    return coop_jax.simulate(traced, budget=None).peak_bytes / needed_by_jit(loop)


@pytest.mark.parametrize(
    "name", ["lstm", "gru", "rnn", "rnn under vmap", "microbatches", "microbatches, biases"]
)
def test_gradients_are_summed_as_they_are_made(name: str) -> None:
    assert share(name) <= MOST


@pytest.mark.parametrize("name", ["stacked states", "decoding", "decoding, cache kept"])
def test_what_a_scan_stacks_is_there_once(name: str) -> None:
    assert share(name) <= MOST


@pytest.mark.parametrize("name", ["nested scans", "graph network", "carried buffer"])
def test_other_loops_need_no_more_either(name: str) -> None:
    assert share(name) <= MOST


def scanned(w: jax.Array, x: jax.Array, reverse: bool) -> Any:
    """States that are returned twice, and inner ones of a scan in a scan."""

    def inner(h: jax.Array, _: None) -> Any:
        h = jnp.tanh(h @ w)
        return h, h + 1

    def body(h: jax.Array, _: None) -> Any:
        return jax.lax.scan(inner, h, None, length=4)

    last, ys = jax.lax.scan(body, x, None, length=12, reverse=reverse)
    return last, ys, ys.sum(), jnp.flip(ys, 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_stacks_that_are_written_early_hold_what_they_should(reverse: bool) -> None:
    args = array(16, 16), array(8, 16, seed=1)
    wanted = jax.jit(scanned, static_argnums=2)(*args, reverse)
    evicting = policies.with_forced_eviction(policies.resolve_policy("coop"), True)
    results = []
    for policy in ("coop", evicting):
        budgeted = coop_jax.run(scanned, policy=policy, static_argnums=2)
        results.append(jax.tree.map(np.array, budgeted(*args, reverse)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), results[0], wanted)
    assert_same_bits(results[1], results[0])


def test_stacks_whose_parts_are_read_later_are_put_together_in_the_end() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        def body(h: jax.Array, _: None) -> Any:
            h = jnp.sin(h @ w)
            return h, h

        _, hs = jax.lax.scan(body, x, None, length=12)
        total = jax.lax.scan(lambda t, h: (t + h, None), x, hs, reverse=True)[0]
        return hs @ w, total

    args = array(64, 64), array(8, 64)
    traced = coop_jax.trace_program(fn, *args, fusion=False)
    at = [k for k, op in enumerate(traced.program.operations) if op.kernel.label == "sin"]
    updates = [op for op in traced.program.operations[: at[-1]] if "update" in op.kernel.label]
    assert not updates


WRITES: dict[str, Callable[..., Any]] = {
    "slice": lambda x, y: jax.lax.dynamic_update_slice(x, y, (3, 0)),
    "scatter": lambda x, y: x.at[jnp.array([1, 5, 9])].set(y[:3]),
    "scatter-add": lambda x, y: x.at[jnp.array([1, 5, 1])].add(y[:3]),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("front", [coop_jax.run, coop_jax.remat_eager])
def test_an_array_that_stays_is_copied_once_to_be_written(front: Any, write: str) -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        return WRITES[write](jnp.sin(x), y), WRITES[write](x, 2 * y)

    args = array(256, 512), array(4, 512)
    budgeted = front(fn)
    found = budgeted(*args)
    wanted = jax.jit(fn)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6, 1e-6), found, wanted)
    assert budgeted.runtime.stats().workspace_bytes < args[0].nbytes / 4


def goes_on(carry: Any) -> Any:
    """Until states are small."""
    return (carry[0] < 24) & (carry[1].max() > 0)


def writing(w: jax.Array) -> Callable[..., Any]:
    """The body of a loop that writes states into a buffer."""

    def body(carry: Any) -> Any:
        i, y, buffer = carry
        y = jnp.tanh(y @ w)
        return i + 1, y, jax.lax.dynamic_update_slice(buffer, y[None], (i, 0, 0))

    return body


def while_loop(w: jax.Array, x: jax.Array, buffer: jax.Array) -> Any:
    """Writes into a buffer that is given."""
    return jax.lax.while_loop(goes_on, writing(w), (0, x, buffer))[1:]


def recording(w: jax.Array, x: jax.Array) -> Any:
    """Makes the buffer itself."""
    return jax.lax.while_loop(goes_on, writing(w), (0, x, jnp.zeros((24, *x.shape))))[1:]


@pytest.mark.parametrize("front", [coop_jax.run, coop_jax.remat_eager])
@pytest.mark.parametrize("fn", [recording, while_loop])
def test_a_while_loop_holds_the_buffer_that_it_carries_once(front: Any, fn: Any) -> None:
    args = [array(64, 64), abs(array(128, 64))]
    args += [np.zeros((24, 128, 64), np.float32)] if fn is while_loop else []
    loop = Loop(fn, tuple(args), ())
    budgeted = front(fn)
    found = budgeted(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), found, fn(*args))
    assert budgeted.runtime.stats().peak_bytes <= MOST * needed_by_jit(loop)


def test_a_while_loop_writes_into_a_donated_buffer() -> None:
    w, x = array(64, 64), abs(array(128, 64))
    budgeted = coop_jax.run(while_loop, donate_argnums=2)
    _, buffer = budgeted(w, x, jnp.zeros((24, 128, 64)))
    address = buffer.unsafe_buffer_pointer()
    _, buffer = budgeted(w, x, buffer)
    assert buffer.unsafe_buffer_pointer() == address
