"""The engine and plans through Python: shapes of what calls return, errors, and a few decisions."""

import copy
import pickle

import numpy as np
import pytest

from coop_jax import _core


def engine(capacity_bytes: int, policy: _core.Policy | None = None) -> _core.Engine:
    return _core.Engine(capacity_bytes, 64, policy or _core.Policy(), 1e-12)


def spec(nbytes: int = 64, *, count: int = 1, in_place: int = -1) -> _core.OperationSpec:
    return _core.OperationSpec([nbytes] * count, [False] * count, [in_place] * count, 1e-3, True)


def test_policies_compare_by_value() -> None:
    assert _core.Policy() == _core.Policy("coop", sliding_window=True)
    assert hash(_core.Policy()) == hash(_core.Policy("coop"))
    assert _core.Policy("dtr") != _core.Policy("dte")
    assert _core.Policy() != "coop"
    dtr = _core.Policy("dtr", "exact")
    assert (dtr.heuristic, dtr.neighborhood) == ("dtr", "exact")
    switches = (dtr.sliding_window, dtr.cheap_partitioning, dtr.in_place, dtr.evict_always)
    assert not any(switches)
    assert dtr.keep_demanded
    assert dtr != _core.Policy("dtr", "exact", keep_demanded=False)
    assert dtr != _core.Policy("dtr", "exact", unheld_first=False)
    assert dtr != _core.Policy("dtr", "exact", search_effort=1)
    assert _core.Policy("lookahead").search_effort > 0 == dtr.search_effort
    assert repr(dtr) == (
        "Policy(heuristic='dtr', neighborhood='exact', sliding_window=False, "
        "cheap_partitioning=False, in_place=False, evict_always=False, keep_demanded=True, "
        "unheld_first=True, search_effort=0)"
    )
    with pytest.raises(ValueError, match="heuristic must be"):
        _core.Policy("lru")
    with pytest.raises(ValueError, match="neighborhood must be"):
        _core.Policy("dtr", "near")


def test_policies_are_copied_and_pickled() -> None:
    """They are part of a user's configuration."""
    for policy in (_core.Policy(), _core.Policy("dtr", "exact", evict_always=True, in_place=True)):
        assert copy.deepcopy(policy) == pickle.loads(pickle.dumps(policy)) == policy
    assert copy.deepcopy(_core.Policy(search_effort=7)).search_effort == 7


def test_actions_are_values_told_apart_by_kind() -> None:
    placement = _core.Placement(4, 128, in_place_input=0)
    run = _core.Run(3, True, [placement, _core.Placement(-1, -1)])
    assert (run.operation, run.recompute, run.placements[0]) == (3, True, placement)
    assert (placement.storage, placement.offset, placement.in_place_input) == (4, 128, 0)
    assert repr(run) == (
        "Run(operation=3, recompute=True, placements=(Placement(storage=4, offset=128, "
        "in_place_input=0), Placement(storage=-1, offset=-1, in_place_input=-1)))"
    )
    assert _core.Evict(3) == _core.Evict(3) != _core.Evict(4)
    assert _core.Evict(3) != _core.Drop(3)
    assert run != _core.Run(3, False, run.placements)
    every: list[_core.Action] = [run, _core.Evict(3), _core.Drop(3)]
    assert len({*every, *copy.deepcopy(every), *pickle.loads(pickle.dumps(every))}) == 3
    match every[1]:
        case _core.Evict(storage):
            assert storage == 3
        case other:
            pytest.fail(f"matched as {other}")
    with pytest.raises(AttributeError):
        run.operation = 4  # type: ignore[misc]


def test_an_operation_spec_checks_its_lengths_and_cost() -> None:
    with pytest.raises(ValueError, match="one entry an output"):
        _core.OperationSpec([64, 64], [False], [-1, -1], 0.0, True)
    with pytest.raises(ValueError, match="finite"):
        _core.OperationSpec([64], [False], [-1], float("nan"), True)


def test_submit_without_pressure_has_nothing_to_do_before() -> None:
    e = engine(1 << 16)
    source = e.add_outside(256)
    operation, outputs, offsets, actions, in_place = e.submit([source], spec(count=2))
    assert operation >= 0
    assert len(outputs) == len(offsets) == 2
    assert [e.offset_of(s) for s in outputs] == list(offsets)
    assert actions is None
    assert in_place is None
    assert e.state_of(outputs[0]) == "resident"
    e.validate()


def test_outside_outputs_have_no_offset() -> None:
    e = engine(1 << 16)
    mixed = _core.OperationSpec([64, 8], [False, True], [-1, -1], 1e-3, True)
    _, outputs, offsets, _, _ = e.submit((e.add_outside(8),), mixed)
    assert offsets[0] >= 0
    assert offsets[1] == -1
    assert e.stats().outside_bytes == 16
    assert e.bytes_of(outputs[1]) == 8


