"""What only a CUDA GPU can show: where XLA puts outputs there, and that training works.

Skipped where JAX sees no such GPU, with what it sees instead. Bits are compared within one front
end; XLA is asked for the same algorithms every time, since it otherwise picks them by
timing. Run these tests in a process of their own: another module may start the backend first.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

if os.path.exists("/dev/nvidiactl"):  # read when the backend starts
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + " --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    )

import jax
import jax.numpy as jnp
import numpy as np

import coop_jax
from coop_jax._src.compat import arrays, ffi
from coop_jax._src.execution import donation_probe, donation_probe_main
from coop_jax._src.execution.donation_probe import Placement
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.ir import kernels
from tests.testing import models
from tests.testing.comparison import assert_same_bits


def _gpu() -> jax.Device | None:
    try:
        devices = jax.devices("gpu")
    except RuntimeError:
        return None
    return devices[0] if "cuda" in devices[0].client.platform_version else None


GPU = _gpu()
pytestmark = pytest.mark.skipif(
    GPU is None, reason=f"no CUDA GPU: JAX sees {[str(d) for d in jax.devices()]}"
)


@pytest.fixture(params=list(Placement))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Placement]:
    """Both ways in which outputs come into the pool; the first only where the probe allows it."""
    assert GPU is not None
    if request.param is Placement.DONATED and donation_probe.probe(GPU) is Placement.COPIED:
        pytest.skip("the probe found that XLA must not be given slots on this machine")
    prepared = kernels.cache_for(GPU).prepared
    prepared.clear()  # it holds compiled operations
    monkeypatch.setitem(donation_probe._found, donation_probe.key_of(GPU), request.param)
    yield request.param
    prepared.clear()


def test_the_probe_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert GPU is not None
    found, reason = donation_probe.ask(donation_probe.check_command(GPU), 300)
    with capsys.disabled():
        print(f"\n{GPU.device_kind}, jax {jax.__version__}: {found.value} {reason}")
    assert donation_probe.probe(GPU) is found
    if found is Placement.DONATED:
        assert donation_probe_main.check(GPU) == ""


def test_slots_lie_where_they_are_told_to() -> None:
    assert GPU is not None
    memory = PoolMemory(1 << 22, GPU)
    assert memory.pool.base % 256 == 0
    x = jax.device_put(np.arange(4096, dtype=np.float32), GPU)
    spec = memory.spec(x)
    stored = ffi.store(memory.slot(1 << 20, spec), x)
    assert arrays.address_of(stored) == memory.pool.base + (1 << 20)
    assert_same_bits([stored, memory.view(1 << 20, spec)], [x, x])
    memory.pool.discard(0, 1 << 16)


def test_a_copy_through_donation_lands_in_its_slot() -> None:
    assert GPU is not None
    if donation_probe.probe(GPU) is Placement.COPIED:
        pytest.skip("the probe found that XLA must not be given slots on this machine")
    memory = PoolMemory(1 << 22, GPU)
    x = jax.device_put(np.arange(4096, dtype=np.float32), GPU)
    copied = ffi.copy_into(memory.slot(1 << 20, memory.spec(x)), x)
    assert arrays.address_of(copied) == memory.pool.base + (1 << 20)
    assert_same_bits(copied, x)


def train(step: Any, program: models.TrainingProgram) -> tuple[Any, list[Any]]:
    state, losses = jax.device_put(program.init, GPU), []
    for number in range(3):
        state, loss = step(state, program.batch(number))
        losses.append(loss)
    return state, losses


def in_little(
    make: Callable[[int], Any], program: models.TrainingProgram, peak_bytes: int
) -> tuple[Any, Any]:
    """The function and what it trained, in half of the memory or in the next that suffices.

    What the libraries need to work in (cuBLAS, cuDNN) is much beside networks as small as these.
    """
    for tenths in (5, 6, 7, 8, 9):
        step = make(peak_bytes * tenths // 10)
        with contextlib.suppress(coop_jax.BudgetExceededError):
            return step, train(step, program)
        step.runtime.close()
    raise AssertionError("nine tenths of the peak do not suffice")


def test_a_training_finds_the_pool_as_it_left_it() -> None:
    """Else each step would have to be planned."""
    program = models.gpt()
    step = coop_jax.run(program.step, "1GiB", donate_argnums=0, device=GPU)
    state = jax.device_put(program.init, GPU)
    for number in range(6):
        state, _ = step(state, program.batch(number))
    (signature,) = step._signatures.values()
    assert signature.planned <= 3


@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
@pytest.mark.parametrize("name", ["cnn", "mlp", "gpt"])
def test_training_in_little_memory_gives_the_same_bits(
    name: str, front_end: str, way: Placement
) -> None:
    program = getattr(models, name)()
    options: Any = {"device": GPU}
    if front_end == "run":
        options["donate_argnums"] = 0
    make = getattr(coop_jax, front_end)
    # A budget that never binds: "none" would take nine tenths of the device for the pool.
    free = make(program.step, budget="1GiB", **options)
    expected = jax.tree.map(np.array, train(free, program))
    peak = free.runtime.stats().peak_bytes
    free.runtime.close()
    step, found = in_little(lambda b: make(program.step, budget=b, **options), program, peak)
    stats = step.runtime.stats()
    assert stats.evictions > 0
    assert stats.peak_bytes <= stats.budget_bytes
    assert_same_bits(jax.tree.map(np.asarray, found), expected)
    runtime, pool = step.runtime, step.runtime.memory().pool
    large = [x for x in jax.tree.leaves(found[0]) if x.nbytes > 4096]
    assert large
    assert all(pool.offset_of(x.unsafe_buffer_pointer()) >= 0 for x in large)
    del found, large, step
    gc.collect()
    assert runtime.memory().pool.live_blocks() == []


def test_donated_parameters_keep_their_addresses(way: Placement) -> None:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * (x.T @ jnp.tanh(x @ w))

    step = coop_jax.run(fn, budget="64MiB", donate_argnums=0, device=GPU)
    x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    w = step(jax.device_put(x / 16, GPU), x)
    first = w.unsafe_buffer_pointer()
    for _ in range(100):
        w = step(w, x)
    assert w.unsafe_buffer_pointer() == first
    assert np.isfinite(np.asarray(w)).all()


def test_the_digits_example_at_nearly_half_of_its_memory() -> None:
    from examples.digits import train as digits

    def few(budget: Any) -> tuple[Any, coop_jax.Stats]:
        step = digits.budgeted(budget, eager=False)
        data = digits.load_digits(seed=0)
        params, opt_state = digits.create_state(0)
        todo = digits.batches_of(data.train_images, data.train_labels, 64, seed=0)
        for images, labels in todo[:3]:
            params, opt_state, _ = step(params, opt_state, images, labels)
        return jax.tree.map(np.array, params), step.runtime.stats()

    expected, free = few("1GiB")
    budget = free.peak_bytes // 2
    try:
        found, stats = few(budget)
    except coop_jax.BudgetExceededError as error:  # the workspace of cuDNN is not halved
        budget = error.report.smallest_budget_bytes or 0
        found, stats = few(budget)
    assert budget < 0.8 * free.peak_bytes
    assert stats.evictions > 0
    assert stats.peak_bytes <= budget
    assert_same_bits(found, expected)
