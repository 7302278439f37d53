"""A step that evicts and recomputes at little memory, and its timeline; the same for all tests."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

import coop_jax

WIDTH, LAYERS = 64, 6


def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A train step of some layers; the weights are donated."""

    def loss(weights: jax.Array) -> jax.Array:
        h = x
        for layer in range(LAYERS):
            h = jnp.tanh(h @ weights[layer])
        return (h**2).sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradients, value


SHAPES = (
    jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((512, WIDTH), jnp.float32),
)


@functools.lru_cache
def simulated(budget: float | None = 0.6) -> coop_jax.Simulation:
    """The step under a share of what it needs."""
    return coop_jax.simulate(step, *SHAPES, budget=budget, donate_argnums=(0,))


@functools.lru_cache
def timeline(budget: float | None = 0.6) -> coop_jax.Timeline:
    """Of the same."""
    return coop_jax.timeline(simulated(budget))
