"""Where XLA puts outputs is found out in another process; where it will not, they are copied."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import arrays, devices, ffi
from coop_jax._src.execution import (
    donation_probe,
    donation_probe_main,
    executable_cache,
    executables,
    slot_copy,
)
from coop_jax._src.execution.donation_probe import Placement
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.ir import kernels
from tests.testing import models
from tests.testing.comparison import assert_same_bits


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU as a device on which XLA must not be given memory of the pool."""
    device = jax.devices()[0]
    prepared = kernels.cache_for(device).prepared
    prepared.clear()  # it holds compiled operations
    monkeypatch.setitem(donation_probe._found, donation_probe.key_of(device), Placement.COPIED)
    yield
    prepared.clear()


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


# --- The probe ---


def test_the_cpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donation_probe, "ask", None)
    monkeypatch.setattr(donation_probe, "_found", {})
    assert donation_probe.probe(jax.devices()[0]) is Placement.DONATED


def test_the_check_passes_where_xla_places_outputs() -> None:
    assert donation_probe_main.check(jax.devices()[0]) == ""


def test_the_check_sees_that_xla_allocated_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def importer(device: jax.Device) -> tuple[Callable[..., jax.Array], tuple[Any, ...]]:
        return arrays._jax.dlpack_managed_tensor_to_buffer, (device, None, None)  # read-only on CPU

    monkeypatch.setattr(arrays, "importer", importer)
    reason = donation_probe_main.check(jax.devices()[0])
    assert reason == "the output of an elementwise operation was not written into its slot"


def test_the_command_answers_in_a_process_of_its_own() -> None:
    command = donation_probe.check_command(jax.devices()[0])
    assert donation_probe.ask(command, 120) == (Placement.DONATED, "")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", "ended with status -6"),
        ("raise SystemExit('no such device')", "status 1: no such device"),
        ("print('coop_jax placement: donated'); import os; os._exit(3)", "status 3"),
        ("pass", "no answer"),
        ("print('donated')", "no answer"),
        ("print('coop_jax placement: not in its slot')", "not in its slot"),
        ("print('coop_jax placement: donated'); print('coop_jax placement: x')", "x"),
        ("import time; time.sleep(60)", "longer than 0.5 s"),
    ],
)
def test_whatever_goes_wrong_means_copied(program: str, reason: str) -> None:
    seconds = 0.5 if "sleep" in program else 60
    found, why = donation_probe.ask(python(program), seconds)
    assert found is Placement.COPIED
    assert reason in why


def test_a_check_that_cannot_be_started_means_copied() -> None:
    found, why = donation_probe.ask(["/nonexistent/python"], 60)
    assert found is Placement.COPIED
    assert "could not be started" in why


def test_the_answer_may_have_company() -> None:
    noise = "print('XLA says hello'); print('coop_jax placement: donated'); print('bye')"
    assert donation_probe.ask(python(noise), 60) == (Placement.DONATED, "")


def test_the_other_process_preallocates_nothing_and_imports_what_this_one_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend("/somewhere")
    program = """
import os, sys
ok = os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" and "/somewhere" in sys.path
print("coop_jax placement:", "donated" if ok else "environment")
"""
    assert donation_probe.ask(python(program), 60) == (Placement.DONATED, "")
    assert os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") != "false"


class FakeClient:
    def __init__(self, platform_version: str):
        self.platform_version = platform_version


class FakeDevice:
    """What the code asks of a device that this machine does not have."""

    id = 9

    def __init__(self, platform: str, version: str, number: int | None = 1):
        self.platform = platform
        self.client = FakeClient(version)
        self.local_hardware_id = number
        self.device_kind = "NVIDIA Test"


def test_other_devices_are_asked_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def ask(command: list[str], timeout_seconds: float) -> tuple[Placement, str]:
        asked.append(command)
        return Placement.COPIED, "the check ended with status -6"

    monkeypatch.setattr(donation_probe, "ask", ask)
    monkeypatch.setattr(donation_probe, "_found", {})
    device: Any = FakeDevice("gpu", "cuda 12090")
    with caplog.at_level("WARNING"):
        for _ in range(3):
            assert donation_probe.probe(device) is Placement.COPIED
    assert [command[-3:] for command in asked] == [["gpu", "1", "NVIDIA Test"]]
    assert "status -6" in caplog.text


