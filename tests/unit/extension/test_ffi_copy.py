"""coop_copy puts an array into a slot of the pool, whatever its type, shape and size."""

import gc
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coop_jax import _core
from tests.testing.pool_slots import import_slot, spec_of

Copy = Callable[[jax.Array, jax.Array], jax.Array]


@pytest.fixture(scope="module")
def copy() -> Copy:
    jax.ffi.register_ffi_target("coop_copy", _core.ffi_targets()["cpu"], platform="cpu")

    def call(source: jax.Array, slot: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct(slot.shape, slot.dtype)
        return jax.ffi.ffi_call("coop_copy", out, input_output_aliases={1: 0})(source, slot)

    return jax.jit(call, donate_argnums=1)


def filled(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    return jax.random.randint(jax.random.key(3), shape, 0, 2).astype(dtype)


@pytest.mark.parametrize(
    "dtype",
    [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint32, jnp.bool_, jnp.complex64],
)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 2), (513, 1025)])
def test_copy_lands_in_the_slot(copy: Copy, dtype: jnp.dtype, shape: tuple[int, ...]) -> None:
    pool = _core.Pool(1 << 24)
    source = filled(shape, dtype)
    out = copy(source, import_slot(pool, 4096, spec_of(shape, source.dtype)))
    assert out.unsafe_buffer_pointer() == pool.base + 4096
    assert out.dtype == source.dtype
    np.testing.assert_array_equal(np.asarray(out), np.asarray(source))
    assert pool.live_blocks() == [(4096, source.nbytes)]
    del out
    gc.collect()  # JAX 0.11 leaves a cycle where NumPy read an array of bfloat16
    assert pool.live_blocks() == []


@pytest.mark.parametrize("shape", [(0,), (4, 0, 3)])
def test_copy_of_an_empty_array_does_nothing(copy: Copy, shape: tuple[int, ...]) -> None:
    pool = _core.Pool(1 << 12)
    out = copy(jnp.zeros(shape), import_slot(pool, 64, spec_of(shape, np.float32)))
    assert out.shape == shape
    assert pool.live_blocks() == []


def test_copy_leaves_its_source_and_its_neighbours_alone(copy: Copy) -> None:
    pool = _core.Pool(1 << 12)
    spec = spec_of((16,), np.float32)
    left = copy(jnp.full((16,), 1.0), import_slot(pool, 0, spec))
    right = copy(jnp.full((16,), 3.0), import_slot(pool, 128, spec))
    source = jnp.full((16,), 2.0)
    middle = copy(source, import_slot(pool, 64, spec))
    for array, value in ((left, 1.0), (middle, 2.0), (right, 3.0), (source, 2.0)):
        np.testing.assert_array_equal(np.asarray(array), np.full((16,), value, np.float32))


def test_copy_within_the_pool(copy: Copy) -> None:
    pool = _core.Pool(1 << 12)
    spec = spec_of((16,), np.float32)
    first = copy(jnp.arange(16.0), import_slot(pool, 0, spec))
    second = copy(first, import_slot(pool, 1024, spec))
    assert pool.offset_of(second.unsafe_buffer_pointer()) == 1024
    np.testing.assert_array_equal(np.asarray(second), np.asarray(first))


def test_a_slot_of_other_bytes_is_refused(copy: Copy) -> None:
    pool = _core.Pool(1 << 12)
    slot = import_slot(pool, 0, spec_of((8,), np.float32))
    with pytest.raises(Exception, match="differ in bytes"):
        jax.block_until_ready(copy(jnp.zeros((4,)), slot))
    del slot
    assert pool.live_blocks() == []


def test_every_platform_of_the_build_has_a_capsule() -> None:
    targets = _core.ffi_targets()
    assert "cpu" in targets
    assert set(targets) <= {"cpu", "CUDA"}


def test_every_jaxlib_from_the_oldest_supported_takes_the_custom_calls() -> None:
    """A jaxlib refuses what was compiled with a later one's headers: (0, 3) are those of 0.10."""
    assert _core.ffi_version() == (0, 3)
