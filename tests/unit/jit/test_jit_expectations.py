"""What is expected of `jax.jit`'s program decides only whether it is compiled to know better."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._src.compat import compiled_memory
from coop_jax._src.jit import programs
from coop_jax._src.jit.program_planner import ProgramPlanner


def test_where_the_program_of_jit_fits_after_all_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_fits(*args: Any) -> Any:
        return dataclasses.replace(fit(*args), smallest_bytes=1 << 40)

    fit = programs.fit
    monkeypatch.setattr(programs, "fit", nothing_fits)
    monkeypatch.setattr(ProgramPlanner, "expected_bytes", lambda _: 1 << 40)
    x = jnp.ones((256, 256))
    needed = compiled_memory.needed_bytes(jax.jit(jnp.sin).lower(x).compile())
    planned = coop_jax.jit(jnp.sin, budget=needed)
    assert planned.plan(x).needed_bytes == planned.plan(x).jit_bytes == needed
    assert not planned.plan(x).attempts
    refused = coop_jax.jit(jnp.sin, budget=needed - 1)
    with pytest.raises(coop_jax.BudgetExceededError) as info:
        refused(x)
    assert isinstance(info.value.report, coop_jax.CompiledBudgetReport)
    assert info.value.report.jit_bytes == info.value.report.smallest_budget_bytes == needed
