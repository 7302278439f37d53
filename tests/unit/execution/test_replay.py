"""From its second step on a plan is carried out in C++; nothing else may change by that."""

from __future__ import annotations

import gc
import signal
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _core
from coop_jax._src.compat import arrays, devices
from coop_jax._src.compat.argument_reader import argument_reader
from coop_jax._src.execution import executor
from coop_jax._src.execution.instructions import Run
from coop_jax._src.execution.pool_memory import PoolMemory
from tests.testing.comparison import assert_same_bits
from tests.testing.faults import data, first_params, make, step_fn

# For `add_launch`: nothing is overwritten or goes, nothing is recomputed or consumed.
NOTHING_ELSE: tuple[Any, ...] = ([], [], False, False, [], [])


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the operations that Python launches."""
    seen: list[str] = []
    run = executor._run

    def counted(instruction: Any, *args: Any) -> None:
        seen.append(instruction.executable.label)
        run(instruction, *args)

    monkeypatch.setattr(executor, "_run", counted)
    return seen


def verifying() -> bool:
    return coop_jax.Runtime(1 << 20).verifier() is not None


@pytest.mark.parametrize("donate", [False, True])
def test_later_steps_launch_nothing_in_python_and_give_the_same_bits(
    donate: bool, launches: list[str]
) -> None:
    if verifying():
        pytest.skip("verification looks at each operation")
    step, reference = make("run", donate=donate), make("run", budget=None, donate=donate)
    params, expected = first_params(), first_params()
    counts = []
    for number in range(6):
        launches.clear()
        params, loss = step(params, data(number))
        counts.append(len(launches))
        expected, expected_loss = reference(expected, data(number))
        assert_same_bits([*params, loss], [*expected, expected_loss])
    assert counts[0] > 0
    if donate:  # else each step finds the pool otherwise, and makes another plan
        assert counts[-1] == 0
    assert step.runtime.stats().rematerialisations > 0
    assert step.runtime.stats().recompute_seconds > 0
    step.runtime.memory().pool.validate()


@pytest.mark.parametrize("ordered", [False, True])
def test_launches_are_waited_for_where_they_are_not_done_when_they_return(
    ordered: bool, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows may be written over what a launch still reads, unless it begins later."""
    if verifying():
        pytest.skip("verification looks at each operation")
    monkeypatch.setattr(arrays, "runs_synchronously", lambda device: False)
    monkeypatch.setattr(devices, "runs_in_order", lambda device: ordered)
    waited: list[jax.Array] = []
    wait = arrays.wait_for_launch

    def counted(result: jax.Array) -> None:
        waited.append(result)
        wait(result)

    monkeypatch.setattr(arrays, "wait_for_launch", counted)
    step, reference = make("run", donate=True), make("run", budget=None, donate=True)
    params, expected = first_params(), first_params()
    for number in range(6):
        waited.clear()
        launches.clear()
        params, loss = step(params, data(number))
        in_python, in_all = len(launches), len(waited)
        expected, expected_loss = reference(expected, data(number))
        assert_same_bits([*params, loss], [*expected, expected_loss])
    assert in_python == 0
    (signature,) = step._signatures.values()
    *_, plan = signature.plans.values()
    runs = [i for i in plan.instructions if type(i) is Run]
    assert any(i.recompute for i in runs)
    assert in_all == (1 if ordered else len(runs))
    stats = step.runtime.stats()
    assert stats.recompute_seconds > 0
    assert stats.compute_seconds > 0


def test_arrays_that_a_plan_keeps_may_be_deleted_by_the_user() -> None:
    step = make("run", donate=True)
    params = first_params()
    for number in range(4):
        params, _ = step(params, data(number))
    host = jax.tree.map(np.array, params)
    wanted, _ = step(params, data(9))
    wanted = jax.tree.map(np.array, wanted)
    memory, kept = step.runtime.memory(), {id(x) for x in params}
    found = [x for x in jax.live_arrays() if id(x) not in kept and memory.offset_of(x) >= 0]
    if not verifying():
        assert found
    for x in found:
        x.delete()
    params, _ = make("run", donate=True)(host, data(9))
    assert_same_bits(params, wanted)
    again, _ = step(host, data(9))
    assert_same_bits(again, wanted)


