"""Operations composed as one: what it may write over, and in which order XLA goes."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.compat import calls, jaxprs
from coop_jax._src.execution import executable_cache, executables
from coop_jax._src.ir import kernels
from coop_jax._src.ir.program import Operation, Program, Storage, Value, releases_of
from coop_jax._src.planning.rematerialized import room_before, unrolled
from coop_jax._src.segments import constants, isolation_check, partition, segment
from coop_jax._src.segments.compose import Composer
from coop_jax._src.segments.segment import Segment
from tests.testing import models
from tests.testing.comparison import assert_same_bits
from tests.testing.segmented import launches, signature_of, trained

pytestmark = [
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="segments are for XLA's CPU compiler"
    ),
    pytest.mark.usefixtures("by_estimates"),
]

NAMES = ["cnn", "mlp", "gpt"]


@pytest.fixture(autouse=True)
def segments_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "1")


def planned(name: str, fraction: float) -> Program:
    """A training step's plan at a part of its memory, as a program."""
    training = getattr(models, name)()
    step = coop_jax.run(training.step, budget=fraction, donate_argnums=0, fusion=True)
    step(jax.tree.map(jnp.array, training.init), training.batch(0))
    signature = signature_of(step)
    assert signature.program is not None
    (known,) = signature.plans.values()
    return unrolled(signature.program, known.plan).program


def storages_of(program: Program, values: Any) -> set[int]:
    return {program.values[v].storage for v in values}


