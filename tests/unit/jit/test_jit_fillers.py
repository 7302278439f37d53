"""What reads nothing, such as zeros, is made where it is read: no barrier or scan holds it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.compat import jaxprs

LAYERS, WIDTH, ROWS = 6, 64, 512


def masked(x: Any, w: Any) -> Any:
    x = jnp.tanh(x @ w)
    return jnp.where(x > 0.5, x, 0.0)


def unrolled(params: Any, x: Any) -> Any:
    for k in range(LAYERS):
        x = masked(x, params[k])
    return (x**2).mean()


def scanned(params: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda x, w: (masked(x, w), None), x, params)[0] ** 2).mean()


def held_fillers(jaxpr: Any) -> list[str]:
    """Arrays filled with a literal that a barrier joins or a scan reads whole."""
    filled, found = set(), []
    for e in jaxpr.eqns:
        if e.primitive.name == "broadcast_in_dim" and type(e.invars[0]).__name__ == "Literal":
            filled.update(v for v in e.outvars if v.aval.size >= ROWS * WIDTH)
        if e.primitive.name in ("optimization_barrier", "scan"):
            carried = e.params.get("num_consts", len(e.invars))
            found += [
                str(v.aval) for v in e.invars[:carried] if not hasattr(v, "val") and v in filled
            ]
        for inner in jaxprs.nested_jaxprs(e.params):
            found += held_fillers(inner)
    return found


@pytest.mark.parametrize("loss", [unrolled, scanned])
def test_no_barrier_holds_what_reads_nothing(loss: Any) -> None:
    args = jnp.ones((LAYERS, WIDTH, WIDTH)) * 0.1, jnp.ones((ROWS, WIDTH))
    step = coop_jax.jit(jax.grad(loss), budget=0.7)
    assert step.plan(*args).attempts
    assert held_fillers(step.trace(*args).jaxpr.jaxpr) == []
    np.testing.assert_allclose(step(*args), jax.grad(loss)(*args), rtol=1e-5, atol=1e-7)
