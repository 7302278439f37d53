"""Train steps in segments: what runs, in how many launches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import coop_jax
from coop_jax._src.run.specialization import Signature
from tests.testing import models


def signature_of(budgeted: Any) -> Signature:
    (signature,) = budgeted._signatures.values()
    return signature  # type: ignore[no-any-return]


def launches(budgeted: Any) -> tuple[int, int]:
    """How many launches a call has, and how many it had at first."""
    signature = signature_of(budgeted)
    assert signature.program is not None
    form = signature.tier.segmented
    program = signature.program if form is None else form.program
    assert program is not None
    return len(program.operations), len(signature.program.operations)


def trained(program: models.TrainingProgram, steps: int, **kwargs: Any) -> tuple[Any, Any]:
    """What is left after so many steps, and the function that made them."""
    step = coop_jax.run(program.step, donate_argnums=0, fusion=True, **kwargs)
    state: Any = jax.tree.map(jnp.array, program.init)
    losses = []
    for k in range(steps):
        state, loss = step(state, program.batch(k))
        losses.append(loss)
    return (state, losses), step
