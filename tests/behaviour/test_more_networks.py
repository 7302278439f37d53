"""The benchmarks' networks in plain JAX take the same step wherever their checkpoints are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tests.benchmarks import more_networks
from tests.benchmarks.plain_jax import TrainingProgram

_TINY: dict[str, Callable[..., TrainingProgram]] = {
    "scanned_gpt": functools.partial(more_networks.scanned_gpt, layers=4, width=16, length=8),
    "vit": functools.partial(more_networks.vit, layers=2, width=16, batch=2, pixels=16),
    "diffusion": functools.partial(more_networks.diffusion, channels=4, batch=2, pixels=8, depth=1),
    "mamba": functools.partial(more_networks.mamba, layers=2, width=8, length=8),
}


def _step(program: TrainingProgram) -> Any:
    # Runs once: optimizing it takes longer than it does.
    options = {"xla_backend_optimization_level": 0}
    step = jax.jit(program.step, compiler_options=options)
    return jax.device_get(step(program.state, program.batches[0]))


def test_every_network_has_tiny_sizes() -> None:
    assert list(_TINY) == list(more_networks.NETWORKS)


@pytest.mark.parametrize("name", list(_TINY))
def test_a_step_is_the_same_with_checkpoints(name: str) -> None:
    (params, _), loss = _step(_TINY[name]("none"))
    assert np.isfinite(loss)
    for remat in ("per-layer", "sqrt"):
        program = _TINY[name](remat)
        jaxpr = jax.make_jaxpr(program.step)(program.state, program.batches[0])
        assert "remat" in str(jaxpr) or "checkpoint" in str(jaxpr)
        (others, _), other = _step(program)
        np.testing.assert_allclose(other, loss, rtol=1e-5)
        # Adam's first step is one of the gradient's sign: 1e-3 each way.
        same = [
            np.isclose(a, b, atol=1e-4).mean()
            for a, b in zip(jax.tree.leaves(others), jax.tree.leaves(params), strict=True)
        ]
        assert min(same) > 0.95