def segments_in(program: Program) -> list[tuple[int, Operation, Segment]]:
    return [
        (number, op, op.kernel)
        for number, op in enumerate(program.operations)
        if isinstance(op.kernel, Segment)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_only_what_nobody_needs_any_more_is_written_over(name: str, seed: int) -> None:
    program, rng = planned(name, 0.6), random.Random(seed)
    composer = Composer(program, kernels.cache_for(jax.devices()[0]), in_pool=True, in_order=True)
    kept = storages_of(program, (*program.inputs, *program.outputs))
    kept |= storages_of(program, (v for v, _ in program.constants))
    count, given_up = len(program.operations), 0
    for _ in range(12):
        first = rng.randrange(count - 2)
        numbers = list(range(first, min(count, first + rng.choice([2, 9, 40]))))
        made = composer.composed(numbers, 0)
        kernel = made.kernel
        assert isinstance(kernel, Segment)
        whole = composer.with_scratch(made)
        assert len(whole.results) == len(whole.in_place) == len(kernel.out_avals)
        over = [k for k in whole.in_place if k >= 0]
        assert len(over) == len(set(over))  # no operand is two results
        before = storages_of(program, (v for op in program.operations[:first] for v in op.results))
        for k in kernel.given_up:
            storage = program.values[whole.operands[k]].storage
            assert storage in before - kept
            assert program.storages[storage].nbytes >= constants.TUNED.min_block_bytes
            for op in program.operations[numbers[-1] + 1 :]:
                assert storage not in storages_of(program, (*op.operands, *op.results))
            given_up += 1
        for v, operand, aval in zip(whole.results, whole.in_place, kernel.out_avals, strict=True):
            if operand >= 0:  # in place means the same shape and dtype
                assert (aval.shape, aval.dtype) == (
                    kernel.in_avals[operand].shape,
                    kernel.in_avals[operand].dtype,
                )
            if v not in made.results:
                assert v >= len(program.values)  # scratch is nobody's
    assert given_up > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_segment_adds_no_more_than_there_is_room_for(name: str) -> None:
    program = planned(name, 0.6)
    cache = kernels.cache_for(jax.devices()[0])
    room = room_before(program, max(program.storages[0].nbytes, _most_alive(program)))
    made = partition.segmented(program, cache, float("inf"), room, in_pool=True)
    assert len(made.operations) < len(program.operations)
    number = 0
    for op in made.operations:
        if isinstance(op.kernel, Segment):
            added = {
                made.values[v].storage
                for v, operand in zip(op.results, op.in_place, strict=True)
                if operand < 0
            }
            if len(op.kernel.members) > 1:
                assert sum(made.storages[s].nbytes for s in added) <= room[number]
            number += len(op.kernel.members)
        else:
            number += 1
    assert number == len(program.operations)
    used = [v for op in made.operations for v in op.results]
    assert sorted(v for v in used if v >= len(program.values)) == list(
        range(len(program.values), len(made.values))
    )


def _most_alive(program: Program) -> int:
    return -min(room_before(program, 0)) + max(s.nbytes for s in program.storages)


@pytest.mark.unless_forced("no segments are made then")
@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt", marks=pytest.mark.slow)])
def test_training_works_in_what_it_gives_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = getattr(models, name)()
    got, step = trained(training, 9, budget=0.6)
    form = signature_of(step).tier.segmented
    assert form is not None
    assert form.program is not None
    assert form.unrolled is not None
    assert form.workspaces is not None
    now, before = launches(step)
    assert now <= before / 4
    assert now == 1 or any(kernel.given_up for _, _, kernel in segments_in(form.program))
    assert max(form.workspaces) < 1 << 18  # XLA works in the pool
    assert all(kernel.in_order for _, _, kernel in segments_in(form.program))
    stats = step.runtime.stats()
    assert stats.rematerialisations > 0
    assert stats.peak_bytes <= stats.budget_bytes
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")
    expected, _ = trained(training, 9)
    assert_same_bits(got, expected)


X = jax.ShapeDtypeStruct((64, 256), jnp.float32)
W = jax.ShapeDtypeStruct((256, 256), jnp.float32)


def twice(cache: kernels.KernelCache) -> Program:
    """`tanh(x @ w) @ w`, and all of it again at the end."""
    program = coop_jax.trace_program(lambda x, w: jnp.tanh(x @ w) @ w, X, W, fusion=False).program
    count, storages = len(program.values), list(program.storages)
    number = {v: v for v in (*program.inputs, *(v for v, _ in program.constants))}
    values, again = list(program.values), []
    for op in program.operations:
        for v in op.results:
            number[v] = len(values)
            values.append(Value(len(storages), program.values[v].aval))
            storages.append(
                Storage(program.storages[program.values[v].storage].nbytes, False, (number[v],))
            )
        again.append(
            dataclasses.replace(
                op,
                operands=tuple(number[v] for v in op.operands),
                results=tuple(number[v] for v in op.results),
            )
        )
    operations = (*program.operations, *again)
    outputs = (*program.outputs, *(number[v] for v in program.outputs))
    assert len(values) > count
    made = dataclasses.replace(
        program,
        values=tuple(values),
        storages=tuple(storages),
        operations=operations,
        outputs=outputs,
        releases=releases_of(operations, values, program.inputs, outputs, program.donated),
    )
    for op in operations:
        executable_cache.executable(
            op.kernel, (executables.SLOT,) * len(op.results), cache.device, cache
        )
    return made


def test_what_is_computed_again_is_computed_again() -> None:
    cache = kernels.cache_for(jax.devices()[0])
    program = twice(cache)
    room = [float(1 << 30)] * len(program.operations)
    made = partition.segmented(program, cache, float("inf"), room, in_pool=True)
    (op,) = made.operations
    executable = executable_cache.executable(
        op.kernel, (executables.OUTSIDE,) * len(op.results), cache.device, cache
    )
    module = executable.module()
    assert module is not None
    assert len(module.calls(calls.ATTRIBUTE)) == len(program.operations)
    assert isolation_check.differing([executable]) == []
    x, w = (jax.random.normal(jax.random.key(k), a.shape) / 8 for k, a in enumerate((X, W)))
    first, second, *_ = executable.call(x, w)
    assert_same_bits(first, np.array(second))


def many_products(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each summed up: all could be computed before the first sum."""
    total = jnp.zeros(())
    for k in range(12):
        total = total + jnp.tanh((x + k) @ w).sum()
    return total


def test_our_order_is_kept_where_another_takes_more_memory() -> None:
    cache = kernels.cache_for(jax.devices()[0])
    program = coop_jax.trace_program(many_products, X, W, fusion=False).program
    for op in program.operations:
        executable_cache.executable(
            op.kernel, (executables.OUTSIDE,) * len(op.results), cache.device, cache
        )
    numbers = range(len(program.operations))

    def needed(*, in_order: bool) -> int:
        composer = Composer(program, cache, in_pool=False, in_order=in_order)
        kernel = composer.composed(numbers, 0).kernel
        modes = (executables.OUTSIDE,) * len(kernel.out_avals)
        return int(executable_cache.executable(kernel, modes, cache.device, cache).workspace_bytes)

    nbytes = 4 * X.size
    assert needed(in_order=True) <= 5 * nbytes < 12 * nbytes <= needed(in_order=False)


def test_neighbours_that_keep_their_order_may_run_at_one_time() -> None:
    program = coop_jax.trace_program(many_products, X, W, fusion=False).program
    cache, count = kernels.cache_for(jax.devices()[0]), len(program.operations)
    composer = Composer(program, cache, in_pool=False, in_order=True)
    kernel = composer.composed(range(count), 0).kernel
    assert isinstance(kernel, Segment)
    jaxpr = jax.make_jaxpr(kernel)(*kernel.in_avals).jaxpr
    needs: dict[Any, set[int]] = {}  # the members that a value is made after
    members: list[set[int]] = []
    for eqn in jaxpr.eqns:
        after = set().union(*(needs.get(v, set()) for v in eqn.invars if isinstance(v, jaxprs.Var)))
        if eqn.primitive.name not in ("reshape", "slice"):
            members.append(after)
            after = after | {len(members) - 1}
        needs.update((v, after) for v in eqn.outvars)
    assert len(members) == count
    apart = [n for n in range(1, count) if n - 1 not in members[n]]
    assert apart  # a product and the sum of the one before, say
    assert all(n - 3 in members[n] for n in range(3, count))


@pytest.mark.unless_forced("no segments are made then")
def test_layer_norms_are_members_like_others() -> None:
    """XLA lays their dimensions of size 1 out otherwise within a segment: the same in memory."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(2):
            mean = x.mean(-1, keepdims=True)
            variance = ((x - mean) ** 2).mean(-1, keepdims=True)
            x = (x - mean) * jax.lax.rsqrt(jnp.maximum(variance, 0.0) + 1e-6) @ w
        return x

    step = coop_jax.run(fn, fusion=True)
    x = jax.random.normal(jax.random.key(0), (8, 64, 128))
    for _ in range(6):
        step(x, jnp.eye(128) / 2)
    assert launches(step)[0] == 1


def test_what_libraries_take_needs_room_unless_that_is_kept_free() -> None:
    program, cache = planned("cnn", 0.9), kernels.cache_for(jax.devices()[0])
    needed = max(segment.library_bytes(op.kernel) for op in program.operations)
    assert needed >= constants.TUNED.min_block_bytes
    room = room_before(program, _most_alive(program) + needed // 2)
    free = partition.segmented(program, cache, float("inf"), room, reserved_bytes=needed)
    tight = partition.segmented(program, cache, float("inf"), room)
    assert len(free.operations) < len(tight.operations) < len(program.operations)
    for made in (free, tight):
        expected = segment.temporary_bytes(made)
        for number, _, kernel in segments_in(made):
            if not executable_cache.executables(kernel):
                beside = max(segment.library_bytes(m.kernel) for m in kernel.members)
                assert expected[number] >= beside == segment.library_bytes(kernel)
    number = 0
    for op in tight.operations:
        members = op.kernel.members if isinstance(op.kernel, Segment) else (op,)
        if len(members) > 1:
            assert isinstance(op.kernel, Segment)
            assert sum(op.kernel.block_bytes) + segment.library_bytes(op.kernel) <= room[number]
        number += len(members)


@pytest.mark.parametrize("in_pool", [False, True])
def test_what_no_cache_holds_is_computed_in_our_order(
    monkeypatch: pytest.MonkeyPatch, in_pool: bool
) -> None:
    program, cache = planned("mlp", 1.0), kernels.cache_for(jax.devices()[0])

    def in_order() -> list[bool]:
        made = partition.segmented(program, cache, float("inf"), in_pool=in_pool)
        return [op.kernel.in_order for op in made.operations if isinstance(op.kernel, Segment)]

    assert not any(in_order())
    (most,) = segment.temporary_bytes(partition.segmented(program, cache, float("inf")))
    tuned = dataclasses.replace(constants.TUNED, in_order_min_bytes=most)
    monkeypatch.setattr(constants, "TUNED", tuned)
    assert in_order() == [True]
    tuned = dataclasses.replace(constants.TUNED, in_order_min_bytes=most + 1)
    monkeypatch.setattr(constants, "TUNED", tuned)
    assert in_order() == [False]
