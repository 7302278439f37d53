"""Random programs give the same bits at every budget, policy and switch; nothing is left behind.

CI runs the first 12, the nightly form 200 others; `--programs` and `--first-seed` choose. A failure
names the command that runs its seed alone.
"""

from __future__ import annotations

import collections
import gc
import os
import random
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from programs import RandomProgram, random_program

import coop_jax
from tests.testing.comparison import bits_of

# What happened over all programs: a budget that evicts nothing proves nothing.
tally: collections.Counter[str] = collections.Counter()
FIT_ATTEMPTS = 24  # up to 1.5 times what it takes without a budget: pieces, reservations


def random_policy(draw: random.Random) -> coop_jax.Policy:
    name = draw.choice(["coop", "coop", "dtr", "dte", "lookahead"])
    if draw.random() < 0.4:
        return coop_jax.Policy(name, evict_always=draw.random() < 0.3)
    return coop_jax.Policy(
        name,
        draw.choice(["union_find", "exact", "ancestors", "awaited"]),
        sliding_window=draw.random() < 0.5 if name in ("coop", "lookahead") else None,
        cheap_partitioning=draw.random() < 0.5,
        in_place=draw.random() < 0.5,
        evict_always=draw.random() < 0.15,
        keep_demanded=draw.random() < 0.8,
        unheld_first=draw.random() < 0.8,
    )


