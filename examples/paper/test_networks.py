"""The eight networks: sizes of the literature, programs and batches."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir import cost_model
from examples.paper.networks import NETWORKS, TrainStep

# Most are exactly what the public implementations have; see each network's module.
PARAMETERS = {
    "resnet50": 25_557_032,  # torchvision
    "inception": 27_161_264,  # torchvision, with the auxiliary classifier
    "unet": 31_037_698,  # 31.03 million as published, without normalisation
    "swin": 28_288_354,  # the authors
    "bert": 336_226_108,  # with both heads
    "gpt2": 124_439_808,  # the authors
    "gpt3": 2_651_553_280,  # "2.7B": 12 n d² + (vocabulary + length) d, and biases
    "bilstm": 20_000 * 300 + 2 * 4 * 512 * (300 + 512 + 1 + 1024 + 512 + 1) + 2 * 1024 + 2,
}

# Multiplications with additions of the forward pass, for an image.
MACS = {"resnet50": 4.09e9, "inception": 5.71e9, "swin": 4.49e9}

names = pytest.mark.parametrize("name", NETWORKS)


def matrix_flops(jaxpr: Any) -> float:
    """FLOPs of matrix products and convolutions, those in nested programs included."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            ins, outs = ([v.aval for v in vs] for vs in (equation.invars, equation.outvars))
            total += cost_model.flops(equation.primitive, equation.params, ins, outs)
        total += sum(matrix_flops(inner) for inner in jaxprs.nested_jaxprs(equation.params))
    return total


def traced(step: TrainStep) -> Any:
    """The train step's program."""
    return jax.make_jaxpr(step.fn)(*step.arguments).jaxpr


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_parameters_are_those_of_the_literature(name: str, count: int) -> None:
    assert NETWORKS[name].parameters("paper") == count


def test_inception_without_its_auxiliary_classifier_is_the_literatures() -> None:
    params = NETWORKS["inception"].make_step("paper").arguments[0].params
    auxiliary = sum(leaf.size for leaf in jax.tree.leaves(params["auxiliary"]))
    assert NETWORKS["inception"].parameters("paper") - auxiliary == 23_834_568


@pytest.mark.parametrize(("name", "macs"), MACS.items())
def test_the_forward_pass_takes_the_operations_of_the_literature(name: str, macs: float) -> None:
    setting = NETWORKS[name].setting("paper", batch=1)
    state, (images, _) = NETWORKS[name].make_step("paper", batch=1).arguments
    variables = {"params": state.params, **state.stats}
    mutable = list(state.stats)

    def forward(variables: Any, images: Any) -> Any:
        return setting.model("none").apply(variables, images, mutable=mutable)

    flops = matrix_flops(jax.make_jaxpr(forward)(variables, images).jaxpr)
    assert flops / 2 == pytest.approx(macs, rel=0.03)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "bilstm" else n for n in NETWORKS]
)
def test_the_paper_size_traces_to_a_train_step(name: str) -> None:
    step = NETWORKS[name].make_step("paper")
    state, loss = jax.eval_shape(step.fn, *step.arguments)
    assert loss.shape == ()
    assert jax.tree.structure(state) == jax.tree.structure(step.arguments[0])
    for new, old in zip(jax.tree.leaves(state), jax.tree.leaves(step.arguments[0]), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)


@names
def test_checkpoints_recompute_what_they_should(name: str) -> None:
    """By matrix work: about the forward pass again, a third; the selective ones little of it."""
    network = NETWORKS[name]
    base = matrix_flops(traced(network.make_step("small")))
    for remat in network.remat[1:]:
        extra = matrix_flops(traced(network.make_step("small", remat))) / base - 1
        least, most = (0.001, 0.12) if remat == "selective" else (0.15, 0.4)
        assert least < extra < most, remat


def test_a_checkpointing_option_that_does_not_apply_is_refused() -> None:
    with pytest.raises(ValueError, match="resnet50 has no remat='selective', only none"):
        NETWORKS["resnet50"].make_step("paper", "selective")


@names
def test_batches_are_those_of_their_seed(name: str) -> None:
    network = NETWORKS[name]
    first, second, again = (next(network.batches("small", seed=seed)) for seed in (0, 1, 0))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert first[0].shape != second[0].shape or not np.array_equal(first[0], second[0])
    if not network.dynamic:
        shapes = jax.tree.map(lambda s: (s.shape, s.dtype), network.make_step("small").arguments[1])
        assert jax.tree.map(lambda x: (x.shape, x.dtype), first) == shapes


@pytest.mark.parametrize("name", ["bilstm", "spos"])
def test_each_step_of_a_dynamic_network_is_another_program(name: str) -> None:
    batches = itertools.islice(NETWORKS[name].batches("small"), 5)
    # A length is a shape, a path the last value of a batch.
    programs = {b[0].shape[1] if name == "bilstm" else tuple(b[-1].tolist()) for b in batches}
    assert len(programs) > 2


def test_a_path_leaves_the_parameters_beside_it_as_they_were() -> None:
    step = NETWORKS["spos"].make_step("small")
    jaxpr = traced(step)
    params = step.arguments[0].params
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    count = len(paths)  # parameters are the first of the arguments, and of the results
    pairs = zip(paths, jaxpr.outvars[:count], jaxpr.invars[:count], strict=True)
    changed = {path[0].key for path, new, old in pairs if new is not old}
    on_path = {"block0_shuffle3", "block1_shuffle5", "block2_shuffle7", "block3_xception"}
    assert changed == {"stem", "top", "head"} | on_path
    assert len(params) == 3 + 4 * 4
