"""ZeRO stage 2 (Rajbhandari et al., 2020) as one of its workers sees it, without communication.

Every worker holds all parameters, and of gradients and optimizer state only its share: the first of
`workers` equal runs of each flattened leaf (this is the first worker; a leaf whose size they do not
divide is rounded up). A gradient is cut to its share as soon as the backward pass has it, and the
whole of it is dropped. The optimizer updates the share, which is written into the parameter where
that lies.

What is left out: the reduction of gradients over the workers, and gathering the others' shares of
the updated parameters. So with more than one worker this is a program for measuring memory and
time, and no training: the rest of each parameter stays as it was. With one worker it is an ordinary
train step with the same numbers.

How the cut comes early: gradients are taken of the shares, which the loss depends on through
`_attach(whole, share)`: forward that is the whole parameter, backward it hands the share its part
of the gradient. The modules of this file attach a parameter where they use it, so that the
cut happens where the backward pass makes the gradient, and not at its end. (The embedding is used
at both ends: its gradient, half a gigabyte, is whole from the one to the other.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.paper.networks.base import Batch, Setting, State, Task

_SHARES = "shares"


@jax.custom_vjp
def _attach(whole: jax.Array, share: jax.Array) -> jax.Array:
    """The whole parameter, whose gradient goes to the share of it."""
    return whole


def _attach_forward(whole: jax.Array, share: jax.Array) -> tuple[jax.Array, tuple[int, ...]]:
    return whole, share.shape


def _attach_backward(shape: tuple[int, ...], gradient: jax.Array) -> tuple[None, jax.Array]:
    return None, gradient.reshape(-1)[: shape[0]]


_attach.defvjp(_attach_forward, _attach_backward)


class Attaching(nn.Module):
    """A module whose parameters' gradients go to their shares, if it was given shares."""

    def param(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.param`."""
        value = super().param(name, *args, **kwargs)
        if self.has_variable(_SHARES, name):
            value = _attach(value, self.get_variable(_SHARES, name))
        return value


class Dense(Attaching, nn.Dense):
    """As `nn.Dense`."""


class LayerNorm(Attaching, nn.LayerNorm):
    """As `nn.LayerNorm`."""


class Embed(Attaching, nn.Embed):
    """As `nn.Embed`."""


def setting(
    model: Callable[[Any], nn.Module],
    task: Any,
    optimizer: optax.GradientTransformation,
    workers: int,
) -> Setting:
    """A size of a network, trained by this many workers; `model` is made of `Attaching` modules."""

    def init(leaf: jax.Array) -> Any:
        return optimizer.init(_share(leaf, workers))

    of_shares = optax.GradientTransformation(init, optimizer.update)
    return Setting(model, task, of_shares, functools.partial(_train_step, workers))


def _train_step(
    workers: int, model: nn.Module, task: Task, optimizer: optax.GradientTransformation
) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """The train step of the first worker."""

    def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        def loss_fn(shares: Any) -> jax.Array:
            variables = {"params": state.params, _SHARES: shares}
            return task.loss(model.apply(variables, *task.inputs(batch)), batch)

        # Only the shapes matter: nobody reads the values.
        shares = jax.tree.map(lambda leaf: jnp.zeros_like(_share(leaf, workers)), state.params)
        loss, grads = jax.value_and_grad(loss_fn)(shares)
        leaves, tree = jax.tree.flatten(state.params)
        states = tree.flatten_up_to(state.optimizer)
        pairs = [
            _update_leaf(optimizer, *leaf)
            for leaf in zip(leaves, jax.tree.leaves(grads), states, strict=True)
        ]
        params = tree.unflatten([param for param, _ in pairs])
        return State(params, state.stats, tree.unflatten([s for _, s in pairs])), loss

    return step


def _update_leaf(
    optimizer: optax.GradientTransformation, param: jax.Array, grad: jax.Array, state: Any
) -> tuple[jax.Array, Any]:
    """The parameter with its share updated in place, and the share's optimizer state."""
    flat = param.reshape(-1)
    share, state = _update_share(optimizer, flat, grad, state)
    return jax.lax.dynamic_update_slice(flat, share, (0,)).reshape(param.shape), state


@functools.partial(jax.jit, static_argnums=0)
def _update_share(
    optimizer: optax.GradientTransformation, flat: jax.Array, grad: jax.Array, state: Any
) -> tuple[jax.Array, Any]:
    share = flat[: grad.size]
    updates, state = optimizer.update(grad, state, share)
    return optax.apply_updates(share, updates), state


def _share(leaf: jax.Array, workers: int) -> jax.Array:
    return leaf.reshape(-1)[: -(-leaf.size // workers)]