class Case:
    """A program in one front end: what it gives without a budget, and in one."""

    def __init__(self, program: RandomProgram, front_end: str, draw: random.Random):
        self.program, self.front_end, self.draw = program, front_end, draw
        # What is fused depends on what is donated, so that the last bits do.
        self.donated = front_end == "fused run" and draw.random() < 0.5
        free = coop_jax.Runtime(None)
        values = self.call(free, donate=self.donated)
        self.expected, self.tree = bits_of(values), jax.tree_util.tree_structure(values)
        self.values = jax.tree.map(_host, values)
        del values
        self.peak = free.stats().peak_bytes
        assert left_in(free) == []

    def call(self, runtime: coop_jax.Runtime, *, donate: bool) -> list[Any]:
        program = self.program
        if self.front_end == "remat_eager":
            return coop_jax.remat_eager(program.fn, runtime=runtime)(*program.args)
        positions = program.donate if donate else ()
        fusion = self.front_end == "fused run"
        step = coop_jax.run(program.fn, donate_argnums=positions, runtime=runtime, fusion=fusion)
        args = [jax.device_put(x) if i in positions else x for i, x in enumerate(program.args)]
        return step(*args)

    def check_segments(self) -> None:
        """The sixth call of a function, whose operations run in segments, gives the same."""
        runtime = coop_jax.Runtime(None)
        program, donated = self.program, self.program.donate if self.donated else ()
        step = coop_jax.run(program.fn, donate_argnums=donated, runtime=runtime, fusion=True)
        with mock.patch.dict(os.environ, COOP_JAX_SEGMENTS="1"):
            for _ in range(6):
                args = [
                    jax.device_put(x) if i in donated else x for i, x in enumerate(program.args)
                ]
                found = step(*args)
        same(found, self.expected, self.tree, "in segments")
        tally["in segments"] += any(s.tier.segmented is not None for s in step._signatures.values())

    def check_learning(self) -> None:
        """Calls that know what the ones before did, one of which keeps its results for a while."""
        policy = coop_jax.Policy("lookahead", search_effort=20_000)
        budget = int(self.peak * self.draw.uniform(0.4, 1.0))
        program, kept = self.program, None
        make = coop_jax.remat_eager if self.front_end == "remat_eager" else coop_jax.run
        for _ in range(FIT_ATTEMPTS):
            runtime = coop_jax.Runtime(budget, policy)
            step = make(program.fn, runtime=runtime)
            try:
                step(*program.args)
                break
            except coop_jax.BudgetExceededError:
                budget += self.peak // 20
        else:
            pytest.fail(f"{budget} bytes do not suffice to begin with, {self.peak} did")
        # Results that are kept take room, which is then not there for the next call.
        keeps = self.draw.random() < 0.3
        budget += 2 * sum(x.nbytes for x in self.values) + (1 << 14) if keeps else 0
        runtime = coop_jax.Runtime(budget, policy)
        step = make(program.fn, runtime=runtime)
        for number in range(6):
            context = f"{self.front_end}, call {number} that learns, budget {budget}"
            try:
                found = step(*program.args)
            except coop_jax.BudgetExceededError:
                assert kept is not None, context  # else it fits, as the first call did
                kept = None
                continue
            same(found, self.expected, self.tree, context)
            kept = found if keeps and number == 2 else None
            del found
        assert kept is None
        assert runtime.stats().peak_bytes <= budget
        assert left_in(runtime) == []
        tally["learning runs"] += 1
        tally["of them evicting"] += runtime.stats().rematerialisations > 0

    def check_budgets(self) -> None:
        """At a random budget, or the least at which it can do."""
        policy, donate = random_policy(self.draw), self.draw.random() < 0.5
        if self.front_end == "fused run":
            donate = self.donated
        verify = self.draw.random() < 0.3
        budget = int(self.peak * self.draw.uniform(0.3, 1.0))
        for attempt in range(FIT_ATTEMPTS):
            runtime = coop_jax.Runtime(budget, policy, verify=verify)
            known = None
            try:
                found = self.call(runtime, donate=donate)
                break
            except coop_jax.BudgetExceededError as error:
                known = error.report.smallest_budget_bytes
            tally["refused"] += attempt == 0
            assert left_in(runtime) == [], "a refused call left something in the pool"
            budget = max(known or 0, budget + self.peak // 20)
        else:
            pytest.fail(f"{budget} bytes do not suffice, {self.peak} did: {policy}, {donate=}")
        context = f"{self.front_end}, {policy}, budget {budget} of {self.peak}, {donate=}"
        same(found, self.expected, self.tree, context)
        del found
        if self.front_end != "fused run":  # what goes through goes through again
            same(self.call(runtime, donate=donate), self.expected, self.tree, context)
        stats = runtime.stats()
        assert stats.peak_bytes <= budget, context
        assert left_in(runtime) == [], context
        tally["runs"] += 1
        tally["evicting runs"] += stats.rematerialisations > 0
        self.program_evicted = stats.rematerialisations > 0


def same(found: Any, expected: list[Any], tree: Any, context: str) -> None:
    assert jax.tree_util.tree_structure(found) == tree, context
    for number, (a, b) in enumerate(zip(bits_of(found), expected, strict=True)):
        assert a[:2] == b[:2], f"{context}: output {number} is {a[:2]}, expected {b[:2]}"
        assert a[2] == b[2], f"{context}: output {number} of {a[:2]}: bits differ"


def left_in(runtime: coop_jax.Runtime) -> list[tuple[int, int]]:
    gc.collect(0)
    pool = runtime.memory().pool
    pool.validate()
    return list(pool.live_blocks())


def _host(x: Any) -> np.ndarray[Any, Any]:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.array(x)


def check_meaning(program: RandomProgram, values: list[Any]) -> None:
    """The values are those of `jax.jit`: integers exactly."""
    # Quick to compile, and every primitive means what it says.
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    compiled = jax.jit(program.fn).lower(*program.args).compile(compiler_options=options)
    try:
        found = compiled(*program.args)
    except jax.errors.JaxRuntimeError:
        # XLA refuses a layout of its own choice (that of a transposed FFT): one by one, then.
        found = program.fn(*program.args)
    expected = [_host(x) for x in found]
    for number, (a, b) in enumerate(zip(values, expected, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"output {number}"
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b, err_msg=f"output {number}")
        else:
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                a.astype(wide), b.astype(wide), rtol=0.05, atol=0.05, err_msg=f"output {number}"
            )


# JAX takes an aligned array of NumPy as it is: passed twice, it is one piece of memory.
@pytest.mark.filterwarnings("ignore:.*cannot be updated in place:UserWarning")
def test_values_do_not_depend_on_the_budget(program_seed: int) -> None:
    seed = program_seed
    try:
        check_seed(seed)
    except BaseException as error:
        error.add_note(
            f"seed {seed}; alone: python -m pytest tests/property --programs 1 --first-seed {seed}"
        )
        raise


@pytest.mark.parametrize("seed", [310092])
def test_what_was_found(seed: int) -> None:
    """Programs with which something was wrong.

    310092: a call that went by what was known of the last one found no room where that had.
    """
    check_seed(seed)


def check_seed(seed: int) -> None:
    program, draw = random_program(seed), random.Random(~seed)
    evicted = False
    for front_end, rounds in (("run", 2), ("fused run", 1), ("remat_eager", 1)):
        if front_end == "remat_eager" and seed % 2:
            continue  # it compiles each primitive alone, which takes most of the time
        case = Case(program, front_end, draw)
        if not program.wild and seed % 2 == 0:
            check_meaning(program, case.values)
        if front_end == "fused run" and seed % 3 == 0:
            case.check_segments()
        if front_end == "remat_eager" or (front_end == "run" and seed % 4 == 1):
            case.check_learning()
        for _ in range(rounds):
            case.check_budgets()
            evicted = evicted or case.program_evicted
    tally["programs"] += 1
    tally["evicting programs"] += evicted


def test_most_programs_evicted() -> None:
    """Runs after the programs of this process; needs enough of them to say something."""
    if tally["programs"] < 20:
        pytest.skip("too few programs ran here")
    print(dict(tally))
    assert tally["evicting programs"] > tally["programs"] / 2
    assert tally["evicting runs"] > tally["runs"] / 2
    assert tally["in segments"] >= tally["of two calls"] / 2