def test_an_interrupted_probe_is_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(command: list[str], timeout_seconds: float) -> tuple[Placement, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(donation_probe, "ask", ask)
    monkeypatch.setattr(donation_probe, "_found", {})
    device: Any = FakeDevice("gpu", "cuda 12090")
    with pytest.raises(KeyboardInterrupt):
        donation_probe.probe(device)
    assert donation_probe._found == {}


# --- Devices ---


def test_cuda_devices_have_their_dlpack_number() -> None:
    device: Any = FakeDevice("gpu", "PJRT C API\ncuda 12090", number=3)
    assert devices.dlpack_device(device) == (2, 3)
    assert devices.dlpack_device(jax.devices()[0]) == (1, 0)


@pytest.mark.parametrize(("platform", "version"), [("gpu", "rocm 60400"), ("tpu", "libtpu")])
def test_other_devices_are_refused(platform: str, version: str) -> None:
    device: Any = FakeDevice(platform, version)
    with pytest.raises(ValueError, match=f"CPU and on CUDA GPUs.*{platform}.*{version}"):
        PoolMemory(1 << 20, device)


def test_a_pool_over_an_array_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool as it is on a GPU, over memory that XLA allocated; here on the CPU."""
    owner = arrays.zero_bytes(1 << 16, jax.devices()[0])
    assert (owner.shape, owner.dtype) == ((1 << 16,), np.uint8)
    pool = _core.Pool(arrays.address_of(owner), owner.nbytes, owner, 1, 0)
    memory = PoolMemory(0, jax.devices()[0])
    memory.pool = pool
    spec = memory.spec(jax.ShapeDtypeStruct((16, 16), np.float32))
    x = jnp.arange(256, dtype=jnp.float32).reshape(16, 16)
    lying = slot_copy.copy_into(memory.slot(4096, spec), x)
    assert arrays.address_of(lying) == pool.base + 4096
    pool.discard(0, 1024)  # does nothing, but is allowed
    assert_same_bits(memory.view(4096, spec), x)
    assert pool.resident_bytes() == -1


def test_a_pool_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def zero_bytes(count: int, device: jax.Device) -> jax.Array:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(arrays, "zero_bytes", zero_bytes)
    device: Any = FakeDevice("gpu", "cuda 12090")
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED") as caught:
        PoolMemory(1 << 40, device)
    assert "smaller budget" in caught.value.__notes__[0]


def test_without_a_budget_the_pool_takes_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; users have arrays there before the first call."""
    left = iter([1000, 10])
    monkeypatch.setattr(devices, "memory_left", lambda device: next(left))
    runtime = coop_jax.Runtime(None)
    assert [runtime.capacity_bytes() for _ in range(3)] == [900] * 3


def test_what_is_left_of_a_device() -> None:
    class Device:
        def __init__(self, stats: dict[str, int] | None):
            self._stats = stats

        def memory_stats(self) -> dict[str, int] | None:
            return self._stats

    def left(stats: dict[str, int] | None) -> int | None:
        device: Any = Device(stats)
        return devices.memory_left(device)

    assert left(None) is None
    assert left({"bytes_limit": 100, "bytes_in_use": 30}) == 70
    assert left({"bytes_limit": 100}) == 100


# --- coop_store ---


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, jnp.bool_, jnp.complex64])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 2), (513, 1025), (4, 0)])
def test_store_writes_the_slot_and_nothing_else(dtype: Any, shape: tuple[int, ...]) -> None:
    memory = PoolMemory(1 << 25, jax.devices()[0])
    source = jax.random.randint(jax.random.key(3), shape, 0, 2).astype(dtype)
    spec = memory.spec(source)
    kept = [slot_copy.copy_into(memory.slot(o, spec), source) for o in (0, 1 << 24)]
    slot = memory.slot(1 << 23, spec)
    stored = ffi.store(slot, source)
    assert stored is slot
    if source.size:
        assert arrays.address_of(stored) == memory.pool.base + (1 << 23)
    assert_same_bits([stored, memory.view(1 << 23, spec), *kept], [source] * 4)
    assert not source.is_deleted()


def test_store_refuses_a_slot_of_other_bytes() -> None:
    memory = PoolMemory(1 << 12, jax.devices()[0])
    slot = memory.slot(0, memory.spec(jax.ShapeDtypeStruct((8,), np.float32)))
    with pytest.raises(Exception, match="differ in bytes"):
        ffi.store(slot, jnp.zeros(4))


def test_no_other_custom_call_is_known() -> None:
    assert set(_core.ffi_targets("coop_store")) == set(_core.ffi_targets("coop_copy"))
    with pytest.raises(ValueError, match="coop_nothing"):
        _core.ffi_targets("coop_nothing")


# --- Executables that donate nothing ---


def test_outputs_that_xla_allocates_count_as_workspace(copied: None) -> None:
    device = jax.devices()[0]
    cache = kernels.KernelCache(device)
    aval = jax.ShapeDtypeStruct((64, 64), np.float32)
    kernel = cache.from_function(lambda a: a * 2, [aval])
    slot = executable_cache.executable(kernel, (executables.SLOT,), device, cache)
    over = executable_cache.executable(kernel, (0,), device, cache)
    outside = executable_cache.executable(kernel, (executables.OUTSIDE,), device, cache)
    assert not slot.donates
    nbytes = 64 * 64 * 4
    assert slot.workspace_bytes == over.workspace_bytes == outside.workspace_bytes + nbytes
    donating = executables.Executable(kernel, (executables.SLOT,), device)
    assert donating.workspace_bytes == outside.workspace_bytes
    assert donating.donates


