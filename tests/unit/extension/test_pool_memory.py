"""Pool memory through Python: who holds what, what is refused, and when memory is let go of."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coop_jax import _core
from tests.testing.pool_slots import import_slot, spec_of

FLOATS = spec_of((256,), np.float32)  # 1,024 bytes


def test_an_unused_capsule_frees_its_slot() -> None:
    pool = _core.Pool(1 << 16)
    capsule = pool.slot(0, FLOATS)
    assert pool.live_blocks() == [(0, 1024)]
    del capsule
    assert pool.live_blocks() == []
    assert pool.drain_freed() == [0]
    assert pool.drain_freed() is None


def test_an_output_written_into_a_donated_slot_is_the_one_holder() -> None:
    pool = _core.Pool(1 << 16)
    add = jax.jit(lambda slot, x: x + 1, donate_argnums=0, keep_unused=True)
    out = add(import_slot(pool, 2048, FLOATS), jnp.arange(256.0))
    assert pool.offset_of(out.unsafe_buffer_pointer()) == 2048
    assert pool.live_count(2048) == 1
    view = np.asarray(out)
    del out
    gc.collect()
    assert pool.live_count(2048) == 1, "a numpy view holds the memory as well"
    np.testing.assert_array_equal(view, np.arange(256.0) + 1)
    del view
    gc.collect()
    assert pool.drain_freed() == [2048]


def test_an_array_keeps_the_memory_when_the_pool_is_gone() -> None:
    pool = _core.Pool(1 << 16)
    fill = jax.jit(lambda slot: jnp.full_like(slot, 7.0), donate_argnums=0, keep_unused=True)
    out = fill(import_slot(pool, 0, FLOATS))
    del pool
    gc.collect()
    np.testing.assert_array_equal(np.asarray(out), np.full(256, 7.0, np.float32))


@pytest.mark.parametrize("offset", [64, 1023 - 63, 1024 - 64])
def test_overlap_with_held_memory_is_refused(offset: int) -> None:
    pool = _core.Pool(1 << 16)
    held = pool.slot(0, FLOATS)
    with pytest.raises(RuntimeError, match=r"\[0, 1024\) is still in use"):
        pool.slot(offset, FLOATS)
    assert pool.live_blocks() == [(0, 1024)]
    del held
    assert pool.slot(offset, FLOATS) is not None


def test_a_slot_that_covers_held_memory_is_refused() -> None:
    pool = _core.Pool(1 << 16)
    held = pool.slot(512, spec_of((4,), np.float32))
    with pytest.raises(RuntimeError, match="still in use"):
        pool.slot(0, FLOATS)
    del held


def test_the_same_extent_is_shared_unless_exclusive() -> None:
    pool = _core.Pool(1 << 16)
    first = pool.slot(0, FLOATS)
    second = pool.slot(0, FLOATS)
    assert pool.live_count(0) == 2
    with pytest.raises(RuntimeError, match="still in use"):
        pool.slot(0, FLOATS, exclusive=True)
    with pytest.raises(RuntimeError, match="still in use"):
        pool.slot(0, spec_of((255,), np.float32))
    del first
    assert pool.drain_freed() is None
    del second
    assert pool.drain_freed() == [0]
    assert pool.slot(0, FLOATS, exclusive=True) is not None


def test_neighbours_do_not_overlap() -> None:
    pool = _core.Pool(3072)
    slots = [pool.slot(offset, FLOATS, exclusive=True) for offset in (1024, 0, 2048)]
    assert pool.live_blocks() == [(0, 1024), (1024, 1024), (2048, 1024)]
    pool.validate()
    slots.clear()
    assert pool.drain_freed() is not None
    assert pool.live_blocks() == []


@pytest.mark.parametrize("offset", [-64, 1 << 16, (1 << 16) - 64, 1 << 62])
def test_a_slot_outside_the_pool_is_refused(offset: int) -> None:
    pool = _core.Pool(1 << 16)
    with pytest.raises(ValueError, match="leaves the pool"):
        pool.slot(offset, FLOATS)
    assert pool.live_blocks() == []


def test_empty_slots_occupy_nothing() -> None:
    pool = _core.Pool(1 << 16)
    held = pool.slot(0, FLOATS)
    empty = pool.slot(0, spec_of((0, 4), np.float32), exclusive=True)
    assert pool.live_blocks() == [(0, 1024)]
    del empty, held
    assert pool.drain_freed() == [0]


def test_specs_check_what_they_are_given() -> None:
    assert _core.SlotSpec((3, 5), 0, 4).nbytes == 8
    assert _core.SlotSpec((3, 5), 0, 4, 15).nbytes == 15
    assert _core.SlotSpec((1,) * 12, 2, 32).shape == (1,) * 12
    assert _core.SlotSpec((0, 1 << 62, 1 << 62), 2, 32).nbytes == 0
    with pytest.raises(ValueError, match="do not hold"):
        _core.SlotSpec((4,), 2, 32, 15)
    with pytest.raises(ValueError, match="too large"):
        _core.SlotSpec((1 << 40, 1 << 40), 2, 32)
    with pytest.raises(ValueError, match="must be >= 0"):
        _core.SlotSpec((4, -1), 2, 32)
    with pytest.raises(ValueError, match="element type"):
        _core.SlotSpec((4,), 2, 0)
    with pytest.raises(ValueError, match="capacity_bytes"):
        _core.Pool(-1)


def test_addresses_and_offsets() -> None:
    pool = _core.Pool(4096)
    assert pool.base % 64 == 0
    assert pool.capacity_bytes == 4096
    assert pool.offset_of(pool.base) == 0
    assert pool.offset_of(pool.base + 4095) == 4095
    assert pool.offset_of(pool.base + 4096) == -1
    assert pool.offset_of(pool.base - 1) == -1


def test_a_huge_pool_takes_pages_only_where_it_is_touched() -> None:
    pool = _core.Pool(1 << 34)
    assert pool.resident_bytes() == 0
    spec = spec_of((1 << 22,), np.uint8)
    ones = jax.jit(lambda slot: jnp.ones_like(slot), donate_argnums=0, keep_unused=True)
    out = jax.block_until_ready(ones(import_slot(pool, 0, spec)))
    assert 1 << 22 <= pool.resident_bytes() <= 1 << 24
    with pytest.raises(RuntimeError, match="still in use"):
        pool.discard(0, 4096)
    del out
    gc.collect()
    pool.discard(0, 1 << 34)
    assert pool.resident_bytes() == 0


def test_discard_keeps_pages_that_reach_outside_its_range() -> None:
    pool = _core.Pool(1 << 20)
    fill = jax.jit(lambda slot: jnp.full_like(slot, 5), donate_argnums=0, keep_unused=True)
    out = jax.block_until_ready(fill(import_slot(pool, 0, spec_of((100,), np.uint8))))
    pool.discard(100, (1 << 20) - 100)
    np.testing.assert_array_equal(np.asarray(out), np.full(100, 5, np.uint8))


def test_slots_die_on_any_thread() -> None:
    pool = _core.Pool(1 << 20)

    def work(first: int) -> None:
        for step in range(500):
            capsule = pool.slot(first + 1024 * (step % 16), FLOATS, exclusive=True)
            del capsule

    threads = [threading.Thread(target=work, args=(index << 16,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.live_blocks() == []
    freed = pool.drain_freed()
    assert freed is not None
    assert len(freed) == 2000
    pool.validate()


class Owner:
    """Memory of somebody else, which must outlive the slots in it."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.zeros(nbytes, np.uint8)


