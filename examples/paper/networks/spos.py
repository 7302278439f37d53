"""SPOS: a supernet of which each step trains one random path (Guo et al., Single Path One-Shot
Neural Architecture Search with Uniform Sampling, ECCV 2020).

Twenty blocks with four choices each (ShuffleNet V2 units with 3 x 3, 5 x 5 and 7 x 7 kernels, and
the "Xception" unit), channels 64, 160, 320 and 640. Only what lies on the path has gradients and
is updated, as where gradients come from what ran. Normalisations have no scale and shift, as in the
authors' supernet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.paper.networks.base import (
    Batch,
    Network,
    Remat,
    Setting,
    Stage,
    State,
    apply_updates,
    chain,
)
from examples.paper.networks.tasks import PathClassification

CHOICES = ("shuffle3", "shuffle5", "shuffle7", "xception")
Path = tuple[int, ...]


class ConvNorm(nn.Module):
    """Convolution and batch normalisation; of each channel by itself if `depthwise`."""

    features: int
    kernel: int = 1
    stride: int = 1
    depthwise: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        groups = self.features if self.depthwise else 1
        x = nn.Conv(
            self.features,
            (self.kernel, self.kernel),
            self.stride,
            padding=self.kernel // 2,
            feature_group_count=groups,
            use_bias=False,
        )(x)
        return nn.BatchNorm(False, momentum=0.9, use_bias=False, use_scale=False)(x)


class Choice(nn.Module):
    """One choice of a block: half of the channels are handed on, or projected, the others computed.

    Attributes:
      kind: one of `CHOICES`.
      features: channels out.
    """

    kind: str
    features: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = 3 if self.kind == "xception" else int(self.kind[-1])
        if self.stride == 1:
            # Channels shuffled by the pairs of the block before: even ones stay, odd ones go on.
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            kept, x = pairs[..., 0], pairs[..., 1]
        else:
            kept = ConvNorm(x.shape[-1], kernel, self.stride, depthwise=True)(x)
            kept = nn.relu(ConvNorm(x.shape[-1])(kept))
        half, middle = self.features - kept.shape[-1], self.features // 2
        if self.kind == "xception":
            x = ConvNorm(x.shape[-1], kernel, self.stride, depthwise=True)(x)
            x = nn.relu(ConvNorm(middle)(x))
            x = ConvNorm(middle, kernel, depthwise=True)(x)
            x = nn.relu(ConvNorm(middle)(x))
            x = ConvNorm(middle, kernel, depthwise=True)(x)
        else:
            x = nn.relu(ConvNorm(middle)(x))
            x = ConvNorm(middle, kernel, self.stride, depthwise=True)(x)
        x = nn.relu(ConvNorm(half)(x))
        return jnp.concatenate([kept, x], axis=-1)


class Supernet(nn.Module):
    """Logits [batch, classes] of images [batch, height, width, 3], through one path.

    Attributes:
      repeats, features: blocks and channels of each stage; each stage halves the resolution.
    """

    repeats: Sequence[int] = (4, 4, 8, 4)
    features: Sequence[int] = (64, 160, 320, 640)
    stem: int = 16
    top: int = 1024
    classes: int = 1000
    remat: Remat = "none"

    @nn.compact
    def __call__(self, images: jax.Array, path: Path | None = None) -> jax.Array:
        x = nn.relu(ConvNorm(self.stem, 3, 2, name="stem")(images))
        blocks = [
            (features, 1 if n else 2)
            for repeat, features in zip(self.repeats, self.features, strict=True)
            for n in range(repeat)
        ]
        path = path or (0,) * len(blocks)
        stages = [
            _block(number, choice, self.is_initializing(), *block)
            for number, (choice, block) in enumerate(zip(path, blocks, strict=True))
        ]
        x = chain(self, stages, x, self.remat)
        x = nn.relu(ConvNorm(self.top, name="top")(x))
        return nn.Dense(self.classes, use_bias=False, name="head")(jnp.mean(x, axis=(1, 2)))


def name_of(block: int, choice: int) -> str:
    """The name of a choice's parameters."""
    return f"block{block}_{CHOICES[choice]}"


def _block(number: int, choice: int, initializing: bool, features: int, stride: int) -> Stage:
    def stage(module: nn.Module, x: jax.Array) -> jax.Array:
        # All choices get parameters, the path's last: its result goes on.
        others = [c for c in range(len(CHOICES)) if c != choice] if initializing else []
        for c in (*others, choice):
            y = Choice(CHOICES[c], features, stride, parent=module, name=name_of(number, c))(x)
        return y

    return stage


def path_step(
    model: nn.Module, task: PathClassification, optimizer: optax.GradientTransformation
) -> Callable[[State, Batch, Path], tuple[State, jax.Array]]:
    """A train step of one path; the other parameters, and their state, come back as they were."""

    def step(state: State, batch: Batch, path: Path) -> tuple[State, jax.Array]:
        names = {name_of(*pair) for pair in enumerate(path)}
        chosen = {n for n in state.params if not n.startswith("block") or n in names}

        def part_of(tree: Any) -> Any:
            return {name: tree[name] for name in tree if name in chosen}

        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            stats = {"batch_stats": part_of(state.stats["batch_stats"])}
            outputs, stats = model.apply(
                {"params": params, **stats}, *task.inputs(batch), path, mutable=["batch_stats"]
            )
            return task.loss(outputs, batch), stats["batch_stats"]

        params = part_of(state.params)
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        params, states = apply_updates(optimizer, params, grads, part_of(state.optimizer))
        new = State(
            {**state.params, **params},
            {"batch_stats": {**state.stats["batch_stats"], **stats}},
            {**state.optimizer, **states},
        )
        return new, loss

    return step


def fixed_step(
    model: nn.Module, task: PathClassification, optimizer: optax.GradientTransformation
) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """A train step of one fixed path, which takes each choice in turn: one program."""
    step = path_step(model, task, optimizer)
    path = tuple(n % task.choices for n in range(task.blocks))
    return lambda state, batch: step(state, batch, path)


def eager_step(
    model: nn.Module, task: PathClassification, optimizer: optax.GradientTransformation
) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """A train step that reads the path from the values of the batch."""
    step = path_step(model, task, optimizer)

    def read_path(state: State, batch: Batch) -> tuple[State, jax.Array]:
        *rest, path = batch
        return step(state, tuple(rest), tuple(int(choice) for choice in path))

    return read_path


NETWORK = Network(
    name="spos",
    title="SPOS",
    source="Guo et al., Single Path One-Shot Neural Architecture Search, ECCV 2020",
    settings={
        "paper": Setting(
            lambda remat: Supernet(remat=remat),
            PathClassification(batch=128, pixels=224),
            optax.sgd(0.1, momentum=0.9),
        ),
        "small": Setting(
            lambda remat: Supernet((2, 2), (16, 32), 8, 64, 4, remat),
            PathClassification(batch=16, pixels=64, classes=4, blocks=4),
            optax.sgd(0.03, momentum=0.9),
        ),
    },
    dynamic=True,
    step_maker=fixed_step,
    eager_step_maker=eager_step,
)
