"""Random programs under `coop_jax.jit`: values as of `jax.jit` up to rounding, memory in budget.

As `test_programs` for the seeds; programs in which floats decide are left out. Most random programs
are refused, since XLA fuses nearly all of them: that the budget which the error names will do is
tested then. Training loops of large batches are planned.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import random_program
from training_loops import random_loop

import coop_jax

# What happened over all programs: a budget that every program meets anyway proves nothing.
tally: collections.Counter[str] = collections.Counter()


def _host(x: Any) -> np.ndarray[Any, Any]:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.array(x)


def _budget(step: Any, args: Sequence[Any], draw: random.Random) -> int:
    """A budget that `jax.jit` does not meet: less temporary memory than it needs."""
    memory = step.lower(*args).compile().memory_analysis()
    there = memory.argument_size_in_bytes + memory.output_size_in_bytes
    there -= memory.alias_size_in_bytes
    return int(there + draw.uniform(0.2, 0.95) * memory.temp_size_in_bytes)


def _planned(fn: Any, budget: int, donated: Sequence[int], args: Sequence[Any]) -> Any:
    """The function within the budget, or within the one that the refusal names."""
    step = coop_jax.jit(fn, budget=budget, donate_argnums=donated)
    try:
        report = step.plan(*args)
    except coop_jax.BudgetExceededError as error:
        tally["refused"] += 1
        budget = error.report.smallest_budget_bytes
        step = coop_jax.jit(fn, budget=budget, donate_argnums=donated)
        report = step.plan(*args)
    assert report.needed_bytes <= budget == report.budget_bytes
    tally["planned"] += bool(report.attempts)
    return step


def _check_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for number, (x, y) in enumerate(zip(*map(jax.tree.leaves, (found, expected)), strict=True)):
        a, b = _host(x), _host(y)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"output {number}"
        weak = [getattr(each, "weak_type", False) for each in (x, y)]
        assert weak[0] == weak[1], f"output {number}"
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b, err_msg=f"output {number}")
        else:
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                a.astype(wide), b.astype(wide), rtol=0.05, atol=0.05, err_msg=f"output {number}"
            )


def check_program(seed: int) -> None:
    program, draw = random_program(seed), random.Random(~seed)
    if program.wild:
        return
    donated = program.donate if draw.random() < 0.5 else ()
    plain = jax.jit(program.fn, donate_argnums=donated)

    def arguments() -> list[Any]:
        return [jax.device_put(x) for x in program.args]

    try:
        expected = plain(*arguments())
    except jax.errors.JaxRuntimeError as error:
        if "fft_thunk.cc" not in str(error):
            raise
        # XLA's CPU compiler gives Fourier transforms layouts that they cannot run with.
        tally["fail under jax.jit"] += 1
        return
    budget = _budget(plain, arguments(), draw)
    step = _planned(program.fn, budget, donated, arguments())
    tally["programs"] += 1
    _check_same(step(*arguments()), expected)


def check_loop(seed: int) -> None:
    loop, draw = random_loop(seed, rows=512), random.Random(~seed)
    plain = jax.jit(loop.step, donate_argnums=0)
    budget = _budget(plain, (loop.state(), loop.batch(0)), draw)
    step = _planned(loop.step, budget, (0,), (loop.state(), loop.batch(0)))
    tally["loops"] += 1
    # Some of these loops are chaotic: one step from the same state each time, and none from where
    # rounding decides what a step gives, which other orders of the same operations show.
    unfused = jax.jit(loop.step, compiler_options={"xla_disable_hlo_passes": "fusion"})
    state = loop.state()
    for n in range(3):
        # Copies: what the step closes over is donated otherwise.
        found = step(jax.tree.map(jnp.copy, state), loop.batch(n))
        expected = plain(jax.tree.map(jnp.copy, state), loop.batch(n))
        if n and not _is_same(unfused(state, loop.batch(n)), expected):
            tally["chaotic loops"] += 1
            return
        _check_same(found, expected)
        state, _ = expected


def _is_same(found: Any, expected: Any) -> bool:
    try:
        _check_same(found, expected)
    except AssertionError:
        return False
    return True


# JAX says so of what cannot be donated; so it does under `jax.jit`.
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable:UserWarning")
@pytest.mark.parametrize("check", [check_program, check_loop])
def test_values_are_those_of_jit_and_memory_is_within_the_budget(
    check: Callable[[int], None], program_seed: int
) -> None:
    try:
        check(program_seed)
    except BaseException as error:
        error.add_note(
            f"seed {program_seed}; alone: python -m pytest tests/property/test_jit_programs.py"
            f" --programs 1 --first-seed {program_seed}"
        )
        raise


def test_most_loops_were_planned() -> None:
    if tally["loops"] >= 10:
        assert tally["planned"] > tally["loops"] / 2
        assert tally["chaotic loops"] < tally["loops"] / 2