def test_pressure_evicts_and_a_later_use_recomputes() -> None:
    e = engine(4 * 64)
    source = e.add_outside(8)
    first = e.submit([source], spec())[1][0]
    made = [first]
    evicted: list[int] = []
    for _ in range(6):
        _, (output,), _, actions, _ = e.submit([made[-1]], spec())
        made.append(output)
        for action in actions or []:
            if isinstance(action, _core.Evict):
                evicted.append(action.storage)
        e.validate()
    assert evicted
    assert e.stats().evictions == len(evicted)
    gone = evicted[0]
    assert e.state_of(gone) == "evicted"
    assert e.offset_of(gone) == -1
    _, _, _, actions, _ = e.submit([gone], spec())
    runs = [action for action in actions or [] if isinstance(action, _core.Run)]
    assert runs
    assert all(run.recompute for run in runs)
    assert runs[-1].placements == (_core.Placement(gone, e.offset_of(gone)),)
    assert e.stats().recomputations == len(runs)
    e.validate()


def test_statistics_are_what_they_were_when_asked_for_and_cannot_be_changed() -> None:
    e = engine(4 * 64)
    before = e.stats()
    e.submit([e.add_outside(8)], spec())
    after = e.stats()
    assert (before.operations, after.operations) == (0, 1)
    assert after.compute_seconds == after.recompute_seconds + spec().cost_seconds > 0
    with pytest.raises(AttributeError):
        after.operations = 2  # type: ignore[misc]
    assert repr(after).startswith("EngineStats(operations=1, recomputations=0, ")
    assert repr(after).endswith(f"peak_pool_bytes={after.peak_pool_bytes})")
    assert repr(e.failure()).startswith("Failure(reason='none', ")


def test_no_space_leaves_the_engine_as_it_was() -> None:
    e = engine(4 * 64)
    source = e.add_outside(8)
    kept = e.submit([source], spec())[1][0]
    before = e.fingerprint()
    live = (e.live_storages, e.live_operations)
    with pytest.raises(_core.NoSpaceError, match="large enough") as caught:
        e.submit([kept], spec(5 * 64))
    assert caught.value.failure.reason == "no_space"
    assert caught.value.failure.requested_bytes == 5 * 64
    assert caught.value.failure.capacity_bytes == 4 * 64
    assert (e.live_storages, e.live_operations) == live
    e.validate()
    assert e.state_of(kept) == "resident"
    assert e.submit([kept], spec())[3] is None
    assert before != 0


def test_release_tells_what_is_gone() -> None:
    e = engine(1 << 16)
    source = e.add_outside(8)
    output = e.submit([source], spec())[1][0]
    e.retain(output)
    assert e.release(output) is None
    assert e.release(output) == [output]
    assert e.release(source) == [source]
    assert e.retired() is not None
    assert e.retired() is None
    assert (e.live_storages, e.live_operations) == (0, 0)
    e.validate()


def test_an_in_place_output_takes_its_inputs_block() -> None:
    e = engine(1 << 12)
    source = e.add_foreign(128, 64, True)
    _, (output,), offsets, actions, in_place = e.submit([source], spec(in_place=0))
    assert offsets == (128,)
    assert in_place == (0,)
    assert actions is None
    e.release(source)
    e.make_permanent(output)
    e.validate()
    assert e.is_permanent(output)
    assert not e.is_evictable(output)


def test_abort_before_the_own_run_lets_it_run_again() -> None:
    e = engine(4 * 64)
    source = e.add_outside(8)
    made = [e.submit([source], spec())[1][0]]
    while True:
        operation, (output,), _, actions, _ = e.submit([made[-1]], spec())
        made.append(output)
        if actions is not None:
            break
    assert e.abort(0) == 0
    e.validate()
    assert e.state_of(output) == "unborn"
    assert e.rerun(operation)[3] == actions
    assert e.abort(len(actions)) == len(actions)
    assert e.forget(operation) is None
    e.validate()


def test_materialize_evict_all_and_reserve_return_actions() -> None:
    e = engine(1 << 12)
    source = e.add_outside(8)
    operation, (output,), _, _, _ = e.submit([source], spec())
    assert e.evict_all() == [_core.Evict(output)]
    actions = e.materialize(output)
    assert actions == [_core.Run(operation, True, [_core.Placement(output, e.offset_of(output))])]
    assert e.materialize(output) is None
    assert e.reserve(1 << 10) is None
    assert sum(nbytes for _, nbytes in e.reserved_blocks()) >= 1 << 10
    with pytest.raises(_core.NoSpaceError):
        e.reserve(1 << 20)
    e.validate()


@pytest.mark.parametrize("bad", [[-1], [10_000], ["a"], [1.5], 3, None])
def test_bad_inputs_are_errors(bad: object) -> None:
    e = engine(1 << 12)
    with pytest.raises((ValueError, TypeError)):
        e.submit(bad, spec())  # type: ignore[arg-type]
    e.validate()


