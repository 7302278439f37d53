"""What JAX's configuration changes, it changes here: at the top, under transformations, in kernels.

`jax.jit` is the reference: whatever it does before, inside and after a block of other settings.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax
from coop_jax._src.compat import contexts

Setting = Callable[[], contextlib.AbstractContextManager[Any]]

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
KEY = np.array([0, 7], np.uint32)


def outcome(fn: Callable[..., Any], args: Any) -> Any:
    try:
        return [(x.dtype, x.shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(fn(*args))]
    except Exception as error:
        return type(error)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Setting, bool]] = {
    "64 bits": (
        lambda x: (x + 1, jnp.arange(3) * 1.0),
        (X,),
        lambda: jax.enable_x64(True),
        True,
    ),
    "64 bits of numbers": (lambda n, x: x * n, (2.5, X), lambda: jax.enable_x64(True), False),
    "bits of raw keys": (
        lambda key: jax.random.normal(key, (5,)),
        (KEY,),
        lambda: jax.threefry_partitionable(False),
        True,
    ),
    "bits of typed keys": (
        lambda seed: jax.random.bits(jax.random.key(seed), (5,)),
        (3,),
        lambda: jax.threefry_partitionable(False),
        True,
    ),
    "promotion": (
        lambda x, y: x + y,
        (X, np.arange(4)),
        lambda: jax.numpy_dtype_promotion("strict"),
        True,
    ),
    "ranks": (
        lambda x, y: x + y,
        (X, X[0]),
        lambda: jax.numpy_rank_promotion("raise"),
        True,
    ),
    "debugging of NaNs": (jnp.log, (X,), lambda: jax.debug_nans(True), True),
    "debugging of infinite values": (
        lambda x: 1 / (jnp.asarray(x) * 0),
        (X,),
        lambda: jax.debug_infs(True),
        True,
    ),
    "no jit": (
        lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x),
        (X,),
        lambda: jax.disable_jit(True),
        False,
    ),
    "scans without jit": (
        lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x),
        (X,),
        lambda: jax.disable_jit(True),
        False,
    ),
    "matrix precision": (
        lambda x: x @ x.T,
        (X,),
        lambda: jax.default_matmul_precision("bfloat16"),
        False,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("front_end", [coop_jax.run, coop_jax.remat_eager])
def test_settings_of_a_block_hold_in_it_and_not_after_it(name: str, front_end: Any) -> None:
    fn, args, setting, changes = PROGRAMS[name]
    jitted, ours = jax.jit(fn), front_end(fn, budget="1MiB")
    args = jax.tree.map(jnp.asarray, args) if front_end is coop_jax.remat_eager else args
    outside = outcome(jitted, args)
    for _ in range(3):
        assert outcome(ours, args) == outside
    with setting():
        inside = outcome(jitted, args)
        assert (inside != outside) is changes
        for _ in range(2):
            assert outcome(ours, args) == inside
    assert outcome(ours, args) == outside


def test_settings_for_good() -> None:
    step = coop_jax.run(lambda x: x + jnp.arange(3.0), budget="1MiB")
    before = step(jnp.zeros(3))
    jax.config.update("jax_enable_x64", True)
    try:
        assert step(jnp.zeros(3, jnp.float32)).dtype == jnp.float64
    finally:
        jax.config.update("jax_enable_x64", False)
    np.testing.assert_array_equal(step(jnp.zeros(3)), before)


def test_one_trace_for_each_state() -> None:
    traced = []

    def fn(x: jax.Array) -> jax.Array:
        traced.append(x)
        return x * 2

    step, x = coop_jax.run(fn, budget="1MiB"), jnp.ones(3)
    for _ in range(3):
        step(x)
        with jax.numpy_rank_promotion("warn"):
            step(x)
        with jax.default_matmul_precision("highest"):
            step(x)
    assert len(traced) == 3


def test_under_transformations() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return (jax.random.normal(jax.random.key(0), (3,)) * x).sum()

    x = jnp.ones(3)
    for around in (jax.grad, jax.vmap, lambda f: jax.vmap(jax.grad(f))):
        given = x if around is jax.grad else jnp.ones((2, 3))
        jitted, ours = around(jax.jit(loss)), around(coop_jax.run(loss, budget="1MiB"))
        eager = around(coop_jax.remat_eager(loss, budget="1MiB"))
        for f in (jitted, ours, eager):
            f(given)
        with jax.threefry_partitionable(False):
            expected = jitted(given)
            np.testing.assert_allclose(ours(given), expected, rtol=1e-6)
            np.testing.assert_allclose(eager(given), expected, rtol=1e-6)


def test_a_loop_on_values_follows() -> None:
    def fn(x: jax.Array) -> jax.Array:
        def body(state: Any) -> Any:
            n, x = state
            return n + 1, x + jax.random.normal(jax.random.fold_in(jax.random.key(0), n), (3,))

        return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    jitted, ours, x = jax.jit(fn), coop_jax.run(fn, budget="1MiB"), jnp.zeros(3)
    np.testing.assert_allclose(ours(x), jitted(x), rtol=1e-6)
    with jax.threefry_partitionable(False):
        np.testing.assert_allclose(ours(x), jitted(x), rtol=1e-6)
    np.testing.assert_allclose(ours(x), jitted(x), rtol=1e-6)


def test_settings_that_change_in_the_middle_of_an_eager_call() -> None:
    @coop_jax.remat_eager(budget="1MiB")
    def both(seed: Any) -> Any:
        first = jax.random.bits(jax.random.key(seed), (5,))
        with jax.threefry_partitionable(False):
            second = jax.random.bits(jax.random.key(seed), (5,))
        return first, second, jax.random.bits(jax.random.key(seed), (5,))

    def bits(seed: Any) -> Any:
        return jax.random.bits(jax.random.key(seed), (5,))

    expected = bits(3)
    with jax.threefry_partitionable(False):
        other = bits(3)
    for _ in range(2):
        for found, wanted in zip(both(jnp.asarray(3)), (expected, other, expected), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_constants_are_no_transfers_of_the_caller() -> None:
    table = np.arange(300, dtype=np.float32)

    def fn(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda n, x: x + lax.dynamic_index_in_dim(table, n), x)

    step, x = coop_jax.run(fn, budget="1MiB"), jnp.ones(1)
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            x = step(x)
    np.testing.assert_array_equal(x, [10])


def test_threads_under_other_settings() -> None:
    step = coop_jax.run(lambda x: x + jnp.arange(3.0), budget="1MiB")

    def call(wide: bool) -> set[Any]:
        with jax.enable_x64(wide):
            return {step(jnp.zeros(3)).dtype for _ in range(50)}

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(call, [False, True, False, True]))
    assert found == [{np.dtype(np.float32)}, {np.dtype(np.float64)}] * 2


def test_equal_states_are_one() -> None:
    here = contexts.current()
    with jax.enable_x64(True):
        inside = contexts.current()
    assert contexts.current() is here
    assert inside is not here
    assert inside.of_kernels() != here.of_kernels()
    with jax.enable_x64(True):
        assert contexts.current() is inside
    with jax.default_device(jax.devices()[0]):
        assert contexts.current() is not here
        assert contexts.current().of_kernels() == here.of_kernels()


# --- Devices ---


@pytest.mark.unless_forced("a subprocess of its own, about devices")
def test_the_default_device_counts(tmp_path: Any) -> None:
    program = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
import coop_jax, jax, jax.numpy as jnp
first, second, third = jax.devices()
x = jnp.ones(3)
run = coop_jax.run(lambda x: x * 2, budget="1MiB")
eager = coop_jax.remat_eager(lambda x: x * 2, budget="1MiB")
jitted = jax.jit(lambda x: x * 2)
for device in (first, second, second, first, third, second, "cpu"):
    with jax.default_device(device):
        expected = jitted(x).device
        for fn in (run, eager):
            for _ in range(3):
                assert fn(x).device == expected, (device, fn(x).device)
            assert fn.runtime.device == expected
        assert coop_jax.Runtime("1MiB").device == expected
        assert jax.grad(lambda x: run(x).sum())(x).device == expected
kept = run.runtime
jax.config.update("jax_default_device", second)
for fn in (run, eager, coop_jax.run(jnp.sin), coop_jax.remat_eager(jnp.sin)):
    assert fn(x).device == second == fn.runtime.device
assert run.runtime is not kept
runtime = coop_jax.Runtime("1MiB", device=third)
for fn in (
    coop_jax.run(jnp.sin, budget="1MiB", device=third),
    coop_jax.run(jnp.sin, runtime=runtime),
    coop_jax.remat_eager(jnp.sin, runtime=runtime),
    coop_jax.remat_eager(jnp.sin, budget="1MiB", device=third),
):
    for device in (first, second, third):  # what was given stays
        with jax.default_device(device):
            assert fn(jnp.ones(3)).device == third == fn.runtime.device
with runtime:
    entered = coop_jax.run(jnp.sin)
    assert entered(x).device == third
assert entered(x).device == third
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
