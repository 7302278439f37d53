"""Without a budget programs need no more memory than under `jax.jit`."""

from __future__ import annotations

import jax
import pytest
from loops import Loop, loops

import coop_jax

LOOPS = loops(steps=12, width=64)

# Of what `jax.jit` needs; XLA's temporary memory for single operations comes to it.
MOST = 1.1


def needed_by_jit(loop: Loop) -> int:
    """Arguments, results that are no arguments, temporary memory."""
    jitted = jax.jit(loop.fn, donate_argnums=loop.donate)
    found = jitted.lower(*loop.args).compile().memory_analysis()
    kept = found.output_size_in_bytes - found.alias_size_in_bytes
    return int(found.argument_size_in_bytes + kept + found.temp_size_in_bytes)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "rnn under vmap", "microbatches"])
def test_gradients_are_summed_as_they_are_made(name: str) -> None:
    loop = LOOPS[name]
    traced = coop_jax.trace_program(loop.fn, *loop.args, donate_argnums=loop.donate, fusion=True)
    peak = coop_jax.simulate(traced, budget=None).peak_bytes
    assert peak <= MOST * needed_by_jit(loop), peak / needed_by_jit(loop)