def test_both_kinds_of_executable_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.devices()[0]
    cache = kernels.KernelCache(device)
    kernel = cache.from_function(lambda a: a * 2, [jax.ShapeDtypeStruct((8,), np.float32)])
    donating = executable_cache.executable(kernel, (executables.SLOT,), device, cache)
    monkeypatch.setitem(donation_probe._found, donation_probe.key_of(device), Placement.COPIED)
    copying = executable_cache.executable(kernel, (executables.SLOT,), device, cache)
    assert (donating.donates, copying.donates) == (True, False)
    monkeypatch.undo()
    assert executable_cache.executable(kernel, (executables.SLOT,), device, cache) is donating


# --- Training ---


def train(step: Any, program: models.TrainingProgram, steps: int) -> tuple[Any, list[Any]]:
    state, losses = jax.tree.map(np.array, program.init), []
    for number in range(steps):
        state, loss = step(state, program.batch(number))
        losses.append(loss)
    return state, losses


def in_pool(runtime: coop_jax.Runtime, tree: Any) -> list[bool]:
    pool = runtime.memory().pool
    return [
        pool.offset_of(x.unsafe_buffer_pointer()) >= 0
        for x in jax.tree.leaves(tree)
        if x.nbytes > 4096
    ]


@pytest.mark.unless_forced("whole models: recomputation is quadratic in the length of a program")
@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_training_by_copies_gives_the_same_bits(
    name: str, front_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = jax.devices()[0]
    program = getattr(models, name)()
    make = getattr(coop_jax, front_end)
    options = {"donate_argnums": 0} if front_end == "run" else {}
    unbudgeted = make(program.step, budget=None, **options)
    expected = jax.tree.map(np.array, train(unbudgeted, program, 3))
    most = unbudgeted.runtime.stats().peak_bytes

    prepared = kernels.cache_for(device).prepared
    prepared.clear()
    monkeypatch.setitem(donation_probe._found, donation_probe.key_of(device), Placement.COPIED)
    copies = []
    store = ffi.store
    monkeypatch.setattr(ffi, "store", lambda *pair: (copies.append(1), store(*pair))[1])
    monkeypatch.setattr(ffi, "copy_into", None)  # nothing is donated to a custom call either
    budget = int(most * 0.75)
    step = make(program.step, budget=budget, **options)
    found = train(step, program, 3)
    monkeypatch.undo()
    prepared.clear()

    stats = step.runtime.stats()
    assert copies
    assert stats.evictions > 0
    assert stats.peak_bytes <= budget
    assert all(in_pool(step.runtime, found[0]))
    assert in_pool(step.runtime, found[0])
    assert_same_bits(found, expected)
    runtime = step.runtime
    del found, step
    gc.collect()
    assert runtime.memory().pool.live_blocks() == []


def test_donated_parameters_keep_their_addresses_by_copies(copied: None) -> None:
    program = models.mlp()
    step = coop_jax.run(program.step, budget=None, donate_argnums=0)
    state, _ = step(jax.tree.map(jnp.array, program.init), program.batch(0))
    large = [x for x in jax.tree.leaves(state) if x.nbytes > 4096]
    first = [x.unsafe_buffer_pointer() for x in large]
    for number in range(1, 4):
        state, _ = step(state, program.batch(number))
    assert all(x.is_deleted() for x in large)
    large = [x for x in jax.tree.leaves(state) if x.nbytes > 4096]
    assert [x.unsafe_buffer_pointer() for x in large] == first


def test_memory_shared_with_another_library_is_not_overwritten(copied: None) -> None:
    step = coop_jax.run(lambda x: x * 2 + 1, budget="1MiB", donate_argnums=0)
    x = step(jnp.ones((64, 64)))
    shared = np.from_dlpack(x)
    before = shared.copy()
    with pytest.warns(UserWarning, match="DLPack"):
        found = step(x)
    assert_same_bits(shared, before)
    assert_same_bits(found, before * 2 + 1)


def test_the_next_call_is_fine_after_one_that_raised(copied: None) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("on purpose")

    def fn(x: jax.Array, bad: bool) -> jax.Array:
        y = jnp.sin(x @ x)
        if bad:
            aval = jax.ShapeDtypeStruct(y.shape, y.dtype)
            y = jax.pure_callback(fails, aval, y)
        return y + x

    step = coop_jax.run(fn, budget="4MiB", static_argnums=1)
    x = jnp.ones((64, 64))
    with pytest.raises(Exception, match="on purpose"):
        step(x, True)
    assert_same_bits(step(x, False), jax.jit(lambda x: jnp.sin(x @ x) + x)(x))


def test_a_view_of_a_donated_argument_may_be_overwritten(copied: None) -> None:
    step = coop_jax.run(lambda x: jnp.sin(x.reshape(-1)), budget="1MiB", donate_argnums=0)
    x = jnp.linspace(0, 1, 4096).reshape(64, 64)
    expected = np.asarray(jnp.sin(x.reshape(-1)))
    y = step(x)
    assert x.is_deleted()
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    z = step(y.reshape(64, 64))
    np.testing.assert_allclose(z, np.sin(expected), rtol=1e-6)