def chain(length: int, nbytes: int = 64) -> _core.Program:
    """Source 0 outside, storages 1 to length in a chain; the last one also reads the first."""
    inputs = [[i] for i in range(length)]
    inputs[-1].append(1)
    last = {s: op for op, read in enumerate(inputs) for s in read}
    releases = [[s for s, at in last.items() if at == op and s != 0] for op in range(length)]
    begin = np.cumsum([0] + [len(read) for read in inputs]).astype(np.int32)
    return _core.Program(
        storage_bytes=[8] + [nbytes] * length,
        storage_outside=[True] + [False] * length,
        input_storages=[0],
        input_donated=[False],
        op_input_begin=begin,
        op_inputs=np.concatenate(inputs).astype(np.int32),
        op_output_begin=list(range(length + 1)),
        op_outputs=list(range(1, length + 1)),
        op_in_place=[-1] * length,
        op_cost_seconds=np.full(length, 1e-3),
        op_recomputable=[True] * length,
        release_begin=np.cumsum([0] + [len(now) for now in releases]).astype(np.int32),
        releases=[s for now in releases for s in now],
        outputs=[length],
    )


def plan(program: _core.Program, capacity_bytes: int, **changes: object) -> _core.Plan:
    return _core.make_plan(
        program,
        **{  # type: ignore[arg-type]
            "capacity_bytes": capacity_bytes,
            "alignment_bytes": 64,
            "policy": _core.Policy(),
            "expensive_seconds_per_byte": 1e-12,
            "input_where": [_core.INPUT_OUTSIDE],
            "input_offsets": [-1],
        }
        | changes,
    )


def test_a_plan_with_room_runs_every_operation_once() -> None:
    program = chain(8)
    assert (program.storage_count, program.operation_count) == (9, 8)
    full = plan(program, 1 << 12)
    assert full.feasible
    assert full.failure is None
    runs = [action for action in full.actions if isinstance(action, _core.Run)]
    assert [run.operation for run in runs] == full.execution_order == list(range(8))
    assert not any(run.recompute for run in runs)
    assert full.stats.evictions == 0, "what is released is let go of, not evicted for room"
    assert full.action_count == len(full.actions)
    assert len(full.output_offsets) == 1
    assert full.stats.operations == 8


def test_a_tight_plan_recomputes_and_is_the_same_each_time() -> None:
    program = chain(8)
    tight = plan(program, 2 * 64)
    if tight.feasible:  # depends on how far the engine goes; three blocks must do
        assert tight.peak_bytes <= 2 * 64 + 8
    three = plan(program, 3 * 64)
    assert three.feasible
    assert three.peak_bytes <= 3 * 64 + 8
    assert three.actions == plan(program, 3 * 64).actions


def test_an_infeasible_plan_says_why() -> None:
    none = plan(chain(8), 64)
    assert not none.feasible
    assert none.failure is not None
    assert none.failure.reason in ("no_space", "thrashing")
    assert none.failed_operation >= 0


def test_foreign_blocks_and_reservations_are_left_alone() -> None:
    held = plan(chain(8), 1 << 12, foreign=[(0, 1024)], reserve_bytes=512)
    assert held.feasible
    assert sum(nbytes for _, nbytes in held.reserved) >= 512
    taken = [(0, 1024), *held.reserved]
    for action in held.actions:
        for placement in action.placements if isinstance(action, _core.Run) else ():
            at = placement.offset
            assert all(at + 64 <= begin or at >= begin + n for begin, n in taken)


def test_malformed_programs_are_value_errors() -> None:
    with pytest.raises(ValueError, match="one entry an input"):
        plan(chain(4), 1 << 12, input_where=[])
    with pytest.raises(ValueError, match="INPUT_OUTSIDE"):
        plan(chain(4), 1 << 12, input_where=[7])
    with pytest.raises(ValueError, match=r".+"):
        plan(chain(4), 1 << 12, foreign=[(0, 128), (64, 128)])


def test_what_is_cheapest_to_keep_is_told_by_storage() -> None:
    where = [_core.INPUT_OUTSIDE]
    fits, short = _core.cheapest_to_keep(chain(8), input_where=where, pool_bytes=[3 * 64, 2 * 64])
    # While the third operation runs, the first one's result waits for the last.
    assert fits == ([1], [-1] * 9, 0.0)
    assert short == ([], [-1] * 9, 1e-3)
    held = plan(chain(8), 1 << 12, held_for=[-1, -1, 6, *[-1] * 6])
    assert held.stats.peak_in_use_bytes == 4 * 64 + 8  # its second one's lives on to the seventh
    with pytest.raises(ValueError, match="one entry an input"):
        _core.cheapest_to_keep(chain(8), input_where=[], pool_bytes=[64])
    with pytest.raises(ValueError, match="held_for"):
        plan(chain(8), 1 << 12, held_for=[99] * 9)


def test_search_window_finds_the_cheapest_neighbours() -> None:
    sizes, scores, evictable = [10, 10, 10, 10], [3.0, 1.0, 1.0, 5.0], [True] * 4
    assert _core.search_window(sizes, scores, evictable, 20, False) == (1, 2)
    assert _core.search_window(sizes, scores, evictable, 50, False) is None
    assert _core.search_window(sizes, scores, [True, False, True, True], 20, False) == (2, 3)
    free = [True, True, False, False]
    assert _core.search_window(sizes, scores, evictable, 20, False, free) == (0, 1)
    with pytest.raises(ValueError, match="one entry a block"):
        _core.search_window(sizes, scores, evictable[:3], 20, False)
