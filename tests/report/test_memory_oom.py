"""`coop_jax.explain_oom`: XLA's own error names the program, its lines, and who holds the rest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import coop_jax

HUGE = 1 << 44  # items: more than any address space


def explained(error: BaseException) -> str:
    return "\n".join(note for note in getattr(error, "__notes__", ()) if "coop_jax" in note)


def test_the_program_that_asked_for_too_much_is_shown() -> None:
    def too_large(x: jax.Array, steps: jax.Array) -> jax.Array:
        filled = jnp.full((HUGE,), 2.0)
        return jax.lax.fori_loop(0, steps, lambda _, y: y * x, filled)[0]

    other = jax.block_until_ready(jax.jit(jnp.tanh)(jnp.ones(1 << 20)))
    x, step = jnp.ones(()), jax.jit(too_large)
    oom = coop_jax.explain_oom()
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as raised, oom:
        jax.block_until_ready(step(x, jnp.int32(3)))
    text = explained(raised.value)
    assert "The program that asked for it:\ntoo_large needs " in text
    assert "test_memory_oom.py:" in text.splitlines()[2]
    assert oom.report is not None
    assert oom.report.by_kind["temporaries"] >= 4 * HUGE
    assert sum(b.nbytes for b in oom.report.buffers) == oom.report.peak_bytes
    assert "other" in {held.variable for held in oom.report.elsewhere}
    assert other.size


def test_results_that_are_too_large_are_shown() -> None:
    x, fill = jnp.ones(()), jax.jit(lambda x: jnp.full((HUGE,), 2.0) * x)
    with (
        pytest.raises(jax.errors.JaxRuntimeError) as raised,
        coop_jax.explain_oom() as oom,
    ):
        jax.block_until_ready(fill(x))
    assert "The program that asked for it" in explained(raised.value)
    assert oom.report is not None
    assert oom.report.by_kind["results"] == 4 * HUGE


def test_other_errors_go_on_as_they_are() -> None:
    with pytest.raises(ValueError, match="mine") as raised, coop_jax.explain_oom() as oom:
        raise ValueError("mine")
    assert explained(raised.value) == ""
    assert oom.report is None
