"""ZeRO stage 2: one worker trains as if it were not there; of four, the first does its share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest

import coop_jax
from examples.paper.networks import NETWORKS, Network, State, zero
from examples.paper.networks.base import Setting
from examples.paper.networks.gpt import GPT
from examples.paper.networks.tasks import CausalLM

ADAM = optax.adam(3e-3)
TASK = CausalLM(batch=2, length=16, vocabulary=33)


def model(remat: Any) -> GPT:
    """Some of its leaves have sizes that three and four workers do not divide."""
    return GPT(2, 32, 2, 16, vocabulary=33, remat=remat)


def one_step(setting: Setting) -> tuple[State, State, jax.Array]:
    """The first state, the one after a step, and the loss."""
    network = Network(name="", title="", source="", settings={"small": setting})
    state = network.init("small")
    return state, *jax.jit(network.make_step("small").fn)(state, TASK.sample(0))


def assert_close(found: Any, wanted: Any) -> None:
    """Up to what another fusion of the same arithmetic changes."""
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_one_worker_makes_an_ordinary_step() -> None:
    _, wanted, wanted_loss = one_step(Setting(model, TASK, ADAM))
    _, found, loss = one_step(zero.setting(model, TASK, ADAM, workers=1))
    assert loss == wanted_loss
    jax.tree.map(assert_close, found.params, wanted.params)
    jax.tree.map(
        lambda a, b: assert_close(a, b.reshape(a.shape)), found.optimizer, wanted.optimizer
    )


@pytest.mark.parametrize("workers", [3, 4])
def test_a_worker_updates_its_share_and_nothing_else(workers: int) -> None:
    first, wanted, wanted_loss = one_step(Setting(model, TASK, ADAM))
    _, found, loss = one_step(zero.setting(model, TASK, ADAM, workers))
    assert loss == wanted_loss
    leaves = zip(*(jax.tree.leaves(s.params) for s in (found, wanted, first)), strict=True)
    for new, whole, old in leaves:
        share = -(-new.size // workers)
        new, whole, old = (np.ravel(x) for x in (new, whole, old))
        assert_close(new[:share], whole[:share])
        assert new[share:].tobytes() == old[share:].tobytes()
        assert (new[:share] != old[:share]).any()
    moments = jax.tree.leaves(found.optimizer)
    sizes = jax.tree.leaves(wanted.optimizer)
    for moment, whole in zip(moments, sizes, strict=True):
        assert moment.size == -(-whole.size // workers)


def test_parameters_are_held_once_and_gradients_as_shares() -> None:
    """With per-layer checkpoints little else is held: seen at the size of the paper."""
    step = NETWORKS["gpt3"].make_step("paper", "per-layer")
    simulation = coop_jax.simulate(
        step.fn, *step.arguments, donate_argnums=0, device_profile="a100-80gb"
    )
    params = sum(4 * leaf.size for leaf in jax.tree.leaves(step.arguments[0].params))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(step.arguments[0]))
    assert state == pytest.approx(1.5 * params, rel=1e-3)  # two moments, a quarter of each
    # A quarter of the gradients, and 0.3 for activations: whole gradients would be 0.75 more.
    assert simulation.peak_bytes < state + (0.25 + 0.3) * params
    # Every parameter is written where it lies.
    program = coop_jax.trace_program(
        step.fn, *step.arguments, donate_argnums=0, fusion=False
    ).program
    updates = [op for op in program.operations if op.kernel.label == "dynamic_update_slice"]
    large = [op for op in updates if not program.storages[op_storage(program, op)].outside]
    assert len(large) > 32 * 8
    assert all(op.in_place == (0,) for op in large)


def op_storage(program: Any, operation: Any) -> int:
    """The storage of an operation's first result."""
    storage: int = program.values[operation.results[0]].storage
    return storage