def test_foreign_memory_keeps_its_owner_until_the_last_slot_is_gone() -> None:
    owner = Owner(8192)
    gone = weakref.ref(owner)
    pool = _core.Pool(owner.memory.ctypes.data, 8192, owner, 1, 0)
    capsule = pool.slot(4096, FLOATS)
    assert pool.resident_bytes() == -1
    pool.discard(0, 4096)
    del owner, pool
    gc.collect()
    assert gone() is not None
    del capsule
    for _ in range(100):  # the owner is let go of by a pending call of the interpreter
        pass
    assert gone() is None


def test_what_is_written_lies_there_and_held_memory_is_not_written() -> None:
    pool = _core.Pool(1 << 12)
    source = np.arange(256, dtype=np.float32)
    pool.write(1024, source.ctypes.data, 1024)
    written = import_slot(pool, 1024, FLOATS)
    np.testing.assert_array_equal(np.asarray(written), source)
    with pytest.raises(RuntimeError, match="is still in use"):
        pool.write(512, source.ctypes.data, 1024)
    np.testing.assert_array_equal(np.asarray(written), source)
    with pytest.raises(ValueError, match="leaves the pool"):
        pool.write(3584, source.ctypes.data, 1024)
    pool.write(4096, 0, 0)  # an empty array may have no address


def test_memory_of_another_device_is_not_written() -> None:
    cuda = 2  # DLPack's
    pool = _core.Pool(1 << 12, 1 << 12, object(), cuda, 0)
    with pytest.raises(ValueError, match="host memory"):
        pool.write(0, np.zeros(4).ctypes.data, 32)
