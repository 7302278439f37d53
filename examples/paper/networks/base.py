"""What the networks share: how one is described, its train step, and static checkpoints.

A network is a Flax module, a task (a batch and a loss) and an optimizer, for each of two sizes.
From them `Network.make_step` makes an ordinary train step, `step(state, batch) -> (state, loss)`,
with abstract arguments, so that billions of parameters cost nothing to trace.

The optimizer runs leaf by leaf, each leaf in one jitted call, as the loops over parameters in
OneFlow and PyTorch do. A whole-tree update would keep several copies of all parameters at once when
it is run operation by operation.

Parameters have the same names, and the same first values, under every checkpointing option.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax
import optax

Batch = tuple[Any, ...]
Size = Literal["paper", "small"]
Remat = Literal["none", "per-layer", "sqrt", "selective"]

# A part of a network: applied to the module that owns its parameters, and to the activations.
Stage = Callable[[nn.Module, Any], Any]


class State(NamedTuple):
    """Parameters, running statistics (of batch normalisation), optimizer state for each leaf."""

    params: Any
    stats: Any
    optimizer: Any


class Task(Protocol):
    """A batch and the loss on it. Tasks are frozen dataclasses with a field `batch`."""

    def shapes(self) -> Batch:
        """The batch as `jax.ShapeDtypeStruct`s."""
        ...

    def sample(self, seed: int) -> Batch:
        """A synthetic batch that can be learned, as NumPy arrays; the same for the same seed."""
        ...

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """What of the batch the model is applied to."""
        ...

    def loss(self, outputs: Any, batch: Batch) -> jax.Array:
        """The mean loss of the model's outputs."""
        ...


