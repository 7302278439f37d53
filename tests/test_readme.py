"""The Python of the README runs as it stands, given the model and data it takes for granted."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(lambda w: (jnp.tanh(batch @ w) ** 2).mean())(params)
    return params - 0.1 * grads, opt_state + 1, loss


def eval_step(params: Any, batch: Any) -> Any:
    return (batch @ params).mean()


def assumed() -> dict[str, Any]:
    """What a reader has: a train step, its arguments, batches."""
    params = 0.1 * jnp.eye(8)
    batch = jnp.arange(32.0).reshape(4, 8)
    return {
        "__name__": "readme",
        "train_step": train_step,
        "eval_step": eval_step,
        "loss": eval_step,
        "layer": lambda params, h: jnp.tanh(h @ params),
        "params": params,
        "opt_state": jnp.zeros(()),
        "batch": batch,
        "batches": [batch, batch],
    }


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    """The blocks are read from top to bottom, so later ones see the names of earlier ones."""
    import coop_jax

    return {**assumed(), "jax": jax, "coop_jax": coop_jax}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_readme_runs(number: int, namespace: dict[str, Any]) -> None:
    namespace.update(assumed())
    exec(compile(BLOCKS[number], f"README.md, Python block {number}", "exec"), namespace)
    if "per_example" in BLOCKS[number]:
        params, batch = namespace["params"], namespace["batch"]
        _, grads = namespace["loss_and_grad"](params, batch)
        each = namespace["per_example"](params, batch)
        assert each.shape == (4, 8, 8)
        assert jnp.allclose(each.mean(0), grads)
    elif "remat_eager" in BLOCKS[number]:
        value, grads = namespace["step"](namespace["params"], namespace["batch"])
        assert value > 0
        assert grads.shape == (8, 8)
    elif "for batch in batches" in BLOCKS[number]:
        assert float(namespace["opt_state"]) == 2
        assert float(namespace["loss"]) > 0


def test_the_readme_shows_both_front_ends() -> None:
    assert any("coop_jax.run" in b for b in BLOCKS)
    assert any("coop_jax.remat_eager" in b for b in BLOCKS)