def test_the_pool_goes_with_the_function() -> None:
    step = make("run", donate=True)
    params = first_params()
    for number in range(4):
        params, _ = step(params, data(number))
    pool = weakref.ref(step.runtime.memory().pool)
    del step, params
    gc.collect()
    assert pool() is None


def test_a_nan_is_named_by_its_operation_in_later_steps_too() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.log(jnp.tanh(x) * 2.0).sum()

    budgeted = coop_jax.run(f, budget="1MiB")
    x = np.ones((64, 64), np.float32)
    for _ in range(3):
        assert np.isfinite(budgeted(x))
    assert np.isnan(budgeted(-x))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        budgeted(-x)


def test_a_user_who_keeps_what_a_step_wrote_is_not_overwritten() -> None:
    step = make("run", budget="4MiB")
    first = first_params()
    kept: list[tuple[Any, Any]] = []
    for number in range(5):
        result, _ = step(first, data(number))
        kept.append((result, jax.tree.map(np.array, result)))
        if number == 2:
            del kept[0]
    for result, copy in kept:
        assert_same_bits(result, copy)
    reference, _ = jax.jit(step_fn)(first, data(4))
    for x, y in zip(kept[-1][0], reference, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


# --- The class itself ---


class Machine:
    """A replay over a small pool, whose operations are Python functions of arrays."""

    def __init__(self) -> None:
        self.memory = PoolMemory(1 << 16, jax.devices("cpu")[0])
        load, load_arguments = arrays.importer(self.memory.device)
        self.replay = _core.Replay(
            self.memory.pool, load, load_arguments, argument_reader(self.memory.device)
        )
        self.spec = self.memory.spec(jax.ShapeDtypeStruct((64,), jnp.float32))
        self.interrupts = _core.Interrupts()

    def launch(self, call: Callable[..., Any], slots: Any, operands: Any, results: Any) -> None:
        self.replay.add_launch(call, slots, operands, results, *NOTHING_ELSE)

    def run(self, values: list[Any], begin: int = 0) -> int:
        return self.replay.run(values, begin, self.interrupts, lambda number, results: results)


def test_it_stops_at_what_is_not_ready_and_goes_on_after_it() -> None:
    machine = Machine()
    calls: list[int] = []
    for number in range(3):
        machine.launch(
            lambda x, n=number: calls.append(n) or [x + 1], [], [number], [(number + 1, -1)]
        )
    values = [1, None, None, None]
    assert machine.run(values) == 0
    machine.replay.make_ready(0)
    machine.replay.make_ready(2)
    assert machine.run(values) == 1
    assert values == [1, 2, None, None]
    values[2] = 3
    assert machine.run(values, 2) == 3
    assert values == [1, 2, 3, 4]
    assert calls == [0, 2]
    assert machine.replay.compute_seconds > 0


def test_a_slot_is_the_array_that_lay_there_last() -> None:
    machine = Machine()
    given: list[int] = []

    def write(slot: jax.Array, x: float) -> list[Any]:
        given.append(id(slot))
        assert arrays.address_of(slot) == machine.memory.pool.base + 128
        return [slot]

    cell = machine.replay.add_cell(128, machine.spec)
    machine.launch(write, [cell], [0], [(1, cell)])
    machine.replay.add_forget([(1, cell), (0, -1)])
    machine.launch(write, [cell], [2], [(-1, cell)])
    machine.launch(write, [cell], [2], [(1, cell)])
    for number in (0, 2, 3):
        machine.replay.make_ready(number)
    values: list[Any] = [1.0, None, 2.0]
    assert machine.run(values) == 4
    assert len(set(given)) == 1
    assert values[0] is None
    assert id(values[1]) == given[0]


def test_nothing_is_written_where_the_user_holds_memory() -> None:
    machine = Machine()
    cell = machine.replay.add_cell(128, machine.spec)
    machine.launch(lambda slot: [slot], [cell], [], [(-1, cell)])
    machine.replay.make_ready(0)
    assert machine.run([]) == 1
    lent = machine.memory.lend(128, machine.spec)
    with pytest.raises(RuntimeError, match="still in use"):
        machine.run([])
    del lent
    gc.collect()
    assert machine.run([]) == 1


def test_what_does_not_lie_over_an_argument_is_handed_over() -> None:
    machine = Machine()
    elsewhere, right = jnp.ones(64), machine.memory.view(256, machine.spec)
    seen: list[Any] = []

    def misplaced(number: int, results: Any) -> Any:
        seen.append((number, results[0]))
        return [right]

    call = [(1, -1)], [256], [0], False, True, [256], []
    machine.replay.add_launch(lambda x: [elsewhere], [], [0], *call)
    machine.replay.make_ready(0)
    values: list[Any] = [1.0, None]
    assert machine.replay.run(values, 0, machine.interrupts, misplaced) == 1
    assert seen == [(0, elsewhere)]
    assert values[0] is None
    assert values[1] is right
    assert machine.interrupts.consumed


def test_no_interrupt_is_raised_once_python_has_consumed_an_argument() -> None:
    machine = Machine()
    machine.replay.add_other()  # the executor's: it lets go of a donated argument
    machine.launch(lambda x: [x], [], [0], [(0, -1)])
    machine.replay.make_ready(1)
    values: list[Any] = [1]
    ran: list[int] = []

    def call(consumed: bool) -> None:
        machine.interrupts.consumed = consumed
        signal.raise_signal(signal.SIGINT)
        ran.append(machine.run(values, 1))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _core.guarded(None, machine.interrupts, None, call, False)
        assert ran == []
        _core.guarded(None, machine.interrupts, None, call, True)
        assert ran == [2]
        with pytest.raises(KeyboardInterrupt):  # now that the caller has what it returned
            time.sleep(60)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_leaves_values_as_they_were_and_the_replay_usable() -> None:
    machine = Machine()
    fail = [True]

    def call(slot: jax.Array) -> list[Any]:
        if fail[0]:
            raise ValueError("on purpose")
        return [slot]

    cell = machine.replay.add_cell(0, machine.spec)
    machine.launch(call, [cell], [], [(0, cell)])
    machine.replay.make_ready(0)
    values: list[Any] = [None]
    with pytest.raises(ValueError, match="on purpose"):
        machine.run(values)
    assert values == [None]
    fail[0] = False
    assert machine.run(values) == 1
    assert arrays.address_of(values[0]) == machine.memory.pool.base


@pytest.mark.parametrize(
    "misuse",
    [
        lambda replay, spec: replay.add_view(0, 3),
        lambda replay, spec: replay.add_forget([(-1, -1)]),
        lambda replay, spec: replay.add_forget([(0, 7)]),
        lambda replay, spec: replay.add_launch(
            print, [1], [], [(0, -1)], [], [], False, False, [], []
        ),
        lambda replay, spec: replay.add_launch(print, [0], [], [], *NOTHING_ELSE),
        lambda replay, spec: replay.make_ready(0),
    ],
)
def test_numbers_that_name_nothing_are_refused(misuse: Callable[[Any, Any], None]) -> None:
    machine = Machine()
    machine.replay.add_cell(0, machine.spec)
    with pytest.raises(ValueError, match=r"."):
        misuse(machine.replay, machine.spec)


def test_values_that_are_missing_are_refused() -> None:
    machine = Machine()
    machine.launch(lambda x: [x], [], [4], [(5, -1)])
    with pytest.raises(ValueError, match="an item for each value"):
        machine.run([None] * 5)