StepMaker = Callable[[nn.Module, Any, optax.GradientTransformation], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One size of a network.

    Attributes:
      model: its module for each checkpointing option.
      task, optimizer: what it is trained on, and with; the optimizer is initialised leaf by leaf.
      step_maker: the train step of model, task and optimizer, if not the network's.
    """

    model: Callable[[Remat], nn.Module]
    task: Any
    optimizer: optax.GradientTransformation
    step_maker: StepMaker | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TrainStep:
    """A train step `fn(state, batch) -> (state, loss)` and its abstract arguments."""

    fn: Callable[[State, Batch], tuple[State, jax.Array]]
    arguments: tuple[State, Batch]
    donate_argnums: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """One of the evaluated networks.

    Attributes:
      name: as in the registry and on the command line.
      title: as in figures.
      source: where architecture and sizes come from.
      settings: for each size.
      remat: the checkpointing options that apply.
      dynamic: each step is another program; `eager_step` runs it from the values of the batch.
      step_maker, eager_step_maker: train steps of a model, task and optimizer.
    """

    name: str
    title: str
    source: str
    settings: Mapping[Size, Setting]
    remat: tuple[Remat, ...] = ("none", "per-layer", "sqrt")
    dynamic: bool = False
    step_maker: StepMaker | None = None
    eager_step_maker: StepMaker | None = None

    def setting(self, size: Size, batch: int | None = None) -> Setting:
        """One size, with another number of samples in a batch if given."""
        setting = self.settings[size]
        if batch is None:
            return setting
        return dataclasses.replace(setting, task=dataclasses.replace(setting.task, batch=batch))

    def make_step(self, size: Size, remat: Remat = "none", batch: int | None = None) -> TrainStep:
        """The train step; of a dynamic network for one length or path.

        Args:
          size: "paper" or "small".
          remat: which static checkpointing it has; "none" leaves memory to the runtime.
          batch: samples in a batch, if not those of the size.

        Raises:
          ValueError: the checkpointing option does not apply to this network.
        """
        setting = self.setting(size, batch)
        maker = setting.step_maker or self.step_maker or train_step
        fn = maker(self._model(setting, remat), setting.task, setting.optimizer)
        state = jax.eval_shape(functools.partial(_init, setting, setting.task.shapes(), 0))
        return TrainStep(fn, (state, setting.task.shapes()))

    def eager_step(self, size: Size, batch: int | None = None) -> Callable[..., Any]:
        """The train step in plain Python, for `coop_jax.remat_eager`; batches from `batches`."""
        setting = self.setting(size, batch)
        maker = self.eager_step_maker or self.step_maker or train_step
        step: Callable[..., Any] = maker(setting.model("none"), setting.task, setting.optimizer)
        return step

    def init(self, size: Size, seed: int = 0, batch: int | None = None) -> State:
        """A first state, on the default device."""
        setting = self.setting(size, batch)
        make = jax.jit(
            functools.partial(_init, setting, setting.task.shapes()),
            # Runs once: optimizing it takes longer than it does.
            compiler_options={"xla_backend_optimization_level": 0},
        )
        state: State = make(seed)
        return state

    def batches(self, size: Size, seed: int = 0, batch: int | None = None) -> Iterator[Batch]:
        """Endless batches; of a dynamic network each of another length, or with another path."""
        task = self.setting(size, batch).task
        sample = getattr(task, "sample_dynamic", task.sample) if self.dynamic else task.sample
        while True:
            yield sample(seed)
            seed += 1

    def parameters(self, size: Size) -> int:
        """How many parameters it has."""
        setting = self.settings[size]
        state = jax.eval_shape(functools.partial(_init, setting, setting.task.shapes(), 0))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))

    def _model(self, setting: Setting, remat: Remat) -> nn.Module:
        if remat not in self.remat:
            raise ValueError(f"{self.name} has no remat={remat!r}, only {', '.join(self.remat)}")
        return setting.model(remat)


def _init(setting: Setting, shapes: Batch, seed: Any) -> State:
    """Traced only: the batch is zeros of the given shapes, which the state does not depend on."""
    batch = jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), shapes)
    variables = dict(setting.model("none").init(jax.random.key(seed), *setting.task.inputs(batch)))
    params = variables.pop("params")
    return State(params, variables, jax.tree.map(setting.optimizer.init, params))


def train_step(
    model: nn.Module, task: Task, optimizer: optax.GradientTransformation
) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """An ordinary train step."""

    def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, **state.stats}
            outputs, stats = model.apply(
                variables, *task.inputs(batch), mutable=list(state.stats) or ["batch_stats"]
            )
            return task.loss(outputs, batch), stats

        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        params, states = apply_updates(optimizer, state.params, grads, state.optimizer)
        return State(params, stats, states), loss

    return step


def apply_updates(
    optimizer: optax.GradientTransformation, params: Any, grads: Any, states: Any
) -> tuple[Any, Any]:
    """New parameters and optimizer states; each leaf by itself."""
    leaves, tree = jax.tree.flatten(params)
    pairs = [
        _update_leaf(optimizer, *leaf)
        for leaf in zip(leaves, tree.flatten_up_to(grads), tree.flatten_up_to(states), strict=True)
    ]
    return tree.unflatten([p for p, _ in pairs]), tree.unflatten([s for _, s in pairs])


@functools.partial(jax.jit, static_argnums=0)
def _update_leaf(
    optimizer: optax.GradientTransformation, param: jax.Array, grad: jax.Array, state: Any
) -> tuple[jax.Array, Any]:
    updates, state = optimizer.update(grad, state, param)
    return optax.apply_updates(param, updates), state


def segment_length(remat: Remat, stages: int) -> int:
    """How many consecutive stages one checkpoint spans; 0 for no checkpoints.

    "sqrt" makes about sqrt(n) segments of sqrt(n) stages (Chen et al., Training Deep Nets with
    Sublinear Memory Cost, 2016).
    """
    if remat == "per-layer":
        return 1
    return max(1, round(math.sqrt(stages))) if remat == "sqrt" else 0


def chain(module: nn.Module, stages: Sequence[Stage], carry: Any, remat: Remat) -> Any:
    """Applies stages one after the other, in checkpoints of as many as the option says.

    A stage must create its modules with `parent=` the module it is given, and name them: inside a
    checkpoint that is a copy of `module`, and names make the parameters those without checkpoints.
    """

    def run(stages: Sequence[Stage], module: nn.Module, carry: Any) -> Any:
        for stage in stages:
            carry = stage(module, carry)
        return carry

    length = segment_length(remat, len(stages))
    if not length:
        return run(stages, module, carry)
    for start in range(0, len(stages), length):
        part = functools.partial(run, stages[start : start + length])
        carry = nn.remat(part)(module, carry)
    return carry
